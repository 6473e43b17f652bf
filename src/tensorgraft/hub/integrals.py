"""Functions that are integrals: exponential, Dawson's, Fresnel's, Spence's, the incomplete beta function.

Of arrays in double precision: by series where nothing cancels, by sums that converge exponentially elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.special import polynomial, where_used
from tensorgraft.hub.value import AnyArray, Value, with_operators

EULER = 0.57721566490153286061
# coefficients of B_2k / (2k + 1)!, highest first (the dilogarithm as a series of -log(1 - w))
BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330]
DILOGARITHM = [b / math.factorial(2 * k + 3) for k, b in enumerate(BERNOULLI)][::-1]


def _sum(xp: Any, x: AnyArray, terms: Sequence[float]) -> AnyArray:
    """Return the polynomial with these coefficients, lowest first."""
    return polynomial(xp, x, list(terms)[::-1])


@with_operators
def exponential(xp: Any, x: Value) -> Value:
    """Ei."""
    size = abs(x)
    # sum of x^k / (k k!), where nothing cancels
    low = (x >= -1) & (x <= 40)
    s = where_used(xp, x, low, 1.0)
    series = s * _sum(xp, s, [1 / (k * math.factorial(k)) for k in range(1, 140)])
    near = series + xp.log(abs(s)) + EULER
    # e^x / x (1 + 1! / x + 2! / x^2 + ...)
    b = where_used(xp, x, x > 40, 50.0)
    far = xp.exp(b) / b
    far = far * _sum(xp, xp.reciprocal(b), [math.factorial(k) for k in range(40)])
    # Lentz's form of the continued fraction of E1
    z = where_used(xp, size, x < -1, 2.0)
    fraction = z + (2 * 80 + 1.0)
    for k in range(80, 0, -1):
        fraction = z + (2 * k - 1.0) - float(k * k) / fraction
    left = -(xp.exp(-z) / fraction)
    out = xp.where(x < -1, left, xp.where(x > 40, far, near))
    out = xp.where(x == 0, xp.full_like(x, -math.inf), out)
    return xp.where(xp.isnan(x), x, out)


@with_operators
def dawson(xp: Any, x: Value) -> Value:
    """Rybicki's sum of Gaussians (G. B. Rybicki, Dawson's integral and the sampling theorem, 1989)."""
    h, size = 0.25, abs(x)
    small = where_used(xp, x, size < 0.5, 0.0)
    terms = [1.0]
    for k in range(1, 20):
        terms.append(-terms[-1] * 2 / (2 * k + 1))
    near = small * _sum(xp, xp.square(small), terms)
    middle = where_used(xp, size, size < 50, 1.0)
    even = xp.round(middle / (2 * h)) * 2.0
    rest = middle - even * h
    total = xp.zeros_like(x)
    for n in range(-27, 28, 2):
        gaussian = xp.exp(-xp.square(rest - n * h))
        total = total + gaussian / (even + float(n))
    total = total / math.sqrt(math.pi)
    large = where_used(xp, size, size >= 50, 50.0)
    z = xp.reciprocal(xp.square(large))
    far = _sum(xp, z, [1.0, 0.5, 0.75, 1.875, 6.5625]) / (large * 2.0)
    by_magnitude = xp.where(size >= 50, far, total)
    by_magnitude = xp.where(x < 0, -by_magnitude, by_magnitude)
    out = xp.where(size < 0.5, near, by_magnitude)
    return xp.where(xp.isnan(x), x, out)


@with_operators
def fresnel(xp: Any, x: Value) -> tuple[Value, Value]:
    """Return (sine, cosine) integrals."""
    size = abs(x)
    small = where_used(xp, size, size < 1.5, 0.0)
    t = xp.square(small) * (math.pi / 2)
    tt = xp.square(t)
    cosines = [(-1) ** n / (math.factorial(2 * n) * (4 * n + 1)) for n in range(18)]
    sines = [(-1) ** n / (math.factorial(2 * n + 1) * (4 * n + 3)) for n in range(18)]
    near_c = small * _sum(xp, tt, cosines)
    near_s = small * t * _sum(xp, tt, sines)
    # the auxiliary functions, by the trapezoidal rule
    h = 0.18
    z = where_used(xp, size, (size >= 1.5) & xp.isfinite(size), 2.0)
    f = g = xp.zeros_like(x)
    for k in range(30):
        v = k * h
        weight = h * math.exp(-math.pi / 2 * v * v) * math.sqrt(2) / math.pi * (0.5 if k == 0 else 1)
        squared = xp.square(v / z)
        share = weight / ((xp.square(squared) + 1) * z)
        f, g = f + share, g + share * squared
    angle = xp.fmod(xp.square(z), xp.full_like(z, 4.0)) * (math.pi / 2)
    sine, cosine = xp.sin(angle), xp.cos(angle)
    far_s = 0.5 - f * cosine - g * sine
    far_c = f * sine + 0.5 - g * cosine
    integrals = []
    for near, far in ((near_s, far_s), (near_c, far_c)):
        far = xp.where(xp.isinf(size), xp.full_like(x, 0.5), far)
        out = xp.where(size < 1.5, near, far)
        out = xp.where(x < 0, -out, out)
        integrals.append(xp.where(xp.isnan(x), x, out))
    return integrals[0], integrals[1]


@with_operators
def spence(xp: Any, x: Value) -> Value:
    """Return the dilogarithm of 1 - x; NaN for negative x."""
    low, high = x < 0.5, x > 2
    inner = where_used(xp, x, x > 0, 1.0)
    beyond = where_used(xp, x, high, 3.0)
    # 1 - w with -1 <= w <= 1/2
    rest = xp.where(high, beyond / (beyond - 1), xp.where(low, 1 - inner, inner))
    u = -xp.log(rest)
    uu = xp.square(u)
    body = u - uu / 4 + u * uu * polynomial(xp, uu, DILOGARITHM)
    third = math.pi**2 / 6
    logs = xp.log(inner) * xp.log1p(-where_used(xp, inner, low, 0.25))
    small = third - logs - body
    large = -third - xp.square(xp.log(beyond - 1)) * 0.5 - body
    out = xp.where(high, large, xp.where(low, small, body))
    out = xp.where(x == 0, xp.full_like(x, third), xp.where(x == 1, xp.zeros_like(x), out))
    out = xp.where(x < 0, xp.full_like(x, math.nan), out)
    return xp.where(xp.isnan(x), x, out)


@with_operators
def incomplete_beta(xp: Any, a: Value, b: Value, x: Value) -> Value:
    """Regularised, of arrays of one shape. The continued fraction of Numerical Recipes 6.4, by Lentz's method."""
    is_swapped = x > (a + 1) / (a + b + 2)
    p, q = xp.where(is_swapped, b, a), xp.where(is_swapped, a, b)
    is_interior = (x > 0) & (x < 1)
    z = where_used(xp, xp.where(is_swapped, 1 - x, x), is_interior, 0.5)
    total = p + q
    tiny = 1e-300

    def guarded(v: Value) -> Value:
        return xp.where(abs(v) < tiny, xp.full_like(v, tiny), v)

    def body(state: list[Value]) -> list[Value]:
        m, c, d, out, _ = state
        twice = p + m * 2
        even = m * (q - m) * z / ((twice - 1) * twice)
        odd = -((p + m) * (total + m) * z)
        odd = odd / (twice * (twice + 1))
        change = xp.ones_like(z)
        for coefficient in (even, odd):
            d = xp.reciprocal(guarded(coefficient * d + 1))
            c = guarded(coefficient / c + 1)
            change = c * d
            out = out * change
        return [m + 1, c, d, out, change]

    def goes_on(state: list[Value]) -> Value:
        m, change = state[0], state[-1]
        moves = xp.any(abs(change - 1) > 1e-15)
        return moves & (m < 500)

    first = xp.reciprocal(guarded(1 - total * z / (p + 1)))
    start = [xp.ones((), z.dtype), xp.ones_like(z), first, first, xp.full_like(z, 2.0)]
    fraction = xp.while_loop(goes_on, body, start)[3]
    logs = p * xp.log(z) + q * xp.log1p(-z)
    logs = logs + (xp.lgamma(total) - (xp.lgamma(p) + xp.lgamma(q)))
    out = xp.exp(logs) * fraction / p
    out = xp.where(is_swapped, 1 - out, out)
    out = xp.where(x == 0, xp.zeros_like(x), xp.where(x == 1, xp.ones_like(x), out))
    outside = (x < 0) | (x > 1)
    outside = outside | (xp.minimum(a, b) <= 0)
    return xp.where(outside, xp.full_like(x, math.nan), out)


@with_operators
def log_density(xp: Any, a: Value, x: Value) -> Value:
    """Return the log density of the standard gamma distribution of shape `a`."""
    return (a - 1) * xp.log(x) - x - xp.lgamma(a)


def as_doubles(xp: Any, *arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(xp.shape(a) for a in arrays))
    return [xp.broadcast_to(xp.astype(a, np.dtype(np.float64)), shape) for a in arrays]
