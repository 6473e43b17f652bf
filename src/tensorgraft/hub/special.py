"""Special functions of one array in operations of the hub, by the approximations of Cephes (`cephes`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorgraft.hub import cephes
from tensorgraft.hub.array import Array


def polynomial(xp: Any, x: Array, coefficients: Sequence[float]) -> Array:
    out = xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        out = xp.add(xp.multiply(out, x), c)
    return out


def ratio(xp: Any, x: Array, top: Sequence[float], bottom: Sequence[float]) -> Array:
    return xp.divide(polynomial(xp, x, top), polynomial(xp, x, bottom))


def chebyshev(xp: Any, x: Array, coefficients: Sequence[float]) -> Array:
    """A series of Chebyshev polynomials in x / 2, by Clenshaw's recurrence."""
    before, last, now = xp.zeros_like(x), xp.zeros_like(x), xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        before, last = last, now
        now = xp.add(xp.subtract(xp.multiply(x, last), before), c)
    return xp.multiply(xp.subtract(now, before), 0.5)


def _below(coefficients: Sequence[float], monic: bool) -> Sequence[float]:
    """Return the coefficients of a denominator. In Cephes those of the Bessel functions J and Y begin with a
    coefficient of 1, which it leaves unsaid, and which PyTorch forgets."""
    return (1.0, *coefficients) if monic else coefficients


def _far(xp: Any, x: Array, table: dict[str, Any], phase: float, second: bool, monic: bool) -> Array:
    """The asymptotic form of J or Y (`second`) for x > 5."""
    z = xp.divide(25.0, xp.multiply(x, x))
    p, q = ratio(xp, z, table["PP"], table["PQ"]), ratio(xp, z, table["QP"], _below(table["QQ"], monic))
    q = xp.multiply(xp.divide(5.0, x), q)
    angle = xp.subtract(x, phase)
    sine, cosine = xp.sin(angle), xp.cos(angle)
    if second:
        wave = xp.add(xp.multiply(p, sine), xp.multiply(q, cosine))
    else:
        wave = xp.subtract(xp.multiply(p, cosine), xp.multiply(q, sine))
    return xp.divide(xp.multiply(wave, math.sqrt(2 / math.pi)), xp.sqrt(x))


def held(xp: Any, x: Array, inside: Array, harmless: float) -> Array:
    """`x` where a formula is used, else a number that does it no harm."""
    return xp.where(inside, x, xp.full_like(x, harmless))


def j0(xp: Any, x: Array, monic: bool = False) -> Array:
    x = xp.abs(x)
    z = xp.multiply(x, x)
    roots = xp.multiply(xp.subtract(z, 5.78318596294678452118), xp.subtract(z, 30.4712623436620863991))
    near = xp.multiply(roots, ratio(xp, z, cephes.J0["RP"], _below(cephes.J0["RQ"], monic)))
    near = xp.where(xp.less(x, 1e-5), xp.subtract(1.0, xp.multiply(z, 0.25)), near)
    return xp.where(xp.less_equal(x, 5), near, _far(xp, x, cephes.J0, math.pi / 4, False, monic))


def j1(xp: Any, x: Array, monic: bool = False) -> Array:
    size = xp.abs(x)
    z = xp.multiply(x, x)
    roots = xp.multiply(xp.subtract(z, 14.6819706421238932572), xp.subtract(z, 49.2184563216946036703))
    near = xp.multiply(xp.multiply(ratio(xp, z, cephes.J1["RP"], _below(cephes.J1["RQ"], monic)), size), roots)
    out = xp.where(xp.less_equal(size, 5), near, _far(xp, size, cephes.J1, 3 * math.pi / 4, False, monic))
    return xp.where(xp.less(x, 0), xp.negative(out), out)


