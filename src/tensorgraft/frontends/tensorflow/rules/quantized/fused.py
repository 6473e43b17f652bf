"""Products of quantised integers with bias, activation and another range in one operation. TensorFlow computes them
with oneDNN, whose filters and right factors are symmetric, of int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints, pads
from tensorgraft.frontends.tensorflow.rules.quantized.kernels import convolved, quantized_convolution
from tensorgraft.frontends.tensorflow.rules.quantized.ranges import (
    INT8,
    INT32,
    UINT8,
    double,
    limits,
    narrowed,
    range_of_steps,
    single,
    step_of,
    wide,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

# True for oneDNN of TensorFlow 2.22 and later; earlier ones multiply by the product of the scales.
_ONE_AFTER_ANOTHER = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 22)


def _largest(xp: Any, low: AnyArray, high: AnyArray) -> AnyArray:
    return xp.maximum(xp.abs(low), xp.abs(high))


def _saturated(xp: Any, x: AnyArray, dtype: np.dtype) -> AnyArray:
    """Round float32 to integers: halves to even, held."""
    return narrowed(xp, wide(xp, xp.clip(xp.round(double(xp, x)), *map(float, limits(INT32)))), dtype)


@with_operators
def _finished(
    xp: ValueBackend, total: Value, units: tuple[Value, Value], bias: Value | None, ranges: tuple[Value, ...],
    relu: bool, out_type: np.dtype, own_range: tuple[Value, Value],
) -> list[Value]:  # fmt: skip
    """Return the sums of products, with bias, in the requested range. `units`: the value of a step of each factor."""
    unit = xp.multiply(*units)
    if bias is not None and bias.dtype == INT32:
        bias = single(xp, bias) * unit
    if out_type == INT32 and bias is None and unit.ndim == 0:
        return [xp.maximum(total, 0) if relu else total, *own_range]
    out = single(xp, total)
    for scale in units if _ONE_AFTER_ANOTHER else (unit,):
        out = out * scale
    if bias is not None:
        out = out + bias
    if relu:
        out = xp.maximum(out, xp.zeros_like(out))
    if out_type == dtypes.float32:
        return [out]
    if out_type == INT32:
        return [_saturated(xp, out * (1.0 / xp.max(unit)), INT32), *own_range]  # one scale for all channels
    first, last = ranges
    step = _largest(xp, first, last) / float(limits(out_type)[1])
    return [_saturated(xp, out * (1.0 / step), out_type), first, last]


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(relu: bool, has_bias: bool, by_channel: bool) -> Callable[..., list[Array]]:
    def fused(
        xp: Backend, x: Array, w: Array, *operands: Array, out_type: np.dtype = INT32, strides: Ints, padding: str,
        dilations: Ints = (1, 1, 1, 1), padding_list: Ints = (),
    ) -> list[Array]:  # fmt: skip
        bias = operands[0] if has_bias else None
        low, high, w_low, w_high, *ranges = operands[int(has_bias) :]
        if xp.dtype_of(w) == UINT8:
            return quantized_convolution(xp, x, w, low, high, w_low, w_high, strides=strides, padding=padding)
        explicit = tuple(padding_list)
        pad_widths = pads(
            xp.shape(x)[1:3],
            xp.shape(w)[:2],
            strides[1:3],
            dilations[1:3],
            "EXPLICIT" if explicit else padding,
            explicit,
        )
        groups = 1
        if by_channel:
            height, width, channels, multiplier = xp.shape(w)
            w, groups = xp.reshape(w, (height, width, 1, channels * multiplier)), channels
        total = convolved(xp, x, w, strides[1:3], pad_widths, dilations[1:3], groups)
        dtype = xp.dtype_of(x)
        units = (
            xp.divide(_largest(xp, low, high), float(limits(dtype)[1])),
            xp.divide(_largest(xp, w_low, w_high), 127.0),
        )
        step = xp.multiply(step_of(xp, low, high, dtype, True), step_of(xp, w_low, w_high, INT8, True))
        return _finished(xp, total, units, bias, tuple(ranges), relu, out_type, range_of_steps(xp, step))

    return fused


for _start, _by_channel in (("QuantizedConv2D", False), ("QuantizedDepthwiseConv2D", True)):
    for _has_bias in (False, True):
        for _relu in (False, True):
            _fused = _convolution(_relu, _has_bias, _by_channel)
            _name = _start + ("WithBias" if _has_bias else "") + ("AndRelu" if _relu else "")
            if not (_by_channel and _relu and not _has_bias):
                rule(_name)(_fused)
            if not _by_channel or (_has_bias and _relu):
                rule(f"{_name}AndRequantize")(_fused)
rule("QuantizedConv2DPerChannel")(_convolution(False, False, False))


# ---- products of matrices --------------------------------------------------------------------------------------------


def _matmul(relu: bool) -> Callable[..., list[Array]]:
    @with_operators
    def fused(
        xp: ValueBackend, a: Value, b: Value, bias: Value, low: Value, high: Value, b_low: Value, b_high: Value,
        *ranges: Value, Toutput: np.dtype = INT32, transpose_a: bool = False, transpose_b: bool = False,
        input_quant_mode: str = "MIN_FIRST",
    ) -> list[Value]:  # fmt: skip
        left, right = xp.astype(a, INT32), xp.astype(b, INT32)
        total = xp.dot_general(left, right, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))
        first = input_quant_mode == "MIN_FIRST"
        units = ((high - low if first else _largest(xp, low, high)) / 255.0, _largest(xp, b_low, b_high) / 127.0)
        if first and bias.dtype != INT32:
            # The left factor's lowest number adds this in steps; TensorFlow adds it so to a bias that is in none.
            sums = single(xp, xp.sum(right, axis=1 if transpose_b else 0))
            bias = bias + sums * (low * 255.0 / (high - low))
        step = step_of(xp, low, high, UINT8) * step_of(xp, b_low, b_high, INT8, True)
        return _finished(xp, total, units, bias, ranges, relu, Toutput, range_of_steps(xp, step))

    return fused


rule("QuantizedMatMulWithBias", "QuantizedMatMulWithBiasAndRequantize", "QuantizedMatMulWithBiasAndDequantize")(
    _matmul(False)
)
rule("QuantizedMatMulWithBiasAndRelu", "QuantizedMatMulWithBiasAndReluAndRequantize")(_matmul(True))


# ---- scales of channels ----------------------------------------------------------------------------------------------


@rule("RequantizationRangePerChannel")
@with_operators
def requantization_range_per_channel(
    xp: ValueBackend, x: Value, low: Value, high: Value, *, clip_value_max: float
) -> list[Value]:
    over = tuple(range(x.ndim - 1))
    first, last = wide(xp, xp.min(x, axis=over)), wide(xp, xp.max(x, axis=over))
    most = single(xp, xp.maximum(abs(first), abs(last)))
    ranges = _largest(xp, low, high) * most / float(1 << 31)
    top = xp.minimum(xp.max(ranges), xp.full((), clip_value_max, dtypes.float32))
    bottom = xp.where(xp.min(first) < 0, -top, xp.zeros_like(top))
    return [bottom, top]


@rule("RequantizePerChannel")
@with_operators
def requantize_per_channel(
    xp: ValueBackend, x: Value, low: Value, high: Value, first: Value, last: Value, *, out_type: np.dtype = UINT8
) -> list[Value]:
    scale = _largest(xp, low, high) / _largest(xp, first, last) / float(1 << 31)
    scale = scale * float(limits(out_type)[1])
    return [_saturated(xp, single(xp, x) * scale, out_type), first, last]
