"""Integers with scales and zero points, for a whole array or along one axis (`Uniform*`): products in int32, which are
brought to another scale in fixed point, as in TFLite."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints
from tensorgraft.frontends.tensorflow.rules.quantized.ranges import (
    INT8,
    INT32,
    double,
    limits,
    round_half_away,
    single,
    wide,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


def _broadcastable(xp: Any, v: AnyArray, rank: int, axis: int) -> AnyArray:
    """Scales or zero points for an array of so many axes."""
    return v if xp.ndim(v) == 0 else xp.reshape(v, tuple(-1 if a == axis else 1 for a in range(rank)))


@with_operators
def _codes(xp: ValueBackend, x: Value, scale: Value, zero: Value, least: int, most: int, dtype: np.dtype) -> Value:
    steps = xp.floor(x * (1.0 / scale) + 0.5)
    clamped = wide(xp, xp.clip(double(xp, steps), *map(float, limits(INT32))))
    return xp.astype(xp.clip(clamped + wide(xp, zero), least, most), dtype)


@rule("UniformQuantize")
def uniform_quantize(
    xp: Backend, x: Array, scale: Array, zero: Array, *, Tout: np.dtype, quantization_axis: int = -1,
    quantization_min_val: int, quantization_max_val: int,
) -> Array:  # fmt: skip
    scale, zero = (_broadcastable(xp, v, xp.ndim(x), quantization_axis) for v in (scale, zero))
    return _codes(xp, x, scale, zero, quantization_min_val, quantization_max_val, Tout)


@rule("UniformDequantize")
def uniform_dequantize(xp: Backend, x: Array, scale: Array, zero: Array, *, quantization_axis: int = -1) -> Array:
    scale, zero = (_broadcastable(xp, v, xp.ndim(x), quantization_axis) for v in (scale, zero))
    return xp.multiply(single(xp, xp.subtract(xp.astype(x, INT32), zero)), scale)


# ---- in fixed point --------------------------------------------------------------------------------------------------


def _multiplier(xp: ValueBackend, factor: Value) -> tuple[Value, Value]:
    """Return (31 bits of a positive float64, the power of two), read off its bits."""
    shape = factor.shape
    bits = xp.reshape(xp.bitcast(xp.reshape(factor, (-1,)), dtypes.int64), shape)
    shift = (bits >> xp.full((), 52, dtypes.int64)) - 1022
    mantissa = (bits & xp.full((), (1 << 52) - 1, dtypes.int64)) | xp.full((), 1 << 52, dtypes.int64)
    fixed = (mantissa + (1 << 21)) >> xp.full((), 22, dtypes.int64)
    full = fixed == 1 << 31
    fixed = xp.where(full, xp.full_like(fixed, 1 << 30), fixed)
    shift = xp.where(full, shift + 1, shift)
    small, large = shift < -31, shift > 30
    fixed = xp.where(small, xp.zeros_like(fixed), xp.where(large, xp.full_like(fixed, (1 << 31) - 1), fixed))
    return fixed, xp.where(small, xp.zeros_like(shift), xp.where(large, xp.full_like(shift, 30), shift))


@with_operators
def _rescaled(xp: ValueBackend, x: Value, factor: Value, zero: Value, least: int, most: int, dtype: np.dtype) -> Value:
    """Multiply int32 by a float64 factor, round once, and add a zero point."""
    fixed, shift = _multiplier(xp, factor)
    total = 31 - shift
    half = xp.ones_like(total) << (total - 1)
    out = (wide(xp, x) * fixed + half) >> total
    out = xp.astype(xp.clip(out, *limits(INT32)), INT32)
    return xp.astype(xp.clip(out + zero, least, most), dtype)


def _requantized(
    xp: Backend, x: Array, source: tuple[Array, Array, int], target: tuple[Array, Array, int], least: int, most: int,
    dtype: np.dtype,
) -> Array:  # fmt: skip
    rank = xp.ndim(x)
    (scale, zero), (new_scale, new_zero) = (
        tuple(_broadcastable(xp, v, rank, axis) for v in (a, b)) for a, b, axis in (source, target)
    )
    factor = xp.divide(double(xp, scale), double(xp, new_scale))
    return _rescaled(xp, xp.subtract(xp.astype(x, INT32), zero), factor, new_zero, least, most, dtype)


@rule("UniformRequantize")
def uniform_requantize(
    xp: Backend, x: Array, scale: Array, zero: Array, new_scale: Array, new_zero: Array, *, Tout: np.dtype,
    input_quantization_axis: int = -1, output_quantization_axis: int = -1, output_quantization_min_val: int,
    output_quantization_max_val: int,
) -> Array:  # fmt: skip
    return _requantized(
        xp,
        x,
        (scale, zero, input_quantization_axis),
        (new_scale, new_zero, output_quantization_axis),
        output_quantization_min_val,
        output_quantization_max_val,
        Tout,
    )


@rule("UniformQuantizedAdd")
def uniform_add(
    xp: Backend, a: Array, b: Array, scale_a: Array, zero_a: Array, scale_b: Array, zero_b: Array, scale: Array,
    zero: Array, *, lhs_quantization_axis: int = -1, rhs_quantization_axis: int = -1,
    output_quantization_axis: int = -1, output_quantization_min_val: int, output_quantization_max_val: int,
) -> Array:  # fmt: skip
    rank = max(xp.ndim(a), xp.ndim(b))

    def moved(x: Array, x_scale: Array, own_zero: Array, axis: int) -> Array:
        target = output_quantization_axis - (rank - xp.ndim(x)) if output_quantization_axis != -1 else -1
        none = xp.zeros_like(zero)
        return _requantized(xp, x, (x_scale, own_zero, axis), (scale, none, target), *limits(INT32), INT32)

    total = xp.add(moved(a, scale_a, zero_a, lhs_quantization_axis), moved(b, scale_b, zero_b, rhs_quantization_axis))
    total = xp.add(total, _broadcastable(xp, zero, rank, output_quantization_axis))
    return xp.clip(total, output_quantization_min_val, output_quantization_max_val)


@rule("UniformQuantizedClipByValue")
def uniform_clip(
    xp: Backend, x: Array, low: Array, high: Array, scale: Array, zero: Array, *, quantization_axis: int = -1
) -> Array:
    low, high = (_broadcastable(xp, v, xp.ndim(x), quantization_axis) for v in (low, high))
    return xp.minimum(xp.maximum(x, low), high)


# ---- products --------------------------------------------------------------------------------------------------------


def _centred(xp: Any, x: AnyArray, zero: AnyArray, axis: int) -> AnyArray:
    return xp.subtract(xp.astype(x, INT32), _broadcastable(xp, zero, xp.ndim(x), axis))


@with_operators
def _product_scale(xp: ValueBackend, scale_a: Value, scale_b: Value, scale: Value) -> Value:
    """Return the factor (float64) that a product in int32 is multiplied by."""
    return double(xp, scale_a) * double(xp, scale_b) / double(xp, scale)


@rule("UniformQuantizedDot")
def uniform_dot(
    xp: Backend, a: Array, b: Array, scale_a: Array, zero_a: Array, scale_b: Array, zero_b: Array, scale: Array,
    zero: Array, *, Tout: np.dtype, output_quantization_min_val: int, output_quantization_max_val: int,
) -> Array:  # fmt: skip
    total = xp.dot_general(_centred(xp, a, zero_a, -1), _centred(xp, b, zero_b, 1), ((1,), (0,)))
    factor = _product_scale(xp, scale_a, scale_b, scale)
    return _rescaled(xp, total, factor, zero, output_quantization_min_val, output_quantization_max_val, Tout)


def _rows_in_codes(xp: ValueBackend, x: Value) -> tuple[Value, Value, Value]:
    """Return (int8, scales, zero points) of each element of the first axis, by the range of its numbers and zero."""
    over = tuple(range(1, x.ndim))
    least, most = map(float, limits(INT8))
    low, high = (double(xp, f(x, axis=over, keepdims=True)) for f in (xp.min, xp.max))
    low, high = xp.minimum(low, xp.zeros_like(low)), xp.maximum(high, xp.zeros_like(high))
    is_empty = low == high
    exact = (high - low) / (most - least)
    exact = xp.where(is_empty, xp.ones_like(exact), exact)
    by_low, by_high = low / exact, high / exact
    nearer = abs(by_low) + abs(least) < abs(by_high) + abs(most)
    zero = xp.where(nearer, least - by_low, most - by_high)
    zero = round_half_away(xp, xp.clip(zero, least, most))
    zero = xp.astype(wide(xp, xp.where(is_empty, xp.zeros_like(zero), zero)), INT32)
    scale = single(xp, exact)
    return _codes(xp, x, scale, zero, int(least), int(most), INT8), scale, zero


@rule("UniformQuantizedDotHybrid")
@with_operators
def uniform_dot_hybrid(xp: ValueBackend, a: Value, b: Value, scale_b: Value, zero_b: Value) -> Value:
    codes, scale, zero = _rows_in_codes(xp, a)
    total = xp.dot_general(xp.astype(codes, INT32) - zero, _centred(xp, b, zero_b, 1), ((1,), (0,)))
    return single(xp, total) * scale * scale_b


class _Layout:
    """The positions of batch, channels and space in the operands of a convolution, from its attributes."""

    def __init__(
        self, a_shape: Ints, b_shape: Ints, window_strides: Ints, padding: str, explicit_padding: Ints,
        lhs_dilation: Ints, rhs_dilation: Ints, feature_group_count: int, batch_group_count: int,
        dimension_numbers: str | bytes,
    ) -> None:  # fmt: skip
        rank = len(a_shape)
        space = rank - 2
        fields = _fields(dimension_numbers)
        self.input = self._axes(fields, "input_batch", "input_feature", "input_spatial", rank)
        self.kernel = self._axes(fields, "kernel_output_feature", "kernel_input_feature", "kernel_spatial", rank)
        self.output = self._axes(fields, "output_batch", "output_feature", "output_spatial", rank)
        unit_steps = (1,) * space
        self.strides, self.spread = window_strides or unit_steps, lhs_dilation or unit_steps
        self.dilations = rhs_dilation or unit_steps
        self.groups, self.batch_groups = feature_group_count, batch_group_count
        self.pads = []
        for i in range(space):
            n = (a_shape[self.input[2 + i]] - 1) * self.spread[i] + 1
            k = (b_shape[self.kernel[2 + i]] - 1) * self.dilations[i] + 1
            total = max((-(-n // self.strides[i]) - 1) * self.strides[i] + k - n, 0) if padding == "SAME" else 0
            pair = (explicit_padding[2 * i], explicit_padding[2 * i + 1]) if padding == "EXPLICIT" else None
            self.pads.append(pair or (total // 2, total - total // 2))

    @staticmethod
    def _axes(fields: dict[str, Ints], first: str, second: str, rest: str, rank: int) -> Ints:
        if not fields:
            return tuple(range(rank))
        return (
            *fields.get(f"{first}_dimension", (0,)),
            *fields.get(f"{second}_dimension", (0,)),
            *fields[f"{rest}_dimensions"],
        )

    def apply(self, xp: Any, a: AnyArray, b: AnyArray) -> AnyArray:
        """Return the product, int32 (batch, channels, space), of integers whose zero point is 0."""
        a, b = (xp.permute_dims(double(xp, x), axes) for x, axes in ((a, self.input), (b, self.kernel)))
        out = xp.convolution(a, b, self.strides, self.pads, self.spread, self.dilations, self.groups, self.batch_groups)
        return xp.astype(wide(xp, out), INT32)

    def finish(self, xp: Any, out: AnyArray) -> AnyArray:
        return xp.permute_dims(out, tuple(int(i) for i in np.argsort(self.output)))


def _fields(numbers: str | bytes) -> dict[str, Ints]:
    """Parse a message in TensorFlow's serialised form: numbers by the names of its fields."""
    data = numbers.encode("latin-1") if isinstance(numbers, str) else numbers
    names = [
        "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
        "kernel_input_feature_dimension", "kernel_output_feature_dimension", "kernel_spatial_dimensions",
        "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions",
    ]  # fmt: skip
    fields: dict[str, Ints] = {}
    i = 0
    while i < len(data):
        name, kind = names[(data[i] >> 3) - 1], data[i] & 7
        count = data[i + 1] if kind == 2 else 1  # axes are small: a byte each
        i += 1 + (kind == 2)
        fields[name] = (*fields.get(name, ()), *data[i : i + count])
        i += count
    return fields