def _poles(xp: Any, x: Array, out: Array, at_zero: float) -> Array:
    """A function of positive numbers with a pole at 0."""
    out = xp.where(xp.equal(x, 0), xp.full_like(x, at_zero), out)
    return xp.where(xp.less(x, 0), xp.full_like(x, math.nan), out)


def y0(xp: Any, x: Array, monic: bool = False) -> Array:
    z = xp.multiply(x, x)
    near = xp.multiply(xp.multiply(xp.log(x), j0(xp, x, monic)), 2 / math.pi)
    near = xp.add(ratio(xp, z, cephes.Y0["YP"], _below(cephes.Y0["YQ"], monic)), near)
    out = xp.where(xp.less_equal(x, 5), near, _far(xp, x, cephes.J0, math.pi / 4, True, monic))
    return _poles(xp, x, out, -math.inf)


def y1(xp: Any, x: Array, monic: bool = False) -> Array:
    z = xp.multiply(x, x)
    near = xp.subtract(xp.multiply(j1(xp, x, monic), xp.log(x)), xp.reciprocal(x))
    near = xp.add(
        xp.multiply(x, ratio(xp, z, cephes.Y1["YP"], _below(cephes.Y1["YQ"], monic))), xp.multiply(near, 2 / math.pi)
    )
    out = xp.where(xp.less_equal(x, 5), near, _far(xp, x, cephes.J1, 3 * math.pi / 4, True, monic))
    return _poles(xp, x, out, -math.inf)


def i0(xp: Any, x: Array) -> Array:
    return xp.multiply(xp.bessel_i0e(x), xp.exp(xp.abs(x)))


def i1(xp: Any, x: Array) -> Array:
    return xp.multiply(xp.bessel_i1e(x), xp.exp(xp.abs(x)))


def modified_k(order: int, scaled: bool) -> Any:
    table = (cephes.K0, cephes.K1)[order]

    def fn(xp: Any, x: Array) -> Array:
        low = xp.less_equal(x, 2)
        small, large = held(xp, x, low, 1.0), held(xp, x, xp.logical_not(low), 3.0)
        series = chebyshev(xp, xp.subtract(xp.multiply(small, small), 2.0), table["A"])
        log = xp.log(xp.multiply(small, 0.5))
        if order:
            near = xp.add(xp.multiply(log, i1(xp, small)), xp.divide(series, small))
        else:
            near = xp.subtract(series, xp.multiply(log, i0(xp, small)))
        far = chebyshev(xp, xp.subtract(xp.divide(8.0, large), 2.0), table["B"])
        far = xp.divide(far, xp.sqrt(large))
        if scaled:
            near = xp.multiply(near, xp.exp(small))
        else:
            far = xp.multiply(far, xp.exp(xp.negative(large)))
        out = xp.where(low, near, far)
        return xp.where(xp.isnan(x), x, _poles(xp, x, out, math.inf))

    return fn


