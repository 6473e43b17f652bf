"""Functions that are integrals: exponential, Dawson's, Fresnel's, Spence's, the incomplete beta function.

Of arrays in double precision: by series where nothing cancels, by sums that converge exponentially elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.special import held, polynomial

EULER = 0.57721566490153286061
# of B_2k / (2k + 1)!, highest first (the dilogarithm as a series of -log(1 - w))
BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330]
DILOGARITHM = [b / math.factorial(2 * k + 3) for k, b in enumerate(BERNOULLI)][::-1]


def _sum(xp: Any, x: Array, terms: Sequence[float]) -> Array:
    """The polynomial with these coefficients, lowest first."""
    return polynomial(xp, x, list(terms)[::-1])


def exponential(xp: Any, x: Array) -> Array:
    """Ei."""
    size = xp.abs(x)
    # sum of x^k / (k k!), where nothing cancels
    low = xp.logical_and(xp.greater_equal(x, -1), xp.less_equal(x, 40))
    s = held(xp, x, low, 1.0)
    series = xp.multiply(s, _sum(xp, s, [1 / (k * math.factorial(k)) for k in range(1, 140)]))
    near = xp.add(xp.add(series, xp.log(xp.abs(s))), EULER)
    # e^x / x (1 + 1! / x + 2! / x^2 + ...)
    b = held(xp, x, xp.greater(x, 40), 50.0)
    far = xp.divide(xp.exp(b), b)
    far = xp.multiply(far, _sum(xp, xp.reciprocal(b), [math.factorial(k) for k in range(40)]))
    # Lentz's form of the continued fraction of E1
    z = held(xp, size, xp.less(x, -1), 2.0)
    fraction = xp.add(z, 2 * 80 + 1.0)
    for k in range(80, 0, -1):
        fraction = xp.subtract(xp.add(z, 2 * k - 1.0), xp.divide(float(k * k), fraction))
    left = xp.negative(xp.divide(xp.exp(xp.negative(z)), fraction))
    out = xp.where(xp.less(x, -1), left, xp.where(xp.greater(x, 40), far, near))
    return xp.where(xp.equal(x, 0), xp.full_like(x, -math.inf), out)


def dawson(xp: Any, x: Array) -> Array:
    """Rybicki's sum of Gaussians (G. B. Rybicki, Dawson's integral and the sampling theorem, 1989)."""
    h, size = 0.25, xp.abs(x)
    small = held(xp, x, xp.less(size, 0.5), 0.0)
    terms = [1.0]
    for k in range(1, 20):
        terms.append(-terms[-1] * 2 / (2 * k + 1))
    near = xp.multiply(small, _sum(xp, xp.square(small), terms))
    middle = held(xp, size, xp.less(size, 50), 1.0)
    even = xp.multiply(xp.round(xp.divide(middle, 2 * h)), 2.0)
    rest = xp.subtract(middle, xp.multiply(even, h))
    total = xp.zeros_like(x)
    for n in range(-27, 28, 2):
        gaussian = xp.exp(xp.negative(xp.square(xp.subtract(rest, n * h))))
        total = xp.add(total, xp.divide(gaussian, xp.add(even, float(n))))
    total = xp.divide(total, math.sqrt(math.pi))
    large = held(xp, size, xp.greater_equal(size, 50), 50.0)
    z = xp.reciprocal(xp.square(large))
    far = xp.divide(_sum(xp, z, [1.0, 0.5, 0.75, 1.875, 6.5625]), xp.multiply(large, 2.0))
    away = xp.where(xp.greater_equal(size, 50), far, total)
    away = xp.where(xp.less(x, 0), xp.negative(away), away)
    out = xp.where(xp.less(size, 0.5), near, away)
    return xp.where(xp.isnan(x), x, out)


def fresnel(xp: Any, x: Array) -> tuple[Array, Array]:
    """(sine, cosine) integrals."""
    size = xp.abs(x)
    small = held(xp, size, xp.less(size, 1.5), 0.0)
    t = xp.multiply(xp.square(small), math.pi / 2)
    tt = xp.square(t)
    cosines = [(-1) ** n / (math.factorial(2 * n) * (4 * n + 1)) for n in range(18)]
    sines = [(-1) ** n / (math.factorial(2 * n + 1) * (4 * n + 3)) for n in range(18)]
    near_c = xp.multiply(small, _sum(xp, tt, cosines))
    near_s = xp.multiply(xp.multiply(small, t), _sum(xp, tt, sines))
    # the auxiliary functions, by the trapezoidal rule
    h = 0.18
    z = held(xp, size, xp.logical_and(xp.greater_equal(size, 1.5), xp.isfinite(size)), 2.0)
    f = g = xp.zeros_like(x)
    for k in range(30):
        v = k * h
        weight = h * math.exp(-math.pi / 2 * v * v) * math.sqrt(2) / math.pi * (0.5 if k == 0 else 1)
        squared = xp.square(xp.divide(v, z))
        share = xp.divide(weight, xp.multiply(xp.add(xp.square(squared), 1), z))
        f, g = xp.add(f, share), xp.add(g, xp.multiply(share, squared))
    angle = xp.multiply(xp.fmod(xp.square(z), xp.full_like(z, 4.0)), math.pi / 2)
    sine, cosine = xp.sin(angle), xp.cos(angle)
    far_s = xp.subtract(xp.subtract(0.5, xp.multiply(f, cosine)), xp.multiply(g, sine))
    far_c = xp.subtract(xp.add(xp.multiply(f, sine), 0.5), xp.multiply(g, cosine))
    found = []
    for near, far in ((near_s, far_s), (near_c, far_c)):
        far = xp.where(xp.isinf(size), xp.full_like(x, 0.5), far)
        out = xp.where(xp.less(size, 1.5), near, far)
        out = xp.where(xp.less(x, 0), xp.negative(out), out)
        found.append(xp.where(xp.isnan(x), x, out))
    return found[0], found[1]


def spence(xp: Any, x: Array) -> Array:
    """The dilogarithm of 1 - x; NaN for negative x."""
    low, high = xp.less(x, 0.5), xp.greater(x, 2)
    inner = held(xp, x, xp.greater(x, 0), 1.0)
    beyond = held(xp, x, high, 3.0)
    # 1 - w with -1 <= w <= 1/2
    rest = xp.where(high, xp.divide(beyond, xp.subtract(beyond, 1)), xp.where(low, xp.subtract(1, inner), inner))
    u = xp.negative(xp.log(rest))
    uu = xp.square(u)
    body = xp.add(xp.subtract(u, xp.divide(uu, 4)), xp.multiply(xp.multiply(u, uu), polynomial(xp, uu, DILOGARITHM)))
    third = math.pi**2 / 6
    logs = xp.multiply(xp.log(inner), xp.log1p(xp.negative(held(xp, inner, low, 0.25))))
    small = xp.subtract(xp.subtract(third, logs), body)
    large = xp.subtract(xp.subtract(-third, xp.multiply(xp.square(xp.log(xp.subtract(beyond, 1))), 0.5)), body)
    out = xp.where(high, large, xp.where(low, small, body))
    out = xp.where(xp.equal(x, 0), xp.full_like(x, third), xp.where(xp.equal(x, 1), xp.zeros_like(x), out))
    return xp.where(xp.less(x, 0), xp.full_like(x, math.nan), out)


def incomplete_beta(xp: Any, a: Array, b: Array, x: Array) -> Array:
    """Regularised, of arrays of one shape. The continued fraction of Numerical Recipes 6.4, by Lentz's method."""
    turned = xp.greater(x, xp.divide(xp.add(a, 1), xp.add(xp.add(a, b), 2)))
    p, q = xp.where(turned, b, a), xp.where(turned, a, b)
    inside = xp.logical_and(xp.greater(x, 0), xp.less(x, 1))
    z = held(xp, xp.where(turned, xp.subtract(1, x), x), inside, 0.5)
    total = xp.add(p, q)
    tiny = 1e-300

    def guarded(v: Array) -> Array:
        return xp.where(xp.less(xp.abs(v), tiny), xp.full_like(v, tiny), v)

    def body(state: list[Array]) -> list[Array]:
        m, c, d, out, _ = state
        twice = xp.add(p, xp.multiply(m, 2))
        even = xp.divide(xp.multiply(xp.multiply(m, xp.subtract(q, m)), z), xp.multiply(xp.subtract(twice, 1), twice))
        odd = xp.negative(xp.multiply(xp.multiply(xp.add(p, m), xp.add(total, m)), z))
        odd = xp.divide(odd, xp.multiply(twice, xp.add(twice, 1)))
        change = xp.ones_like(z)
        for coefficient in (even, odd):
            d = xp.reciprocal(guarded(xp.add(xp.multiply(coefficient, d), 1)))
            c = guarded(xp.add(xp.divide(coefficient, c), 1))
            change = xp.multiply(c, d)
            out = xp.multiply(out, change)
        return [xp.add(m, 1), c, d, out, change]

    def goes_on(state: list[Array]) -> Array:
        m, change = state[0], state[-1]
        moves = xp.any(xp.greater(xp.abs(xp.subtract(change, 1)), 1e-15))
        return xp.logical_and(moves, xp.less(m, 500))

    first = xp.reciprocal(guarded(xp.subtract(1, xp.divide(xp.multiply(total, z), xp.add(p, 1)))))
    start = [xp.ones((), xp.dtype_of(z)), xp.ones_like(z), first, first, xp.full_like(z, 2.0)]
    fraction = xp.while_loop(goes_on, body, start)[3]
    logs = xp.add(xp.multiply(p, xp.log(z)), xp.multiply(q, xp.log1p(xp.negative(z))))
    logs = xp.add(logs, xp.subtract(xp.lgamma(total), xp.add(xp.lgamma(p), xp.lgamma(q))))
    out = xp.divide(xp.multiply(xp.exp(logs), fraction), p)
    out = xp.where(turned, xp.subtract(1, out), out)
    out = xp.where(xp.equal(x, 0), xp.zeros_like(x), xp.where(xp.equal(x, 1), xp.ones_like(x), out))
    outside = xp.logical_or(xp.less(x, 0), xp.greater(x, 1))
    outside = xp.logical_or(outside, xp.less_equal(xp.minimum(a, b), 0))
    return xp.where(outside, xp.full_like(x, math.nan), out)


def log_density(xp: Any, a: Array, x: Array) -> Array:
    """Return the log density of the standard gamma distribution of shape `a`."""
    return xp.subtract(xp.subtract(xp.multiply(xp.subtract(a, 1), xp.log(x)), x), xp.lgamma(a))


def as_doubles(xp: Any, *arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(xp.shape(a) for a in arrays))
    return [xp.broadcast_to(xp.astype(a, np.dtype(np.float64)), shape) for a in arrays]