@rule("UniformQuantizedConvolution")
def uniform_convolution(
    xp: Backend, a: Array, b: Array, scale_a: Array, zero_a: Array, scale_b: Array, zero_b: Array, scale: Array,
    zero: Array, *, Tout: np.dtype, padding: str, window_strides: Ints = (), explicit_padding: Ints = (),
    lhs_dilation: Ints = (), rhs_dilation: Ints = (), batch_group_count: int = 1, feature_group_count: int = 1,
    dimension_numbers: str | bytes = "", rhs_quantization_axis: int = -1, output_quantization_min_val: int,
    output_quantization_max_val: int,
) -> Array:  # fmt: skip
    layout = _Layout(
        xp.shape(a), xp.shape(b), window_strides, padding, explicit_padding, lhs_dilation, rhs_dilation,
        feature_group_count, batch_group_count, dimension_numbers,
    )  # fmt: skip
    total = layout.apply(xp, _centred(xp, a, zero_a, -1), _centred(xp, b, zero_b, rhs_quantization_axis))
    factor = _broadcastable(xp, _product_scale(xp, scale_a, scale_b, scale), xp.ndim(total), 1)
    zero = _broadcastable(xp, zero, xp.ndim(total), 1)
    out = _rescaled(xp, total, factor, zero, output_quantization_min_val, output_quantization_max_val, Tout)
    return layout.finish(xp, out)


