"""Rules of elementwise primitives: (backend, result, cotangent, *operands) -> one thunk an operand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

LN2, LN10 = math.log(2), math.log(10)


def unbroadcast(xp: Any, g: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an operand of `shape` was repeated."""
    here = xp.shape(g)
    if here == shape:
        return g
    lead = len(here) - len(shape)
    axes = (*range(lead), *(lead + a for a, n in enumerate(shape) if n == 1 and here[lead + a] != 1))
    return xp.reshape(xp.sum(g, axis=axes), shape)


def halves(xp: Any, chosen: Array, other: Array, g: Array) -> Array:
    """The share of an operand in a maximum or minimum: all, or half of it where both are equal."""
    share = xp.where(xp.equal(chosen, other), xp.full((), 0.5, xp.dtype_of(g)), xp.full((), 1, xp.dtype_of(g)))
    return xp.multiply(g, share)


def _only(xp: Any, holds: Array, g: Array) -> Array:
    return xp.where(holds, g, xp.full((), 0, xp.dtype_of(g)))


def _nonzero(xp: Any, x: Array) -> Array:
    """`x` with ones in place of zeros."""
    return xp.where(xp.equal(x, xp.full((), 0, xp.dtype_of(x))), xp.full((), 1, xp.dtype_of(x)), x)


def _is_zero(xp: Any, x: Array) -> Array:
    return xp.equal(x, xp.full((), 0, xp.dtype_of(x)))


def _abs(xp: Any, y: Array, g: Array, x: Array) -> Array:
    if dtypes.is_complex(xp.dtype_of(x)):
        return xp.multiply(xp.complex(g, xp.zeros_like(g)), xp.conj(xp.sign(x)))
    return xp.multiply(g, xp.sign(x))


def _i1e(xp: Any, y: Array, g: Array, x: Array) -> Array:
    safe = _nonzero(xp, x)
    slope = xp.subtract(xp.bessel_i0e(x), xp.multiply(y, xp.add(xp.sign(x), xp.divide(1, safe))))
    return xp.multiply(g, xp.where(_is_zero(xp, x), xp.full((), 0.5, xp.dtype_of(x)), slope))


# name -> (backend, result, cotangent, operand) -> the operand's cotangent
UNARY: dict[str, Callable[[Any, Array, Array, Array], Array]] = {
    "abs": _abs,
    "negative": lambda xp, y, g, x: xp.negative(g),
    "acos": lambda xp, y, g, x: xp.negative(xp.divide(g, xp.sqrt(xp.subtract(1, xp.multiply(x, x))))),
    "acosh": lambda xp, y, g, x: xp.divide(g, xp.multiply(xp.sqrt(xp.subtract(x, 1)), xp.sqrt(xp.add(x, 1)))),
    "asin": lambda xp, y, g, x: xp.divide(g, xp.sqrt(xp.subtract(1, xp.multiply(x, x)))),
    "asinh": lambda xp, y, g, x: xp.divide(g, xp.sqrt(xp.add(xp.multiply(x, x), 1))),
    "atan": lambda xp, y, g, x: xp.divide(g, xp.add(xp.multiply(x, x), 1)),
    "atanh": lambda xp, y, g, x: xp.divide(g, xp.subtract(1, xp.multiply(x, x))),
    "cos": lambda xp, y, g, x: xp.negative(xp.multiply(g, xp.sin(x))),
    "cosh": lambda xp, y, g, x: xp.multiply(g, xp.sinh(x)),
    "sin": lambda xp, y, g, x: xp.multiply(g, xp.cos(x)),
    "sinh": lambda xp, y, g, x: xp.multiply(g, xp.cosh(x)),
    "tan": lambda xp, y, g, x: xp.multiply(g, xp.add(xp.multiply(y, y), 1)),
    "tanh": lambda xp, y, g, x: xp.multiply(g, xp.subtract(1, xp.multiply(y, y))),
    "exp": lambda xp, y, g, x: xp.multiply(g, y),
    "expm1": lambda xp, y, g, x: xp.multiply(g, xp.add(y, 1)),
    "log": lambda xp, y, g, x: xp.divide(g, x),
    "log1p": lambda xp, y, g, x: xp.divide(g, xp.add(x, 1)),
    "log2": lambda xp, y, g, x: xp.divide(g, xp.multiply(x, LN2)),
    "log10": lambda xp, y, g, x: xp.divide(g, xp.multiply(x, LN10)),
    "sqrt": lambda xp, y, g, x: xp.divide(g, xp.multiply(y, 2)),
    "rsqrt": lambda xp, y, g, x: xp.multiply(g, xp.divide(xp.multiply(y, -0.5), x)),
    "erf": lambda xp, y, g, x: xp.multiply(g, xp.multiply(xp.exp(xp.negative(xp.square(x))), 2 / math.sqrt(math.pi))),
    "erfc": lambda xp, y, g, x: xp.multiply(g, xp.multiply(xp.exp(xp.negative(xp.square(x))), -2 / math.sqrt(math.pi))),
    "erf_inv": lambda xp, y, g, x: xp.multiply(g, xp.multiply(xp.exp(xp.square(y)), math.sqrt(math.pi) / 2)),
    "lgamma": lambda xp, y, g, x: xp.multiply(g, xp.digamma(x)),
    "digamma": lambda xp, y, g, x: xp.multiply(g, xp.polygamma(xp.ones_like(x), x)),
    "bessel_i0e": lambda xp, y, g, x: xp.multiply(g, xp.subtract(xp.bessel_i1e(x), xp.multiply(xp.sign(x), y))),
    "bessel_i1e": _i1e,
    "real": lambda xp, y, g, x: xp.complex(g, xp.zeros_like(g)),
    "imag": lambda xp, y, g, x: xp.complex(xp.zeros_like(g), xp.negative(g)),
    "conj": lambda xp, y, g, x: xp.conj(g),
}
FLAT = ("sign", "ceil", "floor", "trunc", "round")  # steps


