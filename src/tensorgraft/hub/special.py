"""Special functions of one array in operations of the hub, by the approximations of Cephes (`cephes`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorgraft.hub import cephes
from tensorgraft.hub.value import AnyArray, Value, with_operators


@with_operators
def polynomial(xp: Any, x: Value, coefficients: Sequence[float]) -> Value:
    out = xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        out = out * x + c
    return out


def ratio(xp: Any, x: AnyArray, top: Sequence[float], bottom: Sequence[float]) -> AnyArray:
    return xp.divide(polynomial(xp, x, top), polynomial(xp, x, bottom))


def chebyshev(xp: Any, x: Value, coefficients: Sequence[float]) -> Value:
    """Compute a series of Chebyshev polynomials in x / 2, by Clenshaw's recurrence."""
    before, last, current = xp.zeros_like(x), xp.zeros_like(x), xp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        before, last = last, current
        current = x * last - before + c
    return (current - before) * 0.5


def _below(coefficients: Sequence[float], monic: bool) -> Sequence[float]:
    """Return the coefficients of a denominator. In Cephes those of the Bessel functions J and Y begin with a
    coefficient of 1, which it leaves unsaid, and which PyTorch forgets."""
    return (1.0, *coefficients) if monic else coefficients


def _asymptotic(xp: Any, x: Value, table: dict[str, Any], phase: float, second: bool, monic: bool) -> Value:
    """Compute the asymptotic form of J or Y (`second`) for x > 5."""
    z = 25.0 / (x * x)
    p, q = ratio(xp, z, table["PP"], table["PQ"]), ratio(xp, z, table["QP"], _below(table["QQ"], monic))
    q = 5.0 / x * q
    angle = x - phase
    sine, cosine = xp.sin(angle), xp.cos(angle)
    wave = p * sine + q * cosine if second else p * cosine - q * sine
    return wave * math.sqrt(2 / math.pi) / xp.sqrt(x)


def where_used(xp: Any, x: AnyArray, is_used: AnyArray, harmless: float) -> AnyArray:
    """Return `x` where a formula is used, elsewhere a harmless number."""
    return xp.where(is_used, x, xp.full_like(x, harmless))


@with_operators
def j0(xp: Any, x: Value, monic: bool = False) -> Value:
    x = abs(x)
    z = x * x
    roots = (z - 5.78318596294678452118) * (z - 30.4712623436620863991)
    near = roots * ratio(xp, z, cephes.J0["RP"], _below(cephes.J0["RQ"], monic))
    near = xp.where(x < 1e-5, 1.0 - z * 0.25, near)
    return xp.where(x <= 5, near, _asymptotic(xp, x, cephes.J0, math.pi / 4, False, monic))


