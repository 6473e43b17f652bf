"""Operations on integers that represent numbers in a range, with the semantics of TensorFlow's kernels. Sums and
products are exact, in int32; results are returned with their range."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import filled, ints
from tensorgraft.frontends.tensorflow.rules.images.resizing import linear
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints, Pads, pads, window_counts
from tensorgraft.frontends.tensorflow.rules.quantized.ranges import (
    INT32,
    UINT8,
    codes,
    codes_narrow,
    codes_unheld,
    double,
    narrowed,
    numbers,
    numbers_narrow,
    range_of_steps,
    single,
    step_of,
    truncated_divide,
    wide,
    zero_of,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

# ---- sums and products -----------------------------------------------------------------------------------------------


def _common_range(
    xp: Any, low: AnyArray, high: AnyArray, other_low: AnyArray, other_high: AnyArray, bits: int
) -> tuple[AnyArray, AnyArray]:
    """Around zero, the larger of both and so many bits above it, in int32."""
    top = xp.maximum(xp.maximum(high, xp.negative(low)), xp.maximum(xp.negative(other_low), other_high))
    top = xp.multiply(top, float(1 << bits))
    return xp.negative(top), top


@rule("QuantizedAdd")
@with_operators
def quantized_add(
    xp: ValueBackend, x: Value, y: Value, low: Value, high: Value, other_low: Value, other_high: Value
) -> list[Value]:
    first, last = _common_range(xp, low, high, other_low, other_high, 14)

    def moved(x: Value, low: Value, high: Value) -> Value:
        """Convert by the codes of the first two integers, from which the others follow; a scalar by itself."""
        dtype = x.dtype
        if xp.size(x) == 1:
            return codes(xp, numbers(xp, x, low, high, dtype), first, last, INT32)
        start, following = (
            codes_unheld(xp, numbers(xp, xp.full((), i, dtypes.int64), low, high, dtype), first, last, INT32)
            for i in (0, 1)
        )
        step = wide(xp, xp.astype(following - start, INT32))
        return narrowed(xp, start + wide(xp, x) * step, INT32)

    return [moved(x, low, high) + moved(y, other_low, other_high), first, last]


@rule("QuantizedBiasAdd")
@with_operators
def quantized_bias_add(
    xp: ValueBackend, x: Value, bias: Value, low: Value, high: Value, other_low: Value, other_high: Value
) -> list[Value]:
    first, last = _common_range(xp, low, high, other_low, other_high, 17)

    def moved(x: Value, low: Value, high: Value) -> Value:
        return codes_narrow(xp, numbers_narrow(xp, x, low, high, x.dtype), first, last, INT32)

    zero = codes(xp, xp.zeros_like(low), first, last, INT32)
    return [moved(x, low, high) + (moved(bias, other_low, other_high) + zero), first, last]


def _centred(xp: Backend, x: Array, low: Array, high: Array) -> Array:
    """Return the number of steps (int32) that each is above zero."""
    return xp.astype(xp.subtract(wide(xp, x), zero_of(xp, low, high, xp.dtype_of(x))), INT32)


def _range_of_products(
    xp: Backend, x: Array, y: Array, low: Array, high: Array, other_low: Array, other_high: Array
) -> tuple[Array, Array]:
    steps = (step_of(xp, low, high, xp.dtype_of(x)), step_of(xp, other_low, other_high, xp.dtype_of(y)))
    return range_of_steps(xp, xp.multiply(*steps))


@rule("QuantizedMul")
def quantized_mul(xp: Backend, x: Array, y: Array, *ranges: Array) -> list[Array]:
    product = xp.multiply(_centred(xp, x, *ranges[:2]), _centred(xp, y, *ranges[2:]))
    return [product, *_range_of_products(xp, x, y, *ranges)]


@rule("QuantizedMatMul")
def quantized_matmul(
    xp: Backend, a: Array, b: Array, *ranges: Array, transpose_a: bool = False, transpose_b: bool = False
) -> list[Array]:
    left, right = _centred(xp, a, *ranges[:2]), _centred(xp, b, *ranges[2:])
    product = xp.dot_general(left, right, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))
    return [product, *_range_of_products(xp, a, b, *ranges)]


def convolved(
    xp: Any, x: AnyArray, w: AnyArray, strides: Ints, pad_widths: Pads, dilations: Ints = (1, 1), groups: int = 1
) -> AnyArray:
    """Integers (batch, height, width, channels) with filters (height, width, in, out), in int32. float64 has them all
    as they are."""
    x, w = xp.permute_dims(double(xp, x), (0, 3, 1, 2)), xp.permute_dims(double(xp, w), (3, 2, 0, 1))
    out = xp.convolution(x, w, strides, pad_widths, (1, 1), dilations, groups)
    return xp.astype(wide(xp, xp.permute_dims(out, (0, 2, 3, 1))), INT32)


def quantized_convolution(xp: Any, x: Any, w: Any, *ranges: Any, strides: Ints, padding: str) -> list[Any]:
    window, (row_stride, column_stride) = xp.shape(w)[:2], strides[1:3]
    pad_widths = []
    for n, k, s in zip(xp.shape(x)[1:3], window, (row_stride, column_stride), strict=True):
        out = -(-n // s) if padding == "SAME" else (n - k) // s + 1
        total = (out - 1) * s + k - n
        low = int((total + int(padding == "VALID")) / 2)  # if the windows do not cover everything, they are centred
        pad_widths.append((low, total - low))
    left, right = _centred(xp, x, *ranges[:2]), _centred(xp, w, *ranges[2:])
    return [convolved(xp, left, right, (row_stride, column_stride), pad_widths), *_range_of_products(xp, x, w, *ranges)]


# ---- activations, pooling, shape -------------------------------------------------------------------------------------


@rule("QuantizedRelu")
def quantized_relu(xp: Backend, x: Array, low: Array, high: Array) -> list[Array]:
    return [xp.maximum(x, codes(xp, xp.zeros_like(low), low, high, xp.dtype_of(x))), low, high]


@rule("QuantizedRelu6")
def quantized_relu6(xp: Backend, x: Array, low: Array, high: Array) -> list[Array]:
    first, last = (codes(xp, xp.full_like(low, top), low, high, xp.dtype_of(x)) for top in (0.0, 6.0))
    return [xp.minimum(xp.maximum(x, first), last), low, high]


@rule("QuantizedMaxPool")
def quantized_max_pool(
    xp: Backend, x: Array, low: Array, high: Array, *, ksize: Ints, strides: Ints, padding: str
) -> list[Array]:
    pad_widths = pads(xp.shape(x), ksize, strides, (1,) * 4, padding)
    return [xp.reduce_window(x, "max", ksize, strides, pad_widths, (1,) * 4), low, high]


@rule("QuantizedAvgPool")
def quantized_avg_pool(
    xp: Backend, x: Array, low: Array, high: Array, *, ksize: Ints, strides: Ints, padding: str
) -> list[Array]:
    pad_widths = pads(xp.shape(x), ksize, strides, (1,) * 4, padding)
    total = xp.reduce_window(single(xp, x), "sum", ksize, strides, pad_widths, (1,) * 4)
    counts = xp.asarray(window_counts(xp.shape(x), ksize, strides, pad_widths).astype(np.float32))
    return [xp.astype(xp.round(xp.divide(total, counts)), xp.dtype_of(x)), low, high]


@rule("QuantizedReshape", known=("shape",))
def quantized_reshape(xp: Backend, x: Array, shape: np.ndarray, low: Array, high: Array) -> list[Array]:
    return [xp.reshape(x, filled(ints(shape), xp.size(x))), low, high]


@rule("QuantizedConcat", known=(0,))
@with_operators
def quantized_concat(xp: ValueBackend, axis: np.ndarray, *operands: Value) -> list[Value]:
    n = len(operands) // 3
    values, lows, highs = operands[:n], operands[n : 2 * n], operands[2 * n :]
    dtype = values[0].dtype
    low, high = lows[0], highs[0]
    for next_low, most in zip(lows[1:], highs[1:], strict=True):
        low, high = xp.minimum(low, next_low), xp.maximum(high, most)
    if dtype.kind == "i":
        high = xp.maximum(abs(low), abs(high))
        low = -high
    parts = []
    for x, first, last in zip(values, lows, highs, strict=True):
        same_range = (first == low) & (last == high)
        moved = codes_narrow(xp, numbers_narrow(xp, x, first, last, dtype), low, high, dtype)
        parts.append(xp.where(same_range, x, moved))
    return [xp.concat(parts, axis=int(axis)), low, high]


@rule("QuantizedResizeBilinear", known=("size",))
@with_operators
def quantized_resize(
    xp: ValueBackend, x: Value, size: np.ndarray, low: Value, high: Value, *, align_corners: bool = False,
    half_pixel_centers: bool = False,
) -> list[Value]:  # fmt: skip
    """Resize bilinearly: uint8 in fixed point; int32, converted to float32 first, in float64."""
    dtype = x.dtype
    taps = [linear(n, out, align_corners, half_pixel_centers) for n, out in zip(x.shape[1:3], ints(size), strict=True)]
    (rows, down), (columns, column_taps) = taps
    unit = 1 << 7

    def corners(calc: np.dtype, x: Value) -> list[list[Value]]:
        row_pixels = [xp.take(xp.astype(x, calc), xp.asarray(rows[:, i]), 1) for i in (0, 1)]
        return [[xp.take(row, xp.asarray(columns[:, i]), 2) for i in (0, 1)] for row in row_pixels]

    parts = column_taps[None, None, :, 1, None], down[None, :, 1, None, None]
    if dtype != UINT8:
        calc = dtypes.float64 if dtype == INT32 else dtypes.float32
        w, h = (xp.asarray(v.astype(calc)) for v in parts)
        sides = [a + (b - a) * w for a, b in corners(calc, single(xp, x))]
        out = sides[0] + (sides[1] - sides[0]) * h
        return [narrowed(xp, wide(xp, out + 0.5), dtype) if dtype == INT32 else out, low, high]
    w, h = (xp.asarray(np.trunc(v * np.float32(unit)).astype(np.int32)) for v in parts)
    unit_array = xp.full((), unit, INT32)
    sides = [a * unit + (b - a) * w for a, b in corners(INT32, x)]
    out = sides[0] + truncated_divide(xp, sides[1] - sides[0], unit_array) * h
    return [xp.astype(truncated_divide(xp, out + unit // 2, unit_array), dtype), low, high]


# ---- to another range ------------------------------------------------------------------------------------------------


def _actual_range(xp: Backend, x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the range of the numbers that occur in `x`, with a lower end of at most 0."""
    first, last = (numbers(xp, extreme, low, high, INT32) for extreme in (xp.min(x), xp.max(x)))
    return xp.minimum(first, xp.zeros_like(first)), last