def _pow_base(xp: Any, y: Array, g: Array, a: Array, b: Array) -> Array:
    slope = xp.multiply(b, xp.pow(a, xp.where(_is_zero(xp, b), xp.ones_like(b), xp.subtract(b, 1))))
    return xp.multiply(g, slope)


def _pow_exponent(xp: Any, y: Array, g: Array, a: Array, b: Array) -> Array:
    return xp.multiply(g, _only(xp, xp.logical_not(_is_zero(xp, xp.add(a, xp.zeros_like(b)))),
                                xp.multiply(xp.log(_nonzero(xp, a)), y)))  # fmt: skip


def _atan2_scale(xp: Any, g: Array, a: Array, b: Array) -> Array:
    return xp.divide(g, xp.add(xp.multiply(a, a), xp.multiply(b, b)))


def _igamma_slope(xp: Any, g: Array, a: Array, x: Array) -> Array:
    log = xp.subtract(xp.subtract(xp.multiply(xp.subtract(a, 1), xp.log(x)), x), xp.lgamma(a))
    return xp.multiply(g, xp.exp(log))


def _unknown(name: str, operand: str) -> Callable[..., Array]:
    def raises(*_: Any) -> Array:
        raise NotImplementedError(f"{name} has no derivative in {operand}")

    return raises


Pair = tuple[Callable[..., Array] | None, Callable[..., Array] | None]
# name -> of each operand: (backend, result, cotangent, a, b) -> its cotangent, before broadcasting is undone
BINARY: dict[str, Pair] = {
    "add": (lambda xp, y, g, a, b: g, lambda xp, y, g, a, b: g),
    "subtract": (lambda xp, y, g, a, b: g, lambda xp, y, g, a, b: xp.negative(g)),
    "multiply": (lambda xp, y, g, a, b: xp.multiply(g, b), lambda xp, y, g, a, b: xp.multiply(g, a)),
    "divide": (
        lambda xp, y, g, a, b: xp.divide(g, b),
        lambda xp, y, g, a, b: xp.negative(xp.multiply(g, xp.divide(y, b))),
    ),
    "fmod": (
        lambda xp, y, g, a, b: g,
        lambda xp, y, g, a, b: xp.negative(xp.multiply(g, xp.trunc(xp.divide(a, b)))),
    ),
    "pow": (_pow_base, _pow_exponent),
    "atan2": (
        lambda xp, y, g, a, b: xp.multiply(_atan2_scale(xp, g, a, b), b),
        lambda xp, y, g, a, b: xp.negative(xp.multiply(_atan2_scale(xp, g, a, b), a)),
    ),
    "nextafter": (None, None),
    "maximum": (
        lambda xp, y, g, a, b: _only(xp, xp.greater_equal(a, b), halves(xp, a, b, g)),
        lambda xp, y, g, a, b: _only(xp, xp.greater_equal(b, a), halves(xp, a, b, g)),
    ),
    "minimum": (
        lambda xp, y, g, a, b: _only(xp, xp.less_equal(a, b), halves(xp, a, b, g)),
        lambda xp, y, g, a, b: _only(xp, xp.less_equal(b, a), halves(xp, a, b, g)),
    ),
    "igamma": (_unknown("igamma", "its order"), lambda xp, y, g, a, b: _igamma_slope(xp, g, a, b)),
    "igammac": (_unknown("igammac", "its order"), lambda xp, y, g, a, b: xp.negative(_igamma_slope(xp, g, a, b))),
    "zeta": (
        _unknown("zeta", "its exponent"),
        lambda xp, y, g, a, b: xp.multiply(g, xp.negative(xp.multiply(a, xp.zeta(xp.add(a, 1), b)))),
    ),
}


