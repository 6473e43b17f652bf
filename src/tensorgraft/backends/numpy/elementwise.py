"""Elementwise operations: ufuncs and SciPy's functions, looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.backends.numpy import special
from tensorgraft.backends.numpy.precision import NARROW, pair, widened
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, COMPOSITES, ELEMENTWISE, PREDICATES


def _log1p(x: Array) -> Array:
    """NumPy's complex log1p takes the logarithm of |1 + x|, which loses small x."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    a, b = x.real, x.imag
    near = 0.5 * np.log1p(a * (a + 2) + b * b)
    size, out = np.abs(x + 1), np.empty_like(x)
    out.real = np.where(np.maximum(np.abs(a), np.abs(b)) < 0.5, near, np.log(size))
    out.imag = np.arctan2(b, a + 1)  # not of x + 1, which has lost the sign of a zero
    return out


def _pow(x: Array, y: Array) -> Array:
    """NumPy refuses negative integer exponents; here they give the truncated reciprocal, as in C."""
    if np.result_type(y).kind != "i" or not np.any(np.less(y, 0)):
        return np.power(x, y)
    odd = np.where(np.bitwise_and(y, 1) == 1, x, x * x)
    inverse = np.where(np.abs(x) == 1, odd, np.zeros_like(x))
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, 0)))


# Those that NumPy knows by another name or otherwise; None: as a composite.
_OTHERS: dict[str, Callable[..., Any] | None] = {
    "rsqrt": lambda x: np.divide(1, np.sqrt(x)),  # C++ divides complex numbers so: 1 / 0 is infinity
    "log1p": _log1p,
    "round": np.rint,
    "real": np.real,
    "imag": np.imag,
    "pow": _pow,
    "sigmoid": lambda x: np.divide(1, np.exp(-x) + 1),
    "exp2": lambda x: np.exp2(x) if x.dtype.kind == "f" else np.power(2, x),
    "lgamma": special.lgamma,
    "reciprocal": None,  # as for integers; of zero with a warning
}


def _function(name: str) -> Callable[..., Any] | None:
    if name in _OTHERS:
        return _OTHERS[name]
    return getattr(np, name, None) or (None if name in COMPOSITES else special.function(name))


# Right in the narrow dtypes themselves: a widening would cost time (or, for nextafter, meaning).
_EXACT = {"abs", "negative", "ceil", "floor", "trunc", "round", "nextafter", "copysign"}
_EXACT |= {*PREDICATES, *COMPARISONS}


def _unary(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    fn = fn if name in _EXACT else widened(fn)

    def method(self: Any, x: Array, /) -> Array:
        return fn(x)

    return method


def _binary(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    exact = name in _EXACT

    def method(self: Any, x: Array, y: Array, /) -> Array:
        x, y = pair(x, y)
        dtype = x.dtype
        if not exact and dtype in NARROW:
            return fn(x.astype(np.float32), y.astype(np.float32)).astype(dtype)
        return fn(x, y)

    return method


class NumpyElementwise:
    for _name in ELEMENTWISE:
        if (_fn := _function(_name)) is not None:
            locals()[_name] = (_binary if _name in BINARY or _name in COMPARISONS else _unary)(_name, _fn)
    del _name, _fn

    def where(self, condition: Array, x: Array, y: Array, /) -> Array:
        return np.where(condition, *pair(x, y))

    def complex(self, real: Array, imag: Array, /) -> Array:
        real, imag = pair(real, imag)
        out = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtypes.complex_dtype(real.dtype))
        out.real, out.imag = real, imag
        return out

    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        source = x.dtype
        if source == dtype:
            return x
        if source.kind == "c" and dtype.kind not in "cb":
            return self.astype(x.real, dtype)
        if source in NARROW and dtype != dtypes.float32:
            x, source = x.astype(np.float32), dtypes.float32
        if dtypes.is_floating(source) and dtype.kind in "iu" and (dtype.itemsize < 4 or dtype == dtypes.uint32):
            x = x.astype(np.int64)  # a C cast to a narrow integer is undefined where the value does not fit
        return x.astype(dtype)

    def bitcast(self, x: Array, dtype: np.dtype, /) -> Array:
        return np.ascontiguousarray(x).view(dtype)

    def integer_floor_divide(self, x: Array, y: Array, /) -> Array:
        return np.floor_divide(*pair(x, y))

    # ---- composites ------------------------------------------------------------------------------------------------

    def floor_divide(self, x: Array, y: Array) -> Array:
        x, y = pair(x, y)
        if x.dtype in NARROW:
            return np.floor_divide(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
        return np.floor_divide(x, y)