@with_operators
def _requantized(
    xp: ValueBackend, x: Value, low: Value, high: Value, first: Value, last: Value, dtype: np.dtype
) -> Value:
    if dtype != UINT8:
        return codes_narrow(xp, numbers_narrow(xp, x, low, high, INT32), first, last, dtype)
    bits = 16  # in fixed point
    span, target = high - low, last - first
    is_empty = target == 0
    safe = xp.where(is_empty, xp.ones_like(target), target)

    def fixed(v: Value) -> Value:
        return wide(xp, xp.where(is_empty, xp.zeros_like(v), v))

    scale = fixed(255.0 * (1 << bits) * double(xp, span) / double(xp, safe))
    centre = single(xp, double(xp, low + high) / 2.0)
    inverse = single(xp, 255.0 / double(xp, safe))
    source = fixed(centre * inverse * float(1 << bits))
    offset = fixed(double(xp, first) * 255.0 * float(1 << bits) / double(xp, safe))
    value = (wide(xp, x) * scale) >> xp.full((), 32, dtypes.int64)
    value = value + (source - offset + (1 << (bits - 1)))
    return narrowed(xp, value >> xp.full((), bits, dtypes.int64), dtype)


@rule("RequantizationRange")
def requantization_range(xp: Backend, x: Array, low: Array, high: Array) -> list[Array]:
    return list(_actual_range(xp, x, low, high))


