"""Special functions where TensorFlow has no value at a pole or a limit, and SciPy has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import dtype_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def _select(condition: Array, x: Any, y: Any) -> Array:
    return tf.where(condition, x, y)


def _number(value: float, like: Array) -> Array:
    return tf.constant(value, like.dtype)


def signbit(x: Array) -> Array:
    bits = np.dtype(f"int{8 * dtype_of(x).itemsize}")
    return raw.Bitcast(input=x, type=tf.as_dtype(bits)) < 0


def log2(x: Array) -> Array:
    """Return the logarithm, exact of powers of two: log(8) / log(2) is not 3 in every precision."""
    y = raw.Log(x=x) / _number(np.log(2.0), x)
    dtype = dtype_of(x)
    if dtypes.is_complex(dtype):
        return y
    info = dtypes.finfo(dtype)
    power = raw.Round(x=y)
    is_normal = raw.LogicalAnd(x=power >= info.minexp, y=power < info.maxexp)
    bits = np.dtype(f"int{8 * dtype.itemsize}")
    exponent = raw.Cast(x=_select(is_normal, power, tf.zeros_like(power)), DstT=tf.as_dtype(bits))
    exact = raw.Bitcast(input=(exponent + (info.maxexp - 1)) * (1 << info.nmant), type=x.dtype)
    return _select(raw.LogicalAnd(x=is_normal, y=raw.Equal(x=exact, y=x)), power, y)


def log10(x: Array) -> Array:
    return raw.Log(x=x) / _number(np.log(10.0), x)


def erf(x: Array) -> Array:
    if dtype_of(x) != dtypes.float64:
        return raw.Erf(x=x)
    return _select(raw.Abs(x=x) > 9, raw.Sign(x=x), raw.Erf(x=x))  # TensorFlow's is NaN at infinities


def erf_inv(x: Array) -> Array:
    """Compute erf_inv on the negative side, where TensorFlow's (x + 1) / 2 loses nothing."""
    return raw.Sign(x=x) * -raw.Erfinv(x=-raw.Abs(x=x))


def lgamma(x: Array) -> Array:
    """Compute lgamma in float64: XLA's in float32 is an eps off zero at 1, where everybody else's is zero."""
    wide = raw.Lgamma(x=raw.Cast(x=x, DstT=tf.float64))
    return raw.Cast(x=wide, DstT=x.dtype)


def digamma(x: Array) -> Array:
    pole = _select(signbit(x), _number(np.inf, x), _number(-np.inf, x))
    return _select(raw.Equal(x=x, y=_number(0, x)), pole, raw.Digamma(x=x))


def _pair(x: Array, y: Array) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(x._shape_tuple(), y._shape_tuple())
    return tf.broadcast_to(x, shape), tf.broadcast_to(y, shape)


def _incomplete(inner: Callable[[Array, Array], Array], a: Array, x: Array, start: float) -> Array:
    """Compute a regularised incomplete gamma function that is `start` at x = 0 and 1 - start at infinity."""
    a, x = _pair(a, x)
    zero, one_like, inf, nan = (_number(value, x) for value in (0, 1, np.inf, np.nan))
    first, last = _number(start, x), _number(1 - start, x)
    a_zero, x_zero = raw.Equal(x=a, y=zero), raw.Equal(x=x, y=zero)
    a_infinite, x_infinite = raw.Equal(x=a, y=inf), raw.Equal(x=x, y=inf)
    plain = (a > 0) & (x > 0) & raw.LogicalNot(x=a_infinite | x_infinite)
    out = _select(x_infinite, last, inner(_select(plain, a, one_like), _select(plain, x, one_like)))
    out = _select(a_infinite, _select(x_infinite, nan, first), out)
    out = _select(x_zero, first, out)
    out = _select(a_zero, _select(x > 0, last, nan), out)
    return _select((a >= 0) & (x >= 0), out, nan)


def igamma(a: Array, x: Array) -> Array:
    return _incomplete(lambda a, x: raw.Igamma(a=a, x=x), a, x, 0)


def igammac(a: Array, x: Array) -> Array:
    return _incomplete(lambda a, x: raw.Igammac(a=a, x=x), a, x, 1)


_LONGEST = 100_000  # terms; below -_LONGEST the function is not summed


def _leading_terms(s: Array, q: Array) -> tuple[Array, Array]:
    """Return (the terms with q + n < 1, the first q + n that is not): TensorFlow's zeta is right from there on."""

    def below(a: Array) -> Array:
        return (a < 1) & (a > -_LONGEST)

    def step(total: Array, a: Array) -> tuple[Array, Array]:
        is_below = below(a)
        return total + _select(is_below, raw.Pow(x=a, y=-s), _number(0, a)), _select(is_below, a + 1, a)

    return tf.while_loop(lambda _, a: tf.reduce_any(below(a)), step, (tf.zeros_like(q), q))


def zeta(s: Array, q: Array) -> Array:
    """Hurwitz's zeta function, sum over n of (q + n)^-s: poles at s = 1 and at q = 0, -1, ..., NaN for s < 1."""
    s, q = _pair(s, q)
    inf, nan = _number(np.inf, q), _number(np.nan, q)
    is_integer = raw.IsFinite(x=q) & raw.Equal(x=q, y=raw.Floor(x=q))
    head, shifted = _leading_terms(s, q)
    safe = _select((s > 1) & (shifted > 0), shifted, _number(1, q))
    out = _select(raw.Equal(x=q, y=inf), _number(0, q), head + raw.Zeta(x=_select(s > 1, s, _number(2, s)), q=safe))
    at_infinity = _select(q < 1, inf, _select(raw.Equal(x=q, y=_number(1, q)), _number(1, q), _number(0, q)))
    out = _select(raw.Equal(x=s, y=inf), at_infinity, out)
    out = _select((q <= 0) & is_integer, inf, out)
    out = _select(raw.Equal(x=s, y=_number(1, s)), inf, _select(s < 1, nan, out))
    return _select(raw.IsNan(x=s) | raw.IsNan(x=q), nan, out)


def nextafter(x: Array, y: Array) -> Array:
    if dtype_of(x).itemsize > 2:
        return raw.NextAfter(x1=x, x2=y)
    x, y = _pair(x, y)
    bits = raw.Bitcast(input=x, type=tf.int16)
    outward = raw.Equal(x=x < y, y=x > _number(0, x))  # from zero
    moved = raw.Bitcast(
        input=bits + _select(outward, tf.constant(1, tf.int16), tf.constant(-1, tf.int16)), type=x.dtype
    )
    sign = _select(y > 0, tf.constant(0, tf.int16), tf.constant(-(2**15), tf.int16))
    least = raw.Bitcast(input=raw.BitwiseOr(x=sign, y=tf.constant(1, tf.int16)), type=x.dtype)
    out = _select(raw.Equal(x=x, y=_number(0, x)), least, moved)
    out = _select(raw.Equal(x=x, y=y), y, out)
    return _select(raw.IsNan(x=x) | raw.IsNan(x=y), _number(np.nan, x), out)


__all__ = ["digamma", "erf", "erf_inv", "igamma", "igammac", "lgamma", "log2", "log10", "nextafter", "signbit", "zeta"]
