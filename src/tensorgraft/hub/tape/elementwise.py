"""Rules of elementwise primitives: (backend, result, cotangent, *operands) -> one thunk an operand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend

LN2, LN10 = math.log(2), math.log(10)


def unbroadcast(xp: Any, g: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an operand of `shape` was repeated."""
    g_shape = xp.shape(g)
    if g_shape == shape:
        return g
    lead = len(g_shape) - len(shape)
    axes = (*range(lead), *(lead + a for a, n in enumerate(shape) if n == 1 and g_shape[lead + a] != 1))
    return xp.reshape(xp.sum(g, axis=axes), shape)


def halves(xp: Any, selected: Value, other: Value, g: Value) -> Value:
    """Return the share of an operand in a maximum or minimum: all, or half of it where both are equal."""
    return g * xp.where(selected == other, xp.full((), 0.5, g.dtype), 1)


def _abs(xp: Any, y: Value, g: Value, x: Value) -> Value:
    if dtypes.is_complex(x.dtype):
        return xp.complex(g, xp.zeros_like(g)) * xp.conj(xp.sign(x))
    return g * xp.sign(x)


def _i1e(xp: Any, y: Value, g: Value, x: Value) -> Value:
    slope = xp.bessel_i0e(x) - y * (xp.sign(x) + 1 / xp.where(x == 0, 1, x))
    return g * xp.where(x == 0, 0.5, slope)


# name -> (backend, result, cotangent, operand) -> the operand's cotangent
UNARY: dict[str, Callable[[Any, Value, Value, Value], Value]] = {
    "abs": _abs,
    "negative": lambda xp, y, g, x: -g,
    "acos": lambda xp, y, g, x: -(g / xp.sqrt(1 - x * x)),
    "acosh": lambda xp, y, g, x: g / (xp.sqrt(x - 1) * xp.sqrt(x + 1)),
    "asin": lambda xp, y, g, x: g / xp.sqrt(1 - x * x),
    "asinh": lambda xp, y, g, x: g / xp.sqrt(x * x + 1),
    "atan": lambda xp, y, g, x: g / (x * x + 1),
    "atanh": lambda xp, y, g, x: g / (1 - x * x),
    "cos": lambda xp, y, g, x: -(g * xp.sin(x)),
    "cosh": lambda xp, y, g, x: g * xp.sinh(x),
    "sin": lambda xp, y, g, x: g * xp.cos(x),
    "sinh": lambda xp, y, g, x: g * xp.cosh(x),
    "tan": lambda xp, y, g, x: g * (y * y + 1),
    "tanh": lambda xp, y, g, x: g * (1 - y * y),
    "exp": lambda xp, y, g, x: g * y,
    "expm1": lambda xp, y, g, x: g * (y + 1),
    "log": lambda xp, y, g, x: g / x,
    "log1p": lambda xp, y, g, x: g / (x + 1),
    "log2": lambda xp, y, g, x: g / (x * LN2),
    "log10": lambda xp, y, g, x: g / (x * LN10),
    "sqrt": lambda xp, y, g, x: g / (y * 2),
    "rsqrt": lambda xp, y, g, x: g * (y * -0.5 / x),
    "erf": lambda xp, y, g, x: g * (xp.exp(-xp.square(x)) * (2 / math.sqrt(math.pi))),
    "erfc": lambda xp, y, g, x: g * (xp.exp(-xp.square(x)) * (-2 / math.sqrt(math.pi))),
    "erf_inv": lambda xp, y, g, x: g * (xp.exp(xp.square(y)) * (math.sqrt(math.pi) / 2)),
    "lgamma": lambda xp, y, g, x: g * xp.digamma(x),
    "digamma": lambda xp, y, g, x: g * xp.polygamma(xp.ones_like(x), x),
    "bessel_i0e": lambda xp, y, g, x: g * (xp.bessel_i1e(x) - xp.sign(x) * y),
    "bessel_i1e": _i1e,
    "real": lambda xp, y, g, x: xp.complex(g, xp.zeros_like(g)),
    "imag": lambda xp, y, g, x: xp.complex(xp.zeros_like(g), -g),
    "conj": lambda xp, y, g, x: xp.conj(g),
}
FLAT = ("sign", "ceil", "floor", "trunc", "round")  # steps


def _pow_base(xp: Any, y: Value, g: Value, a: Value, b: Value) -> Value:
    return g * (b * a ** xp.where(b == 0, 1, b - 1))


def _pow_exponent(xp: Any, y: Value, g: Value, a: Value, b: Value) -> Value:
    return g * xp.where(a + xp.zeros_like(b) != 0, xp.log(xp.where(a == 0, 1, a)) * y, 0)


def _atan2_scale(xp: Any, g: Value, a: Value, b: Value) -> Value:
    return g / (a * a + b * b)