@rule("Requantize")
def requantize(
    xp: Backend, x: Array, low: Array, high: Array, first: Array, last: Array, *, out_type: np.dtype
) -> list[Array]:
    return [_requantized(xp, x, low, high, first, last, out_type), first, last]


@rule("QuantizeDownAndShrinkRange")
def quantize_down(xp: Backend, x: Array, low: Array, high: Array, *, out_type: np.dtype) -> list[Array]:
    first, last = _actual_range(xp, x, low, high)
    return [_requantized(xp, x, low, high, first, last, out_type), first, last]


# ---- normalisation ---------------------------------------------------------------------------------------------------


@rule("QuantizedBatchNormWithGlobalNormalization")
@with_operators
def quantized_batch_norm(
    xp: ValueBackend, x: Value, *operands: Value, variance_epsilon: float, scale_after_normalization: bool
) -> list[Value]:
    """Normalise in fixed point, with a range that is always the same."""
    low, high, *rest = operands
    mean, variance, beta, gamma = (
        numbers(xp, *of_one, UINT8) for of_one in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    )
    last = xp.full_like(low, float(1 << 20))
    first = -last
    scale = 1.0 / xp.sqrt(variance + variance_epsilon)
    if scale_after_normalization:
        scale = scale * gamma
    offset = -mean * scale + beta

    def fixed(v: Value) -> Value:
        return codes(xp, v, first, last, INT32)

    product = fixed(numbers(xp, x, low, high, UINT8)) * fixed(scale)
    unit = fixed(xp.ones_like(low))
    return [truncated_divide(xp, product, unit) + fixed(offset), first, last]


@rule("QuantizedInstanceNorm")
@with_operators
def quantized_instance_norm(
    xp: ValueBackend, x: Value, low: Value, high: Value, *, output_range_given: bool = False, given_y_min: float = 0.0,
    given_y_max: float = 0.0, variance_epsilon: float = 1e-5, min_separation: float = 1e-3,
) -> list[Value]:  # fmt: skip
    step, plain = (high - low) / 255.0, single(xp, x)
    centred = step * (plain - xp.mean(plain, axis=(1, 2), keepdims=True))
    variance = xp.mean(xp.square(centred), axis=(1, 2), keepdims=True)
    normed = centred * xp.rsqrt(variance + variance_epsilon)
    if output_range_given:
        first, last = xp.full_like(low, given_y_min), xp.full_like(low, given_y_max)
    else:
        first, last = xp.min(normed), xp.max(normed)
    near = last - first < min_separation
    last = xp.where(near, first + min_separation, last)
    return [codes_narrow(xp, normed, first, last, UINT8), first, last]