@with_operators
def j1(xp: Any, x: Value, monic: bool = False) -> Value:
    size = abs(x)
    z = x * x
    roots = (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    near = ratio(xp, z, cephes.J1["RP"], _below(cephes.J1["RQ"], monic)) * size * roots
    out = xp.where(size <= 5, near, _asymptotic(xp, size, cephes.J1, 3 * math.pi / 4, False, monic))
    return xp.where(x < 0, -out, out)


def _poles(xp: Any, x: AnyArray, out: AnyArray, at_zero: float) -> AnyArray:
    """Return `out`, a function of positive numbers, with the value `at_zero` at its pole 0, and NaN for negative
    numbers."""
    out = xp.where(xp.equal(x, 0), xp.full_like(x, at_zero), out)
    return xp.where(xp.less(x, 0), xp.full_like(x, math.nan), out)


@with_operators
def y0(xp: Any, x: Value, monic: bool = False) -> Value:
    z = x * x
    near = xp.log(x) * j0(xp, x, monic) * (2 / math.pi)
    near = ratio(xp, z, cephes.Y0["YP"], _below(cephes.Y0["YQ"], monic)) + near
    out = xp.where(x <= 5, near, _asymptotic(xp, x, cephes.J0, math.pi / 4, True, monic))
    return _poles(xp, x, out, -math.inf)


@with_operators
def y1(xp: Any, x: Value, monic: bool = False) -> Value:
    z = x * x
    near = j1(xp, x, monic) * xp.log(x) - xp.reciprocal(x)
    near = x * ratio(xp, z, cephes.Y1["YP"], _below(cephes.Y1["YQ"], monic)) + near * (2 / math.pi)
    out = xp.where(x <= 5, near, _asymptotic(xp, x, cephes.J1, 3 * math.pi / 4, True, monic))
    return _poles(xp, x, out, -math.inf)


def i0(xp: Any, x: AnyArray) -> AnyArray:
    return xp.multiply(xp.bessel_i0e(x), xp.exp(xp.abs(x)))


def i1(xp: Any, x: AnyArray) -> AnyArray:
    return xp.multiply(xp.bessel_i1e(x), xp.exp(xp.abs(x)))


def modified_k(order: int, scaled: bool) -> Any:
    table = (cephes.K0, cephes.K1)[order]

    @with_operators
    def fn(xp: Any, x: Value) -> Value:
        low = x <= 2
        small, large = where_used(xp, x, low, 1.0), where_used(xp, x, ~low, 3.0)
        series = chebyshev(xp, small * small - 2.0, table["A"])
        log = xp.log(small * 0.5)
        near = log * i1(xp, small) + series / small if order else series - log * i0(xp, small)
        far = chebyshev(xp, 8.0 / large - 2.0, table["B"])
        far = far / xp.sqrt(large)
        if scaled:
            near = near * xp.exp(small)
        else:
            far = far * xp.exp(-large)
        out = xp.where(low, near, far)
        return xp.where(xp.isnan(x), x, _poles(xp, x, out, math.inf))

    return fn


@with_operators
def airy(xp: Any, x: Value) -> Value:
    t = cephes.AIRY
    left, right = x < -2.09, x >= 2.09
    # oscillating, for x < -2.09
    n = -where_used(xp, x, left, -3.0)
    root = xp.sqrt(n)
    zeta = n * root * 2.0 / 3.0
    z = xp.reciprocal(zeta)
    zz = z * z
    angle = zeta + math.pi / 4
    sine = xp.sin(angle) * (zz * ratio(xp, zz, t["AFN"], t["AFD"]) + 1.0)
    cosine = xp.cos(angle) * (z * ratio(xp, zz, t["AGN"], t["AGD"]))
    waves = (sine - cosine) * (1 / math.sqrt(math.pi)) / xp.sqrt(root)
    # falling, for x >= 2.09
    p = where_used(xp, x, right, 3.0)
    root = xp.sqrt(p)
    zeta = p * root * 2.0 / 3.0
    decay = ratio(xp, xp.reciprocal(zeta), t["AN"], t["AD"]) * (1 / math.sqrt(math.pi))
    decay = decay / (xp.sqrt(root) * xp.exp(zeta) * 2.0)
    decay = xp.where(x > 103.892, xp.zeros_like(x), decay)
    # Taylor's series between them
    s = where_used(xp, x, ~(left | right), 0.0)
    cube = s * s * s
    f, g = even, odd = xp.ones_like(s), s
    for k in range(1, 25):
        even = even * (cube / (3.0 * k * (3 * k - 1)))
        odd = odd * (cube / (3.0 * k * (3 * k + 1)))
        f, g = f + even, g + odd
    middle = f * 0.355028053887817239260 - g * 0.258819403792806798405
    out = xp.where(left, waves, xp.where(right, decay, middle))
    return xp.where(xp.isfinite(x), out, xp.full_like(x, math.nan))


@with_operators
def spherical_j0(xp: Any, x: Value) -> Value:
    z = x * x
    near = polynomial(xp, z, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    far = xp.sin(x) / x
    out = xp.where(abs(x) < 0.5, near, far)
    return xp.where(xp.isinf(x), xp.zeros_like(x), out)


@with_operators
def ndtri(xp: Any, y: Value) -> Value:
    """Return the inverse of the normal distribution function."""
    t = cephes.NDTRI
    upper = y > 1 - 0.13533528323661269189
    tail = xp.where(upper, 1.0 - y, y)
    central = tail > 0.13533528323661269189
    # near one half
    c = where_used(xp, tail, central, 0.5) - 0.5
    cc = c * c
    inner = c + c * cc * ratio(xp, cc, t["P0"], t["Q0"])
    inner = inner * math.sqrt(2 * math.pi)
    # in the tails
    x = xp.sqrt(xp.log(where_used(xp, tail, ~central, 0.1)) * -2.0)
    z = xp.reciprocal(x)
    rational = xp.where(x < 8, ratio(xp, z, t["P1"], t["Q1"]), ratio(xp, z, t["P2"], t["Q2"]))
    outer = x - xp.log(x) / x - z * rational
    outer = xp.where(upper, outer, -outer)
    out = xp.where(central, inner, outer)
    out = xp.where(y == 0, xp.full_like(y, -math.inf), xp.where(y == 1, xp.full_like(y, math.inf), out))
    outside = (y < 0) | (y > 1)
    return xp.where(outside, xp.full_like(y, math.nan), out)


@with_operators
def erfcx(xp: Any, x: Value) -> Value:
    """Compute exp(x^2) erfc(x): by this formula for x < 2, else by Laplace's continued fraction."""
    low = x < 2
    small, large = where_used(xp, x, low, 0.0), where_used(xp, x, ~low, 3.0)
    near = xp.exp(small * small) * xp.erfc(small)
    fraction = large
    for k in range(60, 0, -1):
        fraction = large + k / 2 / fraction
    far = 1 / math.sqrt(math.pi) / fraction
    return xp.where(xp.isnan(x), x, xp.where(low, near, far))