def _unary_rule(slope: Callable[..., Array]) -> Callable[..., Any]:
    return lambda xp, y, g, x: [lambda: slope(xp, y, g, x)]


def _binary_rule(pair: Pair) -> Callable[..., Any]:
    def rule(xp: Any, y: Array, g: Array, a: Any, b: Any) -> list[Any]:
        pulls: list[Any] = []
        operands = [_array(xp, v, y) for v in (a, b)]
        for v, slope in zip((a, b), pair, strict=True):
            if not xp.is_array(v):  # a Python scalar is no operand
                continue
            if slope is None:
                pulls.append(None)
            else:
                pulls.append(lambda v=v, slope=slope: unbroadcast(xp, slope(xp, y, g, *operands), xp.shape(v)))
        return pulls

    return rule


def _array(xp: Any, v: Any, like: Array) -> Array:
    return v if xp.is_array(v) else xp.full((), v, xp.dtype_of(like))


def _where(xp: Any, y: Array, g: Array, condition: Array, a: Any, b: Any) -> list[Any]:
    zero = xp.full((), 0, xp.dtype_of(g))
    pulls: list[Any] = [None]
    if xp.is_array(a):
        pulls.append(lambda: unbroadcast(xp, xp.where(condition, g, zero), xp.shape(a)))
    if xp.is_array(b):
        pulls.append(lambda: unbroadcast(xp, xp.where(condition, zero, g), xp.shape(b)))
    return pulls


def _complex(xp: Any, y: Array, g: Array, real: Array, imag: Array) -> list[Any]:
    return [
        lambda: unbroadcast(xp, xp.real(g), xp.shape(real)),
        lambda: unbroadcast(xp, xp.negative(xp.imag(g)), xp.shape(imag)),
    ]


def _astype(xp: Any, y: Array, g: Array, x: Array, dtype: np.dtype) -> list[Any]:
    here = xp.dtype_of(x)
    return [(lambda: xp.astype(g, here)) if dtypes.is_inexact(here) else None]


def _bitcast(xp: Any, y: Array, g: Array, x: Array, dtype: np.dtype) -> list[Any]:
    """Linear between a complex dtype and the real one of its parts; bits of others have no derivative."""
    here = xp.dtype_of(x)
    if here == dtype:
        return [lambda: g]
    if dtypes.is_complex(here) and dtype == dtypes.real_dtype(here):
        return [lambda: xp.conj(xp.bitcast(g, here))]
    if dtypes.is_complex(dtype) and here == dtypes.real_dtype(dtype):
        return [lambda: xp.bitcast(xp.conj(g), here)]
    return [None]


RULES: dict[str, Callable[..., Any]] = {
    **{name: _unary_rule(slope) for name, slope in UNARY.items()},
    **{name: (lambda xp, y, g, x: [None]) for name in FLAT},
    **{name: _binary_rule(pair) for name, pair in BINARY.items()},
    "where": _where,
    "complex": _complex,
    "astype": _astype,
    "bitcast": _bitcast,
    "copy": lambda xp, y, g, x: [lambda: g],
}
