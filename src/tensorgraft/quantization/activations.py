"""Quantisation of the other operand of a product with int8 codes: row by row as it comes, or by a fixed range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

LOW, HIGH = -128.0, 127.0
_NARROW = (dtypes.bfloat16, dtypes.float16)
_LEAST_NARROW = 2.0**-23  # the least scale, as in torchao: float32's epsilon, which float16 can represent
_LEAST = 1.18e-38  # a scale of less has no reciprocal: the row is zeros


def by_row(xp: Backend, x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """Return (int8 codes, float32 scales): quantised symmetrically, with one scale for all elements that are contracted
    along `axes`.

    As in torchao, the greatest number is half a step beyond the last code, the scale of 16-bit floats has their dtype,
    and numbers are multiplied by its reciprocal, so that models of torchao are rounded in the same way.
    """
    values = xp.astype(x, dtypes.float32)
    if 0 in xp.shape(values):
        kept_shape = tuple(1 if i in axes else n for i, n in enumerate(xp.shape(values)))
        return xp.astype(values, dtypes.int8), xp.ones(kept_shape, dtypes.float32)
    high, low = (f(values, axis=tuple(axes), keepdims=True) for f in (xp.max, xp.min))
    largest = xp.maximum(high, xp.negative(low))  # compilers do this in half the time of a maximum of magnitudes
    # the maximum stands between the divisions, for of two in a row XLA makes one
    scale = xp.maximum(xp.divide(largest, 127.5), _LEAST)
    if xp.dtype_of(x) in _NARROW:
        scale = xp.astype(xp.astype(xp.maximum(scale, _LEAST_NARROW), xp.dtype_of(x)), dtypes.float32)
    return xp.astype(xp.clip(_steps(xp, values, scale, None), LOW, HIGH), dtypes.int8), scale


def by_range(xp: Backend, x: Array, scale: Array, zero: Array | None) -> Array:
    """Quantise to int8 with a given scalar scale and zero point; numbers out of range get the outermost codes."""
    return xp.astype(xp.clip(_steps(xp, xp.astype(x, dtypes.float32), scale, zero), LOW, HIGH), dtypes.int8)


@with_operators
def in_range(xp: ValueBackend, x: Value, scale: Value, zero: Value | None) -> Value:
    """Return where `by_range` rounds and does not clip."""
    steps = _steps(xp, xp.astype(x, dtypes.float32), scale, zero)
    return (steps >= LOW) & (steps <= HIGH)


def common_inputs(xp: Backend, arrays: Sequence[Any]) -> tuple[Array | None, Array | None]:
    """Return (scale, zero point) of a range that has those of several quantised arrays in it; None where they have
    none."""
    scales, zeros = [a.input_scale for a in arrays], [a.input_zero for a in arrays]
    if scales[0] is None or len(arrays) == 1:
        return scales[0], zeros[0]
    scale = xp.stack(scales, axis=0)
    if zeros[0] is None:
        return xp.max(scale, axis=0), None
    zero = xp.stack(zeros, axis=0)
    low = xp.min(xp.multiply(xp.subtract(LOW, zero), scale), axis=0)
    high = xp.max(xp.multiply(xp.subtract(HIGH, zero), scale), axis=0)
    wide = xp.divide(xp.subtract(high, low), HIGH - LOW)
    return wide, xp.clip(xp.round(xp.subtract(LOW, xp.divide(low, wide))), LOW, HIGH)


@with_operators
def _steps(xp: ValueBackend, values: Value, scale: Value, zero: Value | None) -> Value:
    steps = xp.round(values * (1.0 / scale))
    return steps if zero is None else steps + zero


__all__ = ["by_range", "by_row", "common_inputs", "in_range"]