@rule("UniformQuantizedConvolutionHybrid")
@with_operators
def uniform_convolution_hybrid(
    xp: ValueBackend, a: Value, b: Value, scale_b: Value, zero_b: Value, *, padding: str, window_strides: Ints = (),
    explicit_padding: Ints = (), lhs_dilation: Ints = (), rhs_dilation: Ints = (), batch_group_count: int = 1,
    feature_group_count: int = 1, dimension_numbers: str | bytes = "", rhs_quantization_axis: int = -1,
) -> Value:  # fmt: skip
    layout = _Layout(
        a.shape, b.shape, window_strides, padding, explicit_padding, lhs_dilation, rhs_dilation,
        feature_group_count, batch_group_count, dimension_numbers
    )  # fmt: skip
    rows = xp.permute_dims(a, layout.input)
    codes, scale, zero = _rows_in_codes(xp, rows)
    centred = xp.permute_dims(xp.astype(codes, INT32) - zero, tuple(int(i) for i in np.argsort(layout.input)))
    total = layout.apply(xp, centred, _centred(xp, b, zero_b, rhs_quantization_axis))
    if batch_group_count > 1:  # the batch group of each channel
        batch_size, channels = total.shape[:2]
        per = xp.reshape(scale, (batch_group_count, batch_size))
        per = xp.broadcast_to(
            xp.expand_dims(xp.permute_dims(per, (1, 0)), 2),
            (batch_size, batch_group_count, channels // batch_group_count),
        )
        scale = xp.reshape(per, (batch_size, channels, *[1] * (total.ndim - 2)))
    out = single(xp, total) * scale * _broadcastable(xp, scale_b, total.ndim, 1)
    return layout.finish(xp, out)