def airy(xp: Any, x: Array) -> Array:
    t = cephes.AIRY
    left, right = xp.less(x, -2.09), xp.greater_equal(x, 2.09)
    # oscillating, for x < -2.09
    n = xp.negative(held(xp, x, left, -3.0))
    root = xp.sqrt(n)
    zeta = xp.divide(xp.multiply(xp.multiply(n, root), 2.0), 3.0)
    z = xp.reciprocal(zeta)
    zz = xp.multiply(z, z)
    angle = xp.add(zeta, math.pi / 4)
    sine = xp.multiply(xp.sin(angle), xp.add(xp.multiply(zz, ratio(xp, zz, t["AFN"], t["AFD"])), 1.0))
    cosine = xp.multiply(xp.cos(angle), xp.multiply(z, ratio(xp, zz, t["AGN"], t["AGD"])))
    waves = xp.divide(xp.multiply(xp.subtract(sine, cosine), 1 / math.sqrt(math.pi)), xp.sqrt(root))
    # falling, for x >= 2.09
    p = held(xp, x, right, 3.0)
    root = xp.sqrt(p)
    zeta = xp.divide(xp.multiply(xp.multiply(p, root), 2.0), 3.0)
    decay = xp.multiply(ratio(xp, xp.reciprocal(zeta), t["AN"], t["AD"]), 1 / math.sqrt(math.pi))
    decay = xp.divide(decay, xp.multiply(xp.multiply(xp.sqrt(root), xp.exp(zeta)), 2.0))
    decay = xp.where(xp.greater(x, 103.892), xp.zeros_like(x), decay)
    # Taylor's series between them
    s = held(xp, x, xp.logical_not(xp.logical_or(left, right)), 0.0)
    cube = xp.multiply(xp.multiply(s, s), s)
    f, g = even, odd = xp.ones_like(s), s
    for k in range(1, 25):
        even = xp.multiply(even, xp.divide(cube, 3.0 * k * (3 * k - 1)))
        odd = xp.multiply(odd, xp.divide(cube, 3.0 * k * (3 * k + 1)))
        f, g = xp.add(f, even), xp.add(g, odd)
    middle = xp.subtract(xp.multiply(f, 0.355028053887817239260), xp.multiply(g, 0.258819403792806798405))
    out = xp.where(left, waves, xp.where(right, decay, middle))
    return xp.where(xp.isfinite(x), out, xp.full_like(x, math.nan))


def spherical_j0(xp: Any, x: Array) -> Array:
    z = xp.multiply(x, x)
    near = polynomial(xp, z, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    far = xp.divide(xp.sin(x), x)
    out = xp.where(xp.less(xp.abs(x), 0.5), near, far)
    return xp.where(xp.isinf(x), xp.zeros_like(x), out)


def ndtri(xp: Any, y: Array) -> Array:
    """The inverse of the normal distribution function."""
    t = cephes.NDTRI
    upper = xp.greater(y, 1 - 0.13533528323661269189)
    tail = xp.where(upper, xp.subtract(1.0, y), y)
    central = xp.greater(tail, 0.13533528323661269189)
    # near one half
    c = xp.subtract(held(xp, tail, central, 0.5), 0.5)
    cc = xp.multiply(c, c)
    inner = xp.add(c, xp.multiply(xp.multiply(c, cc), ratio(xp, cc, t["P0"], t["Q0"])))
    inner = xp.multiply(inner, math.sqrt(2 * math.pi))
    # in the tails
    x = xp.sqrt(xp.multiply(xp.log(held(xp, tail, xp.logical_not(central), 0.1)), -2.0))
    z = xp.reciprocal(x)
    rational = xp.where(xp.less(x, 8), ratio(xp, z, t["P1"], t["Q1"]), ratio(xp, z, t["P2"], t["Q2"]))
    outer = xp.subtract(xp.subtract(x, xp.divide(xp.log(x), x)), xp.multiply(z, rational))
    outer = xp.where(upper, outer, xp.negative(outer))
    out = xp.where(central, inner, outer)
    out = xp.where(xp.equal(y, 0), xp.full_like(y, -math.inf), xp.where(xp.equal(y, 1), xp.full_like(y, math.inf), out))
    outside = xp.logical_or(xp.less(y, 0), xp.greater(y, 1))
    return xp.where(outside, xp.full_like(y, math.nan), out)


def erfcx(xp: Any, x: Array) -> Array:
    """exp(x^2) erfc(x): as it stands for x < 2, else by Laplace's continued fraction."""
    low = xp.less(x, 2)
    small, large = held(xp, x, low, 0.0), held(xp, x, xp.logical_not(low), 3.0)
    near = xp.multiply(xp.exp(xp.multiply(small, small)), xp.erfc(small))
    fraction = large
    for k in range(60, 0, -1):
        fraction = xp.add(large, xp.divide(k / 2, fraction))
    far = xp.divide(1 / math.sqrt(math.pi), fraction)
    return xp.where(xp.isnan(x), x, xp.where(low, near, far))