def _igamma_slope(xp: Any, g: Value, a: Value, x: Value) -> Value:
    return g * xp.exp((a - 1) * xp.log(x) - x - xp.lgamma(a))


def _unknown(name: str, operand: str) -> Callable[..., Value]:
    def raises(*_: Any) -> Value:
        raise NotImplementedError(f"{name} has no derivative in {operand}")

    return raises


Pair = tuple[Callable[..., Value] | None, Callable[..., Value] | None]
# name -> of each operand: (backend, result, cotangent, a, b) -> its cotangent, before broadcasting is undone
BINARY: dict[str, Pair] = {
    "add": (lambda xp, y, g, a, b: g, lambda xp, y, g, a, b: g),
    "subtract": (lambda xp, y, g, a, b: g, lambda xp, y, g, a, b: -g),
    "multiply": (lambda xp, y, g, a, b: g * b, lambda xp, y, g, a, b: g * a),
    "divide": (lambda xp, y, g, a, b: g / b, lambda xp, y, g, a, b: -(g * (y / b))),
    "fmod": (lambda xp, y, g, a, b: g, lambda xp, y, g, a, b: -(g * xp.trunc(a / b))),
    "pow": (_pow_base, _pow_exponent),
    "atan2": (
        lambda xp, y, g, a, b: _atan2_scale(xp, g, a, b) * b,
        lambda xp, y, g, a, b: -(_atan2_scale(xp, g, a, b) * a),
    ),
    "nextafter": (None, None),
    "maximum": (
        lambda xp, y, g, a, b: xp.where(a >= b, halves(xp, a, b, g), 0),
        lambda xp, y, g, a, b: xp.where(b >= a, halves(xp, a, b, g), 0),
    ),
    "minimum": (
        lambda xp, y, g, a, b: xp.where(a <= b, halves(xp, a, b, g), 0),
        lambda xp, y, g, a, b: xp.where(b <= a, halves(xp, a, b, g), 0),
    ),
    "igamma": (_unknown("igamma", "its order"), lambda xp, y, g, a, b: _igamma_slope(xp, g, a, b)),
    "igammac": (_unknown("igammac", "its order"), lambda xp, y, g, a, b: -_igamma_slope(xp, g, a, b)),
    "zeta": (_unknown("zeta", "its exponent"), lambda xp, y, g, a, b: g * -(a * xp.zeta(a + 1, b))),
}


def _unary_rule(slope: Callable[..., Value]) -> Callable[..., Any]:
    return lambda xp, y, g, x: [lambda: _sloped(slope, xp, y, g, x)]


def _sloped(slope: Callable[..., Value], xp: Backend, *arrays: Array) -> Array:
    """Return the array of a formula's value. (`with_operators`, for a formula of arrays alone.)"""
    return slope(ValueBackend(xp), *[Value(a, xp) for a in arrays]).array


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
                pulls.append(lambda v=v, slope=slope: unbroadcast(xp, _sloped(slope, xp, y, g, *operands), xp.shape(v)))
        return pulls

    return rule


def _array(xp: Any, v: Any, like: Array) -> Array:
    return v if xp.is_array(v) else xp.full((), v, xp.dtype_of(like))


def _where(xp: Any, y: Array, g: Array, condition: Array, a: Any, b: Any) -> list[Any]:
    zero = xp.full((), 0, xp.dtype_of(g))
    pull_a = [lambda: unbroadcast(xp, xp.where(condition, g, zero), xp.shape(a))] if xp.is_array(a) else []
    pull_b = [lambda: unbroadcast(xp, xp.where(condition, zero, g), xp.shape(b))] if xp.is_array(b) else []
    return [None, *pull_a, *pull_b]


def _complex(xp: Any, y: Array, g: Array, real: Array, imag: Array) -> list[Any]:
    return [
        lambda: unbroadcast(xp, xp.real(g), xp.shape(real)),
        lambda: unbroadcast(xp, xp.negative(xp.imag(g)), xp.shape(imag)),
    ]


def _astype(xp: Any, y: Array, g: Array, x: Array, dtype: np.dtype) -> list[Any]:
    x_dtype = xp.dtype_of(x)
    return [(lambda: xp.astype(g, x_dtype)) if dtypes.is_inexact(x_dtype) else None]


def _bitcast(xp: Any, y: Array, g: Array, x: Array, dtype: np.dtype) -> list[Any]:
    """Linear between a complex dtype and the real one of its parts; bits of others have no derivative."""
    x_dtype = xp.dtype_of(x)
    if x_dtype == dtype:
        return [lambda: g]
    if dtypes.is_complex(x_dtype) and dtype == dtypes.real_dtype(x_dtype):
        return [lambda: xp.conj(xp.bitcast(g, x_dtype))]
    if dtypes.is_complex(dtype) and x_dtype == dtypes.real_dtype(dtype):
        return [lambda: xp.bitcast(xp.conj(g), x_dtype)]
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
