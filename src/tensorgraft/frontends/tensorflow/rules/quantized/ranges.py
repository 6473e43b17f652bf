"""Integers with the range of numbers that they stand for, as TensorFlow's kernels convert them.

An integer of a dtype is a step of a range (low, high), which all integers of the dtype are spread over. There are two
arithmetics for it: of numbers one by one in float64 (`numbers`, `codes`), and of arrays in float32 (`numbers_narrow`,
`codes_narrow`); which one a kernel takes is seen in the last bit.
"""

from __future__ import annotations

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)


def limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def away(xp: Backend, x: Array) -> Array:
    """Rounded, halves away from zero."""
    whole = xp.trunc(x)
    half = xp.greater_equal(xp.abs(xp.subtract(x, whole)), 0.5)
    return xp.where(half, xp.add(whole, xp.copysign(xp.ones_like(x), x)), whole)


def wide(xp: Backend, x: Array) -> Array:
    return xp.astype(x, dtypes.int64)


def double(xp: Backend, x: Array) -> Array:
    return xp.astype(x, dtypes.float64)


def single(xp: Backend, x: Array) -> Array:
    return xp.astype(x, dtypes.float32)


def truncated_divide(xp: Backend, x: Array, y: Array) -> Array:
    """C's division of integers."""
    size = xp.integer_floor_divide(xp.abs(x), xp.abs(y))
    return xp.where(xp.not_equal(xp.less(x, 0), xp.less(y, 0)), xp.negative(size), size)


def narrowed(xp: Backend, x: Array, dtype: np.dtype) -> Array:
    """Integers held within those of a dtype."""
    least, most = limits(dtype)
    return xp.astype(xp.clip(x, least, most), dtype)


# ---- one by one ------------------------------------------------------------------------------------------------------


def _span(xp: Backend, low: Array, high: Array, dtype: np.dtype) -> tuple[Array, float]:
    """(the range of one step more than there are, how many these are)."""
    steps = float(2 ** (8 * dtype.itemsize))
    return xp.multiply(double(xp, xp.subtract(high, low)), steps / (steps - 1.0)), steps


def codes_unheld(xp: Backend, x: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    """Return the codes of numbers as int64, not held to those of the dtype."""
    span, steps = _span(xp, low, high, dtype)
    nothing = xp.equal(low, high)
    scale = xp.divide(steps, xp.where(nothing, xp.ones_like(span), span))
    code = xp.subtract(away(xp, xp.multiply(double(xp, x), scale)), away(xp, xp.multiply(double(xp, low), scale)))
    code = xp.where(nothing, xp.zeros_like(code), code)
    return xp.add(wide(xp, code), limits(dtype)[0])


def codes(xp: Backend, x: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    return narrowed(xp, codes_unheld(xp, x, low, high, dtype), dtype)


def zero_of(xp: Backend, low: Array, high: Array, dtype: np.dtype) -> Array:
    """Return the integer (int64) that stands for zero, which may be none of the dtype's."""
    return codes_unheld(xp, xp.zeros_like(low), low, high, dtype)


def numbers(xp: Backend, x: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    """Return the numbers (float32) that codes stand for. `x` may be of a wider dtype."""
    span, steps = _span(xp, low, high, dtype)
    scale = xp.divide(span, steps)
    short = single(xp, scale)
    nothing = xp.equal(low, high)
    first = xp.multiply(away(xp, xp.divide(low, xp.where(nothing, xp.ones_like(short), short))), short)
    offset = xp.subtract(double(xp, x), float(limits(dtype)[0]))
    out = single(xp, xp.add(double(xp, first), xp.multiply(offset, scale)))
    return xp.where(nothing, xp.broadcast_to(low, xp.shape(out)), out)


# ---- arrays, in float32 ----------------------------------------------------------------------------------------------


def numbers_narrow(xp: Backend, x: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    steps = float(2 ** (8 * dtype.itemsize)) - 1.0
    scale = single(xp, xp.divide(double(xp, xp.subtract(high, low)), steps))
    nothing = xp.equal(low, high)
    first = xp.where(
        nothing, low, xp.multiply(away(xp, xp.divide(low, xp.where(nothing, xp.ones_like(scale), scale))), scale)
    )
    first = xp.subtract(first, xp.multiply(scale, float(limits(dtype)[0])))
    return xp.add(first, xp.multiply(single(xp, x), scale))


def codes_narrow(xp: Backend, x: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    least, most = limits(dtype)
    steps = float(2 ** (8 * dtype.itemsize)) - 1.0
    nothing = xp.equal(low, high)
    span = double(xp, xp.subtract(high, low))
    scale = single(xp, xp.divide(steps, xp.where(nothing, xp.ones_like(span), span)))
    scale = xp.where(nothing, xp.zeros_like(scale), scale)
    first = xp.subtract(away(xp, xp.multiply(low, scale)), float(least))
    code = xp.subtract(away(xp, xp.multiply(x, scale)), first)
    top = 2147483520.0 if dtype == INT32 else float(most)  # the last float32 that is an int32
    return xp.astype(wide(xp, xp.clip(code, float(least), top)), dtype)


# ---- ranges of what is computed --------------------------------------------------------------------------------------


def step_of(xp: Backend, low: Array, high: Array, dtype: np.dtype, symmetric: bool = False) -> Array:
    """Return the size of one step of a range; `symmetric`: without the lowest of signed integers."""
    least, most = limits(dtype)
    return xp.divide(xp.subtract(high, low), float(most - least - int(symmetric and least < -most)))


def range_of_steps(xp: Backend, step: Array) -> tuple[Array, Array]:
    """Return the range of int32 in which one step has this size."""
    least, most = limits(INT32)
    return xp.multiply(step, float(least)), xp.multiply(step, float(most))
