"""Integers with the range of numbers that they stand for, as TensorFlow's kernels convert them.

An integer of a dtype is a step of a range (low, high), which all integers of the dtype are spread over. There are two
arithmetics for it: of numbers one by one in float64 (`numbers`, `codes`), and of arrays in float32 (`numbers_narrow`,
`codes_narrow`); which one a kernel takes is seen in the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)


def limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


@with_operators
def round_half_away(xp: ValueBackend, x: Value) -> Value:
    """Rounded, halves away from zero."""
    truncated = xp.trunc(x)
    half = abs(x - truncated) >= 0.5
    return xp.where(half, truncated + xp.copysign(xp.ones_like(x), x), truncated)


def wide(xp: Any, x: AnyArray) -> AnyArray:
    return xp.astype(x, dtypes.int64)


def double(xp: Any, x: AnyArray) -> AnyArray:
    return xp.astype(x, dtypes.float64)


def single(xp: Any, x: AnyArray) -> AnyArray:
    return xp.astype(x, dtypes.float32)


@with_operators
def truncated_divide(xp: ValueBackend, x: Value, y: Value) -> Value:
    """C's division of integers."""
    size = xp.integer_floor_divide(abs(x), abs(y))
    return xp.where((x < 0) != (y < 0), -size, size)


def narrowed(xp: Any, x: AnyArray, dtype: np.dtype) -> AnyArray:
    """Integers held within those of a dtype."""
    least, most = limits(dtype)
    return xp.astype(xp.clip(x, least, most), dtype)


# ---- one by one ------------------------------------------------------------------------------------------------------


def _span(xp: Any, low: AnyArray, high: AnyArray, dtype: np.dtype) -> tuple[AnyArray, float]:
    """Return (the range of one step more than there are, how many these are)."""
    steps = float(2 ** (8 * dtype.itemsize))
    return xp.multiply(double(xp, xp.subtract(high, low)), steps / (steps - 1.0)), steps


def codes_unheld(xp: Any, x: AnyArray, low: AnyArray, high: AnyArray, dtype: np.dtype) -> AnyArray:
    """Return the codes of numbers as int64, not held to those of the dtype."""
    span, steps = _span(xp, low, high, dtype)
    is_empty = xp.equal(low, high)
    scale = xp.divide(steps, xp.where(is_empty, xp.ones_like(span), span))
    code = xp.subtract(
        round_half_away(xp, xp.multiply(double(xp, x), scale)), round_half_away(xp, xp.multiply(double(xp, low), scale))
    )
    code = xp.where(is_empty, xp.zeros_like(code), code)
    return xp.add(wide(xp, code), limits(dtype)[0])


def codes(xp: Any, x: AnyArray, low: AnyArray, high: AnyArray, dtype: np.dtype) -> AnyArray:
    return narrowed(xp, codes_unheld(xp, x, low, high, dtype), dtype)


def zero_of(xp: Backend, low: Array, high: Array, dtype: np.dtype) -> Array:
    """Return the integer (int64) that represents zero, which may be out of the range of the dtype."""
    return codes_unheld(xp, xp.zeros_like(low), low, high, dtype)


@with_operators
def numbers(xp: ValueBackend, x: Value, low: Value, high: Value, dtype: np.dtype) -> Value:
    """Return the numbers (float32) that codes stand for. `x` may be of a wider dtype."""
    span, steps = _span(xp, low, high, dtype)
    scale = span / steps
    short = single(xp, scale)
    is_empty = low == high
    first = round_half_away(xp, low / xp.where(is_empty, xp.ones_like(short), short)) * short
    offset = double(xp, x) - float(limits(dtype)[0])
    out = single(xp, double(xp, first) + offset * scale)
    return xp.where(is_empty, xp.broadcast_to(low, out.shape), out)


# ---- arrays, in float32 ----------------------------------------------------------------------------------------------


@with_operators
def numbers_narrow(xp: ValueBackend, x: Value, low: Value, high: Value, dtype: np.dtype) -> Value:
    steps = float(2 ** (8 * dtype.itemsize)) - 1.0
    scale = single(xp, double(xp, high - low) / steps)
    is_empty = low == high
    first = xp.where(is_empty, low, round_half_away(xp, low / xp.where(is_empty, xp.ones_like(scale), scale)) * scale)
    first = first - scale * float(limits(dtype)[0])
    return first + single(xp, x) * scale


def codes_narrow(xp: Any, x: AnyArray, low: AnyArray, high: AnyArray, dtype: np.dtype) -> AnyArray:
    least, most = limits(dtype)
    steps = float(2 ** (8 * dtype.itemsize)) - 1.0
    is_empty = xp.equal(low, high)
    span = double(xp, xp.subtract(high, low))
    scale = single(xp, xp.divide(steps, xp.where(is_empty, xp.ones_like(span), span)))
    scale = xp.where(is_empty, xp.zeros_like(scale), scale)
    first = xp.subtract(round_half_away(xp, xp.multiply(low, scale)), float(least))
    code = xp.subtract(round_half_away(xp, xp.multiply(x, scale)), first)
    top = 2147483520.0 if dtype == INT32 else float(most)  # the last float32 that is an int32
    return xp.astype(wide(xp, xp.clip(code, float(least), top)), dtype)


# ---- ranges of what is computed --------------------------------------------------------------------------------------


@with_operators
def step_of(xp: ValueBackend, low: Value, high: Value, dtype: np.dtype, symmetric: bool = False) -> Value:
    """Return the size of one step of a range; `symmetric`: without the lowest of signed integers."""
    least, most = limits(dtype)
    return (high - low) / float(most - least - int(symmetric and least < -most))


def range_of_steps(xp: Any, step: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the range of int32 in which one step has this size."""
    least, most = limits(INT32)
    return xp.multiply(step, float(least)), xp.multiply(step, float(most))
