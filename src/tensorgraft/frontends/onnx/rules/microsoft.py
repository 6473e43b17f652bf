"""Rules for `com.microsoft`, the operators of onnxruntime: fused products, layers and activations, and products of
quantised values."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import RULES, rule, rules_of
from tensorgraft.frontends.onnx.rules.convolution import average_pool, conv, conv_transpose, max_pool, qlinear_conv
from tensorgraft.frontends.onnx.rules.indexing import unique
from tensorgraft.frontends.onnx.rules.products import gemm
from tensorgraft.frontends.onnx.rules.quantized import (
    dequantize_linear,
    dynamic_quantize_linear,
    quantized,
    shifted,
    zero_point_of,
)
from tensorgraft.frontends.onnx.rules.recurrent import LayerOptions, RecurrentLayer, lstm_of
from tensorgraft.frontends.onnx.rules.recurrent import activation as named_activation
from tensorgraft.frontends.onnx.rules.reduction import GLOBAL_POOLS
from tensorgraft.frontends.onnx.rules.resize import bilinear_at
from tensorgraft.frontends.onnx.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators

DOMAIN = "com.microsoft"

SAME = ("Trilu", "GatherND", "Range", "Pad", "Gelu", "GridSample", "QuantizeLinear", "DequantizeLinear")
RULES.update({(DOMAIN, op): RULES["", op] for op in SAME})
RULES[DOMAIN, "ExpandDims"] = RULES["", "Unsqueeze"]


# ---- activations -----------------------------------------------------------------------------------------------------


def _biased(xp: Any, x: Any, bias: Any) -> Any:
    return x if bias is None else xp.add(x, bias)


rules_of(
    {
        "BiasGelu": lambda xp, x, bias=None: xp.gelu(_biased(xp, x, bias)),
        "FastGelu": lambda xp, x, bias=None: xp.gelu(_biased(xp, x, bias), True),
        "GemmFastGelu": lambda xp, x, w, bias=None: xp.gelu(_biased(xp, xp.matmul(x, w), bias), True),
        "QuickGelu": with_operators(lambda xp, x, *, alpha=1.702: x * xp.sigmoid(x * alpha)),
    },
    domain=DOMAIN,
)


def activated(xp: Any, x: Any, name: str, parameters: Sequence[float | None]) -> Any:
    """Return x after the activation of a fused operator: `Clip` of two bounds, or one of recurrent layers."""
    if not name:
        return x
    alpha, beta = (*parameters, None, None)[:2]
    return xp.clip(x, alpha, beta) if name == "Clip" else named_activation(name, alpha, beta)(xp, x)


# ---- products and convolutions ---------------------------------------------------------------------------------------


def _oriented(xp: Any, x: Any, transposed: int, batch: int) -> Any:
    """Return a matrix with its last axes swapped, after its first axis was moved to the end of the batch axes."""
    rank = len(x.shape)
    if batch and rank > 2:
        x = xp.moveaxis(x, 0, rank - 2)
    return xp.matrix_transpose(x) if transposed and rank > 1 else x


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=DOMAIN)
def fused_matmul(
    xp: Any, a: Any, b: Any, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None,
) -> Any:  # fmt: skip
    y = xp.matmul(_oriented(xp, a, transA, transBatchA), _oriented(xp, b, transB, transBatchB))
    y = y if alpha == 1 else xp.multiply(y, alpha)
    return activated(xp, y, activation, (activation_alpha, activation_beta))


@rule("FusedGemm", domain=DOMAIN, like=[("", "Gemm")])
def fused_gemm(
    xp: Any, a: Any, b: Any, c: Any = None, *, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, **attributes: Any,
) -> Any:  # fmt: skip
    return activated(xp, gemm(xp, a, b, c, **attributes), activation, (activation_alpha, activation_beta))


def _channels_first(xp: Any, x: Any, is_last: bool = True) -> Any:
    return xp.moveaxis(x, -1, 1) if is_last else x


def _channels_last(xp: Any, x: Any, is_last: bool = True) -> Any:
    return xp.moveaxis(x, 1, -1) if is_last else x


@rule("FusedConv", domain=DOMAIN, like=[("", "Conv")])
def fused_conv(
    xp: Any, x: Any, w: Any, b: Any = None, z: Any = None, *, activation: str = "",
    activation_params: tuple[float, ...] = (), **attributes: Any,
) -> Any:  # fmt: skip
    """Convolve, add `z`, and apply an activation."""
    y = conv(xp, x, w, b, **attributes)
    return activated(xp, y if z is None else xp.add(y, z), activation, activation_params)


@rule("NhwcConv", "NhwcFusedConv", domain=DOMAIN, like=[(DOMAIN, "FusedConv")])
def nhwc_conv(xp: Any, x: Any, w: Any, b: Any = None, z: Any = None, **attributes: Any) -> Any:
    z = None if z is None else _channels_first(xp, z)
    return _channels_last(xp, fused_conv(xp, _channels_first(xp, x), w, b, z, **attributes))


@rule("ConvTransposeWithDynamicPads", domain=DOMAIN, known=("pads",), like=[("", "ConvTranspose")])
def conv_transpose_with_pads(xp: Any, x: Any, w: Any, pads: Any = None, b: Any = None, **attributes: Any) -> Any:
    return conv_transpose(xp, x, w, b, **{**attributes, "pads": () if pads is None else ints(pads)})


# ---- normalisation ---------------------------------------------------------------------------------------------------


@rule("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(
    xp: Any, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None, *, epsilon: float = 1e-12
) -> Any:
    total = _biased(xp, xp.add(x, skip), bias)
    return [xp.layer_norm(total, gamma, beta, 1, epsilon), None, None, total]


@rule("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_rms_normalization(xp: Any, x: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-12) -> Any:
    total = _biased(xp, xp.add(x, skip), bias)
    return [xp.rms_norm(total, gamma, 1, epsilon), None, None, total]


@rule("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(
    xp: Any, ids: Any, segment_ids: Any, words: Any, positions: Any, segments: Any, gamma: Any, beta: Any,
    mask: Any = None, position_ids: Any = None, *, epsilon: float = 1e-12, mask_index_type: int = 0,
) -> Any:  # fmt: skip
    """Return (the standardized sum of the embeddings, how many tokens of each row the mask counts, the sum)."""
    batch, length = ids.shape
    at = xp.iota(length, dtypes.int32) if position_ids is None else position_ids
    total = xp.add(xp.take(words, ids, 0), xp.take(positions, at, 0))
    if segment_ids is not None and segments is not None:
        total = xp.add(total, xp.take(segments, segment_ids, 0))
    counted = xp.zeros((batch,), dtypes.int32) if mask is None else xp.astype(xp.sum(mask, 1), dtypes.int32)
    return [xp.layer_norm(total, gamma, beta, 1, epsilon), counted, total]


# ---- others ----------------------------------------------------------------------------------------------------------


@with_operators
def cdist(xp: Any, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    squares = xp.sum(xp.square(xp.expand_dims(a, 1) - b), 2)
    return squares if metric == "sqeuclidean" else xp.sqrt(squares)


def is_all_finite(xp: Any, *inputs: Any, isinf_only: int = 0, isnan_only: int = 0) -> Any:
    strange = xp.isinf if isinf_only else xp.isnan if isnan_only else lambda x: xp.logical_not(xp.isfinite(x))
    return xp.logical_not(xp.any(xp.stack([xp.any(strange(x)) for x in inputs])))


rules_of({"Inverse": lambda xp, x: xp.inv(x), "CDist": cdist, "IsAllFinite": is_all_finite}, domain=DOMAIN)


@rule("Unique", domain=DOMAIN, known=("x",))
def unique_(xp: Any, x: Any) -> Any:
    """Return (values in the order of their first places, the number of the value of each element, counts)."""
    values, _, *rest = unique(xp, x, sorted_=0)
    return [values, *rest]


@rule("CropAndResize", domain=DOMAIN, known=("crop_size",))
def crop_and_resize(
    xp: Any, x: Any, rois: Any, batch_indices: Any, crop_size: Any, *, extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Any:  # fmt: skip
    """Read regions of images (N, C, H, W) at `crop_size` points an axis. A region (y1, x1, y2, x2) has the centres of
    the first and last pixels at 0 and 1."""
    images = xp.take(x, batch_indices, 0)
    dtype, count = xp.dtype_of(x), rois.shape[0]
    places, within = [], []
    for i, (n, size) in enumerate(zip(x.shape[2:], ints(crop_size), strict=True)):
        low, high = (xp.take_slice(rois, 1, j, j + 1) for j in (i, i + 2))
        part = np.arange(size) / (size - 1) if size > 1 else np.array([0.5])
        at = _between(xp, low, high, xp.asarray(part.astype(dtype)), n - 1.0)
        shape_ = (count, size, 1) if i == 0 else (count, 1, size)
        places.append(xp.broadcast_to(xp.reshape(at, shape_), (count, *ints(crop_size))))
        within += [xp.greater_equal(places[-1], 0), xp.less_equal(places[-1], n - 1)]
    if mode == "nearest":
        places = [xp.floor(xp.add(p, 0.5)) for p in places]
    bounded = [xp.clip(p, 0.0, n - 1.0) for p, n in zip(places, x.shape[2:], strict=True)]
    read = bilinear_at(xp, images, *bounded)
    return xp.where(xp.expand_dims(functools.reduce(xp.logical_and, within), 1), read, extrapolation_value)


_between = with_operators(lambda xp, low, high, part, extent: (low + (high - low) * part) * extent)


# ---- quantised values ------------------------------------------------------------------------------------------------


def _dequantized(xp: Any, x: Any, scale: Any, zero: Any) -> Any:
    return dequantize_linear(xp, x, scale, zero, axis=0)


def _quantized_as(xp: Any, real: Any, scale: Any, zero: Any, like: Any) -> Any:
    """Return real values quantised by a scale and a zero point, without which the element type is that of `like`."""
    return quantized(
        xp, xp.divide(real, xp.reshape(scale, ())), zero, zero_point_of(xp, like if zero is None else zero)
    )


def _of_codes(fn: Any) -> Any:
    """Return a function of real values as one of quantised values, each of which has its scale and its zero point."""

    def of_one(xp: Any, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None, **options: Any) -> Any:
        return _quantized_as(xp, fn(xp, _dequantized(xp, x, x_scale, x_zero), **options), y_scale, y_zero, x)

    return of_one


def _of_two_codes(fn: Any) -> Any:
    def of_two(
        xp: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any = None
    ) -> Any:
        real = fn(xp, _dequantized(xp, a, a_scale, a_zero), _dequantized(xp, b, b_scale, b_zero))
        return _quantized_as(xp, real, y_scale, y_zero, a)

    return of_two


def _of_last_channels(fn: Any) -> Any:
    """Return a function of values (N, C, ...) as one of (N, ..., C), if the node says so."""

    def of_layout(xp: Any, x: Any, *, channels_last: int = 0, **options: Any) -> Any:
        y = fn(xp, _channels_first(xp, x, bool(channels_last)), **options)
        return _channels_last(xp, y, bool(channels_last))

    return of_layout


def _softmax(xp: Any, x: Any, *, axis: int = -1, node: Any = None) -> Any:
    """The version of the softmax is an attribute."""
    return RULES["", "Softmax"].fn(xp, x, axis=axis % len(x.shape), opset=node.attributes.get("opset", 13))


for _op in ("Add", "Mul"):
    rule(f"QLinear{_op}", domain=DOMAIN, state=("a_scale", "b_scale", "y_scale"))(_of_two_codes(RULES["", _op].fn))
for _op, _fn in {
    "Sigmoid": RULES["", "Sigmoid"].fn, "LeakyRelu": RULES["", "LeakyRelu"].fn, "Softmax": _softmax,
    "ReduceMean": lambda xp, x, *, axes=(), keepdims=1: xp.mean(x, axes or None, bool(keepdims)),
    "AveragePool": _of_last_channels(average_pool),
    "GlobalAveragePool": _of_last_channels(GLOBAL_POOLS["GlobalAveragePool"]),
}.items():  # fmt: skip
    _like: list[Any] = [_fn, *([("", _op)] if _op.endswith("Pool") else [])]
    rule(f"QLinear{_op}", domain=DOMAIN, state=("x_scale", "y_scale"), like=_like)(_of_codes(_fn))


def _requantized(xp: Any, triples: Sequence[Any], scale: Any, zero: Any) -> list[Any]:
    """Return values, each given as (integers, scale, zero point), as integers of one scale and zero point."""
    return [_quantized_as(xp, _dequantized(xp, *t), scale, zero, t[0]) for t in triples]


@rule("QLinearConcat", domain=DOMAIN, state=("y_scale",))
def qlinear_concat(xp: Any, y_scale: Any, y_zero: Any, *inputs: Any, axis: int) -> Any:
    """Concatenate values, each of which is followed by its scale and its zero point."""
    triples = [inputs[i : i + 3] for i in range(0, len(inputs), 3)]
    return xp.concat(_requantized(xp, triples, y_scale, y_zero), axis=axis)


@rule("QLinearWhere", domain=DOMAIN, state=("x_scale", "y_scale", "z_scale"))
def qlinear_where(
    xp: Any, condition: Any, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, z_scale: Any,
    z_zero: Any,
) -> Any:  # fmt: skip
    return xp.where(condition, *_requantized(xp, [(x, x_scale, x_zero), (y, y_scale, y_zero)], z_scale, z_zero))


@rule("NhwcMaxPool", domain=DOMAIN, like=[("", "MaxPool")])
def nhwc_max_pool(xp: Any, x: Any, **attributes: Any) -> Any:
    return _channels_last(xp, max_pool(xp, _channels_first(xp, x), **attributes))


@rule("QLinearConv", domain=DOMAIN, state=("x_scale", "w_scale", "y_scale"), like=[("", "QLinearConv")])
def qlinear_conv_(
    xp: Any, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any = None, *, channels_last: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    codes = _channels_first(xp, x, bool(channels_last))
    y = qlinear_conv(xp, codes, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b, **attributes)
    return _channels_last(xp, y, bool(channels_last))


scaled = with_operators(lambda xp, x, *factors: x * math.prod(factors[1:], start=factors[0]))


@with_operators
def decoded(xp: Any, codes: Value, zero: Value, scale: Value) -> Value:
    """Return the real values of integers."""
    return (xp.astype(codes, scale.dtype) - zero) * scale


def integer_product(xp: Any, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any, bias: Any) -> Any:
    """Return the real product of quantised matrices; scales and zero points of b may be those of its columns."""
    total = xp.matmul(shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, -1))
    y = scaled(xp, xp.astype(total, xp.dtype_of(b_scale)), a_scale, b_scale)
    return y if bias is None else xp.add(y, bias)


@rule("MatMulIntegerToFloat", domain=DOMAIN, state=("a_scale", "b_scale"))
def matmul_integer_to_float(
    xp: Any, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None, b_zero: Any = None, bias: Any = None
) -> Any:
    return integer_product(xp, a, b, a_scale, b_scale, a_zero, b_zero, bias)


@rule("DynamicQuantizeMatMul", domain=DOMAIN, state=("b_scale",))
def dynamic_quantize_matmul(xp: Any, a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None) -> Any:
    whole, scale, zero = dynamic_quantize_linear(xp, a)
    return integer_product(xp, whole, b, scale, b_scale, zero, b_zero, bias)


class _QuantizedLayer(RecurrentLayer):
    """A layer whose weights are (integers (in, out), scales, zero points), and whose inputs are quantised as they
    come."""

    def sizes(self) -> tuple[int, int]:
        return self.r[0].shape[0], self.r[0].shape[1]

    def product(self, x: Any, weight: Any, bias: Any) -> Any:
        codes, scale, zero = weight
        return dynamic_quantize_matmul(self.xp, x, codes, scale, zero, bias)


@rule("DynamicQuantizeLSTM", domain=DOMAIN, state=("w_scale", "r_scale"), like=[LayerOptions])
def dynamic_quantize_lstm(
    xp: Any, x: Any, w: Any, r: Any, b: Any, sequence_lens: Any, initial_h: Any, initial_c: Any, p: Any, w_scale: Any,
    w_zero: Any, r_scale: Any, r_zero: Any, *, input_forget: int = 0, **options: Any,
) -> Any:  # fmt: skip
    weights, recurrent = (w, w_scale, w_zero), (r, r_scale, r_zero)
    layer = _QuantizedLayer(xp, x, weights, recurrent, b, sequence_lens, [initial_h, initial_c], options)
    return lstm_of(layer, p, input_forget)


@rule("QGemm", domain=DOMAIN, state=("a_scale", "b_scale", "y_scale"))
def qgemm(
    xp: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, c: Any = None, y_scale: Any = None,
    y_zero: Any = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """The bias `c` has the scale of the product."""
    a, b = shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, 0 if transB else -1)
    total = xp.matmul(xp.matrix_transpose(a) if transA else a, xp.matrix_transpose(b) if transB else b)
    total = total if c is None else xp.add(total, c)
    real = scaled(xp, xp.astype(total, dtypes.float32), a_scale, b_scale, alpha)
    return real if y_scale is None else _quantized_as(xp, real, y_scale, y_zero, y_zero)


def unpacked(xp: Any, x: Any, bits: int, count: int) -> Any:
    """Return the last axis of bytes as unsigned integers of `bits` bits, the lowest bits first."""
    if bits == 8:
        return xp.take_slice(x, len(x.shape) - 1, 0, count)
    per = 8 // bits
    shifts = [xp.full((), bits * i, dtypes.uint8) for i in range(per)]
    parts = [xp.bitwise_and(moved, 2**bits - 1) for moved in (xp.bitwise_right_shift(x, n) for n in shifts)]
    whole = xp.reshape(xp.stack(parts, axis=-1), (*x.shape[:-1], x.shape[-1] * per))
    return xp.take_slice(whole, len(whole.shape) - 1, 0, count)


@rule("MatMulNBits", domain=DOMAIN, state=("scales", "zero_points"))
def matmul_nbits(
    xp: Any, a: Any, b: Any, scales: Any, zero_points: Any = None, g_idx: Any = None, bias: Any = None, *, K: int,
    N: int, bits: int = 4, block_size: int,
) -> Any:  # fmt: skip
    """Multiply by a matrix (N, K) of integers of 2, 4 or 8 bits, packed by blocks of a row; `g_idx`: the block of each
    column."""
    if bits not in (2, 4, 8) or (g_idx is not None and bits != 4):
        raise NotImplementedError(
            f"MatMulNBits of {bits} bits{'' if g_idx is None else ' with g_idx'} is not computed here: 4, 2 and 8 bits"
            " are, and 4 bits with g_idx"
        )
    blocks, dtype = -(-K // block_size), xp.dtype_of(a)
    codes = unpacked(xp, xp.reshape(b, (N, blocks, block_size * bits // 8)), bits, block_size)
    scales = xp.reshape(scales, (N, blocks))
    if zero_points is None:
        zeros = xp.full((N, blocks), 2.0 ** (bits - 1), dtype)
    elif xp.dtype_of(zero_points) == dtypes.uint8:
        row = -(-blocks * bits // 8)
        zeros = xp.astype(unpacked(xp, xp.reshape(zero_points, (N, row)), bits, blocks), dtype)
    else:
        zeros = xp.reshape(zero_points, (N, blocks))
    if g_idx is None:
        zeros, scales = (xp.expand_dims(x, 2) for x in (zeros, scales))
        w = decoded(xp, codes, zeros, scales)
        w = xp.take_slice(xp.reshape(w, (N, blocks * block_size)), 1, 0, K)
    else:
        flat = xp.take_slice(xp.reshape(codes, (N, blocks * block_size)), 1, 0, K)
        at = xp.take_slice(g_idx, 0, 0, K)
        zeros, scales = (xp.take(x, at, 1) for x in (zeros, scales))
        w = decoded(xp, flat, zeros, scales)
    return xp.linear(a, w, bias)


@rule("GatherBlockQuantized", domain=DOMAIN, state=("scales",), moves=True)
def gather_block_quantized(
    xp: Any, data: Any, indices: Any, scales: Any, zero_points: Any = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Any:  # fmt: skip
    """Take slices of integers with a scale for each block of an axis; bytes hold 8 / bits of them."""
    dtype, rank = xp.dtype_of(scales), len(data.shape)
    axis = quantize_axis % rank
    blocks, is_packed = scales.shape[axis], xp.dtype_of(data) == dtypes.uint8 and bits < 8
    usual = 2.0 ** (bits - 1) if xp.dtype_of(data) == dtypes.uint8 else 0.0
    codes = xp.take(data, indices, gather_axis)
    shift = len(indices.shape) - 1 if gather_axis % rank < axis else 0
    codes = unpacked(xp, codes, bits, codes.shape[-1] * 8 // bits) if is_packed else codes
    if zero_points is not None and is_packed:
        zero_points = unpacked(xp, zero_points, bits, blocks)
    spread = [
        None if x is None else xp.astype(xp.repeat(xp.take(x, indices, gather_axis), block_size, axis + shift), dtype)
        for x in (scales, zero_points)
    ]
    scale, zero = (None if x is None else xp.take_slice(x, axis + shift, 0, codes.shape[axis + shift]) for x in spread)
    return decoded(xp, codes, usual if zero is None else zero, scale)
