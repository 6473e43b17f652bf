"""Reductions and scans along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import FUNCTIONS, imag, make_complex, nan_wins, real, select
from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import (
    FLOAT8_AS_FLOAT32,
    TF,
    Fn,
    axes_of,
    cast,
    constant,
    dtype_of,
    in_float32,
    ints,
    is_symbolic,
    shape_of,
    via_carriers,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Axis = int | tuple[int, ...] | None


def _without_axes(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _total(name: str, of_bool: str) -> Fn:
    """Return a sum or a product; booleans have a reduction of their own (`of_bool`), as the result is a boolean."""

    def reduce(x: Array, axis: Axis, keepdims: bool) -> Array:
        operation = getattr(raw, of_bool if dtype_of(x) == dtypes.bool_ else name)
        return operation(input=x, axis=ints(axes_of(x, axis)), keep_dims=keepdims)

    return in_float32_first(reduce)


def in_float32_first(fn: Fn) -> Fn:
    """Wrap `fn(x, *settings)` so that floats narrower than float32 are computed in float32."""

    def wide(x: Array, *settings: Any) -> Array:
        dtype = dtype_of(x)
        if dtypes.accumulator(dtype) == dtype:
            return fn(x, *settings)
        return cast(fn(cast(x, dtypes.float32), *settings), dtype)

    return wide


def extreme(name: str, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return the maximum or minimum (`name`: Max or Min); NaN if an element is NaN, the least value for no elements."""
    dtype, shape = dtype_of(x), shape_of(x)
    if dtype == dtypes.bool_:
        return getattr(raw, "Any" if name == "Max" else "All")(input=x, axis=ints(axes), keep_dims=keepdims)
    if any(not shape[a] for a in axes):
        least = dtypes.lowest(dtype) if name == "Max" else dtypes.highest(dtype)
        return tf.fill(_without_axes(shape, axes, keepdims), constant(least, dtype))
    out = getattr(raw, name)(input=x, axis=ints(axes), keep_dims=keepdims)
    if nan_wins(x):
        return out
    unknown = raw.Any(input=raw.IsNan(x=x), axis=ints(axes), keep_dims=keepdims)
    return select(unknown, constant(np.nan, dtype), out)


def _extreme(name: str) -> Fn:
    return via_carriers(FLOAT8_AS_FLOAT32, lambda x, axis, keepdims: extreme(name, x, axes_of(x, axis), keepdims))


def _position(name: str) -> Fn:
    """Return the position of the first extreme value, or of the first NaN. TensorFlow's ArgMax ignores NaN, and does
    not define which of equal values it returns."""

    def position(x: Array, axis: int, keepdims: bool) -> Array:
        if dtype_of(x) == dtypes.bool_:
            x = cast(x, dtypes.uint8)
        axis %= len(shape_of(x))
        n = shape_of(x)[axis]
        is_extreme = raw.Equal(x=x, y=extreme(name, x, (axis,), True))
        if dtypes.is_floating(dtype_of(x)):
            is_extreme = raw.LogicalOr(x=is_extreme, y=raw.IsNan(x=x))
        axis_positions = tf.constant(np.arange(n).reshape([n if a == axis else 1 for a in range(len(shape_of(x)))]))
        past_end = constant(n, dtypes.int64)
        return raw.Min(input=select(is_extreme, axis_positions, past_end), axis=ints((axis,)), keep_dims=keepdims)

    return via_carriers(FLOAT8_AS_FLOAT32, position)


def _reduction(fn: Fn) -> Fn:
    def method(self: Any, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        return fn(x, axis, keepdims)

    return method


# ---- scans ---------------------------------------------------------------------------------------------------------


def _take(x: Array, axis: int, start: int, stop: int) -> Array:
    shape = shape_of(x)
    begin = [start if a == axis else 0 for a in range(len(shape))]
    size = [stop - start if a == axis else n for a, n in enumerate(shape)]
    return raw.Slice(input=x, begin=ints(begin), size=ints(size))


def _rounds(fn: Fn, x: Array, axis: int) -> Array:
    """Compute an inclusive scan in log2(n) rounds (Hillis and Steele 1986), for functions that TensorFlow cannot
    scan."""
    shape = shape_of(x)
    n, step = shape[axis], 1
    lead, inner_count = int(np.prod(shape[:axis], dtype=int)), int(np.prod(shape[axis + 1 :], dtype=int))
    x = raw.Reshape(tensor=x, shape=ints((lead, n, inner_count)))
    while step < n:
        rest = fn(_take(x, 1, step, n), _take(x, 1, 0, n - step))
        x = raw.ConcatV2(values=[_take(x, 1, 0, step), rest], axis=1)
        step *= 2
    return raw.Reshape(tensor=x, shape=ints(shape))


# XLA scans int32, int64 and floats only. Sums and products of integers wrap, so they may be computed in wider ones.
_CARRIERS = {
    **dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16, dtypes.uint32), dtypes.int64),
    dtypes.uint64: dtypes.int64,
}


def _sums(name: str) -> Fn:
    operation = getattr(raw, name)

    def scan(x: Array, axis: int) -> Array:
        if dtypes.is_complex(dtype_of(x)) and is_symbolic(x):
            if name == "Cumprod":
                return _rounds(FUNCTIONS["multiply"], x, axis)
            return make_complex(scan(real(x), axis), scan(imag(x), axis))
        return operation(x=x, axis=axis)

    via_carrier = via_carriers(_CARRIERS, scan)
    of_bool = _extremes("maximum" if name == "Cumsum" else "minimum")

    def choose_scan(x: Array, axis: int) -> Array:
        if dtype_of(x) == dtypes.bool_:
            return of_bool(x, axis)
        return (via_carrier if is_symbolic(x) else scan)(x, axis)

    return in_float32_first(choose_scan)


def _extremes(name: str) -> Fn:
    fn = FUNCTIONS[name]
    return via_carriers(FLOAT8_AS_FLOAT32, lambda x, axis: _rounds(fn, x, axis))


def _scan(fn: Fn) -> Fn:
    def method(self: Any, x: Array, /, axis: int) -> Array:
        return fn(x, axis % len(shape_of(x)))

    return method


class TensorFlowReduction:
    sum = _reduction(_total("Sum", "Any"))
    prod = _reduction(_total("Prod", "All"))
    max = _reduction(_extreme("Max"))
    min = _reduction(_extreme("Min"))
    any = _reduction(lambda x, axis, keepdims: raw.Any(input=x, axis=ints(axes_of(x, axis)), keep_dims=keepdims))
    all = _reduction(lambda x, axis, keepdims: raw.All(input=x, axis=ints(axes_of(x, axis)), keep_dims=keepdims))
    argmax = _reduction(_position("Max"))
    argmin = _reduction(_position("Min"))
    cumsum = _scan(_sums("Cumsum"))
    cumprod = _scan(_sums("Cumprod"))
    cummax = _scan(_extremes("maximum"))
    cummin = _scan(_extremes("minimum"))


__all__ = ["TF", "TensorFlowReduction", "extreme", "in_float32"]
