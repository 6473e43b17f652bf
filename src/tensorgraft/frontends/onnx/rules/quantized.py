"""Rules for quantised values: integers, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.element_types import CARRIERS, Carried, dtype_of
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.elementwise import converted
from tensorgraft.hub import dtypes


def bounds(dtype: np.dtype) -> tuple[int, int]:
    """Return the least and the greatest integer of an element type, also of less than 8 bits."""
    name = dtype.name
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def element_type(xp: Any, x: Any) -> np.dtype:
    return x.dtype if isinstance(x, Carried | np.ndarray) else xp.dtype_of(x)


def zero_point_of(xp: Any, zero: Any) -> np.dtype:
    """Return the element type that a zero point gives to quantised values: uint8 without one."""
    return dtypes.uint8 if zero is None else element_type(xp, zero)


def _plain(x: Any) -> Any:
    return x.array if isinstance(x, Carried) else x


def quantized(xp: Any, scaled: Any, zero: Any, dtype: np.dtype) -> Any:
    """Round scaled values to the nearest integer, halves to even, and add the zero point."""
    low, high = bounds(dtype)
    rounded = xp.round(scaled)
    if zero is not None:
        zero = xp.astype(_plain(zero), xp.dtype_of(rounded))
        rounded = xp.add(rounded, xp.reshape(zero, ()) if zero.shape == (1,) else zero)
    whole = xp.astype(xp.clip(rounded, low, high), CARRIERS.get(dtype, dtype))
    return Carried(whole, dtype) if dtype in CARRIERS else whole


def along(xp: Any, x: Any, axis: int, rank: int) -> Any:
    """Return one number, or one for each position of an axis, so that they broadcast over `rank` axes."""
    if len(x.shape) != 1:
        return x
    extents = [1] * rank
    extents[axis] = x.shape[0]
    return xp.reshape(x, tuple(extents) if x.shape[0] > 1 else ())


def shifted(xp: Any, x: Any, zero: Any, axis: int) -> Any:
    """Return integers less their zero point, which is one number or has one for each row along `axis`, in int32."""
    x = xp.astype(x, dtypes.int32)
    return x if zero is None else xp.subtract(x, along(xp, xp.astype(zero, dtypes.int32), axis, len(x.shape)))


def spread(xp: Any, x: Any, like: tuple[int, ...], axis: int, block: int) -> Any:
    """Return scales or zero points in the shape of the values that they belong to: one for all, one for each position
    along `axis`, or one for each block of positions."""
    x = _plain(x)
    shape = tuple(x.shape)
    if len(shape) == 0 or (len(shape) == 1 and not block) or (shape == (1,) and len(like) != 1):
        return along(xp, x, axis, len(like))
    axis %= len(like)
    size = block or -(-like[axis] // shape[axis])
    return xp.take_slice(xp.repeat(x, size, axis), axis, 0, like[axis])


def requantized(xp: Any, total: Any, a_scale: Any, b_scale: Any, y_scale: Any, y_zero: Any) -> Any:
    """Return an integer product of quantised values as quantised values. Scales broadcast."""
    wide = [xp.astype(s, dtypes.float32) for s in (a_scale, b_scale, y_scale)]
    factor = xp.divide(xp.multiply(wide[0], wide[1]), wide[2])
    real = xp.multiply(xp.astype(total, dtypes.float32), factor)
    return quantized(xp, real, y_zero, zero_point_of(xp, y_zero))


@rule("QuantizeLinear", state=("y_scale",))
def quantize_linear(
    xp: Any, x: Any, y_scale: Any, y_zero_point: Any = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, saturate: int = 1, precision: int = 0,
) -> Any:  # fmt: skip
    dtype = dtype_of(output_dtype) if output_dtype else zero_point_of(xp, y_zero_point)
    shape = tuple(x.shape)
    wide = (
        dtype_of(precision) if precision else xp.dtype_of(x) if dtypes.is_floating(xp.dtype_of(x)) else dtypes.float32
    )
    wide = wide if wide.itemsize >= 4 else dtypes.float32
    axis = axis if -len(shape) <= axis < len(shape) else 0
    scale = xp.astype(spread(xp, y_scale, shape, axis, block_size), wide)
    scaled = xp.divide(xp.astype(x, wide), scale)
    if not dtype.name.startswith(("int", "uint")):
        return converted(xp, scaled, dtype, bool(saturate))
    zero = None if y_zero_point is None else spread(xp, y_zero_point, shape, axis, block_size)
    return quantized(xp, scaled, zero, dtype)


@rule("DequantizeLinear", state=("x_scale",))
def dequantize_linear(
    xp: Any, x: Any, x_scale: Any, x_zero_point: Any = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Any:  # fmt: skip
    dtype = dtype_of(output_dtype) if output_dtype else element_type(xp, x_scale)
    shape, kind = tuple(x.shape), element_type(xp, x)
    values = _plain(x)
    axis = axis if -len(shape) <= axis < len(shape) else 0
    wide = dtypes.float32 if dtype.itemsize < 4 else dtype
    if kind.name.startswith(("int", "uint")) and x_zero_point is not None:
        zero = spread(xp, x_zero_point, shape, axis, block_size)
        values = xp.subtract(xp.astype(values, dtypes.int32), xp.astype(zero, dtypes.int32))
    scale = xp.astype(spread(xp, x_scale, shape, axis, block_size), wide)
    return xp.astype(xp.multiply(xp.astype(values, wide), scale), dtype)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(xp: Any, x: Any) -> Any:
    """Quantise to uint8 by the range of the values, which includes zero."""
    low, high = xp.minimum(xp.min(x), 0.0), xp.maximum(xp.max(x), 0.0)
    scale = xp.divide(xp.subtract(high, low), 255.0)
    scale = xp.where(xp.equal(scale, 0), xp.ones_like(scale), scale)
    zero = xp.round(xp.clip(xp.divide(xp.negative(low), scale), 0.0, 255.0))
    whole = quantized(xp, xp.divide(x, scale), zero, dtypes.uint8)
    return [whole, scale, xp.astype(zero, dtypes.uint8)]
