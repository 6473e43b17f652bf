"""Special functions of mathematics. Those that TensorFlow approximates differently are computed in double precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes, integrals, pathwise, special
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "BesselI0": special.i0,
    "BesselI1": special.i1,
    "BesselJ0": functools.partial(special.j0, monic=True),
    "BesselJ1": functools.partial(special.j1, monic=True),
    "Ndtri": special.ndtri,
    "Dawsn": integrals.dawson,
    "Expint": lambda xp, x: xp.where(xp.less(x, 0), xp.full_like(x, math.nan), integrals.exponential(xp, x)),
    "FresnelSin": lambda xp, x: integrals.fresnel(xp, x)[0],
    "FresnelCos": lambda xp, x: integrals.fresnel(xp, x)[1],
    "Spence": integrals.spence,
}


def _in_double(fn: Callable[..., Array]) -> Callable[..., Array]:
    def run(xp: Backend, x: Array) -> Array:
        return xp.astype(fn(xp, xp.astype(x, dtypes.float64)), xp.dtype_of(x))

    return run


for _name, _fn in FUNCTIONS.items():
    rule(_name)(_in_double(_fn))


# ---- values at poles and at the ends of domains, where libraries differ ----------------------------------------------


def _first_case(xp: Any, y: AnyArray, *cases: tuple[AnyArray, float | AnyArray]) -> AnyArray:
    """Return the value of the first (condition, value) that holds, or `y` if none does, for each element."""
    for condition, value in reversed(cases):
        y = xp.where(condition, xp.full_like(y, value) if isinstance(value, float | int) else value, y)
    return y


def _left_of_zero(value: float, fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda xp, x: _first_case(xp, fn(xp, x), (xp.less(x, 0), value))


SECOND_KIND = {
    "BesselY0": _left_of_zero(-math.inf, functools.partial(special.y0, monic=True)),
    "BesselK0": _left_of_zero(math.inf, special.modified_k(0, False)),
    "BesselK1": _left_of_zero(math.inf, special.modified_k(1, False)),
    "BesselK0e": _left_of_zero(math.inf, special.modified_k(0, True)),
    "BesselK1e": _left_of_zero(math.inf, special.modified_k(1, True)),
}
for _name, _fn in SECOND_KIND.items():
    rule(_name)(_in_double(_fn))


@rule("BesselY1")
def bessel_y1(xp: Backend, x: Array) -> Array:
    y = _in_double(_left_of_zero(-math.inf, functools.partial(special.y1, monic=True)))(xp, x)
    return y if xp.dtype_of(x) == dtypes.float64 else _first_case(xp, y, (xp.equal(x, 0), math.nan))


@with_operators
def _is_pole(xp: ValueBackend, x: Value) -> Value:
    return (x <= 0) & (x == xp.floor(x))


@rule("Erfinv")
def erf_inv(xp: Backend, x: Array) -> Array:
    return _first_case(xp, xp.erf_inv(x), (xp.equal(x, 0), 0))  # not -0


@rule("Digamma")
def digamma(xp: Any, x: AnyArray) -> AnyArray:
    return _first_case(xp, xp.digamma(x), (_is_pole(xp, x), math.nan))


@rule("Zeta")
@with_operators
def zeta(xp: ValueBackend, s: Value, q: Value) -> Value:
    """Hurwitz's zeta function. At a pole it is infinite for even powers, whose terms have one sign, and NaN for others;
    for negative `q` only integer powers are defined."""
    pole, is_integer = _is_pole(xp, q), s == xp.floor(s)
    even = xp.floor(s * 0.5) * 2 == s
    return _first_case(
        xp,
        xp.zeta(s, q),
        (s == 1, math.inf),
        (~(s >= 1), math.nan),
        (pole & even, math.inf),
        (pole, math.nan),
        ((q <= 0) & ~is_integer, math.nan),
        (xp.isinf(s) & (q < 1), math.inf),
        (xp.isinf(s) & (q == 1), 1),
        ((q == math.inf) | (xp.isinf(s) & (q > 1)), 0),
    )


@rule("Polygamma")
@with_operators
def polygamma(xp: ValueBackend, n: Value, x: Value) -> Value:
    """Compute (-1)^(n+1) n! zeta(n + 1, x); NaN for orders that are not natural numbers."""
    dtype = x.dtype
    n, x = (xp.astype(v, dtypes.float64) for v in (n, x))
    order, half = n + 1, n * 0.5
    big = xp.exp(xp.lgamma(order)) * zeta(xp, order, x)
    even = (half == xp.floor(half)) & xp.isfinite(n)
    y = _first_case(
        xp, xp.where(even, -big, big), (~((n == xp.floor(n)) & (n >= 0)), math.nan), (n == 0, digamma(xp, x))
    )
    return xp.astype(y, dtype)


@with_operators
def _gamma_undefined(xp: ValueBackend, a: Value, x: Value) -> Value:
    """Return a mask of the arguments for which the incomplete gamma function is not defined."""
    return ~((a > 0) & (x >= 0))


@rule("Igamma")
def igamma(xp: Backend, a: Array, x: Array) -> Array:
    infinite, last = xp.isinf(a), xp.isinf(x)
    return _first_case(
        xp, xp.igamma(a, x),
        (xp.equal(x, 0), 0), (_gamma_undefined(xp, a, x), math.nan), (infinite, 0), (last, 1),
    )  # fmt: skip


@rule("Igammac")
def igammac(xp: Backend, a: Array, x: Array) -> Array:
    infinite, last = xp.isinf(a), xp.isinf(x)
    return _first_case(
        xp, xp.igammac(a, x), (_gamma_undefined(xp, a, x), math.nan), (last, 0), (infinite, 1), (xp.equal(x, 0), 1)
    )


@rule("Betainc")
def betainc(xp: Backend, a: Array, b: Array, x: Array) -> Array:
    return xp.astype(integrals.incomplete_beta(xp, *integrals.as_doubles(xp, a, b, x)), xp.dtype_of(x))


@rule("IgammaGradA")
def igamma_grad_a(xp: Backend, a: Array, x: Array) -> Array:
    """Return dP(a, x)/da = -(dx/da) dP/dx: the derivative of a sample of the gamma distribution (`pathwise.gamma`)
    times the density."""
    dtype = xp.dtype_of(x)
    a, x = integrals.as_doubles(xp, a, x)
    product = xp.multiply(pathwise.gamma(xp, a, x), xp.exp(integrals.log_density(xp, a, x)))
    return xp.astype(xp.where(xp.equal(x, 0), xp.zeros_like(x), xp.negative(product)), dtype)


@rule("RandomGammaGrad")
def random_gamma_grad(xp: Backend, alpha: Array, sample: Array) -> Array:
    a, x = integrals.as_doubles(xp, alpha, sample)
    return xp.astype(pathwise.gamma(xp, a, x), xp.dtype_of(sample))


@rule("PopulationCount")
@with_operators
def population_count(xp: ValueBackend, x: Value) -> Value:
    dtype = x.dtype
    total, one_like = xp.zeros_like(x), xp.ones_like(x)
    for bit in range(dtype.itemsize * 8):
        shifted = x >> xp.full_like(x, bit) if bit else x
        total = total + (shifted & one_like)
    return xp.astype(total, dtypes.uint8)
