"""Samples of operations on quantised integers. Operands are plain integers, which get TensorFlow's quantised dtypes in
the program; TensorFlow's own results are those of a graph, since it has no other way to oneDNN's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.samples import Sample, numbers
from tests.frontends.tensorflow.samples_of_areas import AREAS, Case, f32, i32

PLAIN = {"qint8": np.int8, "quint8": np.uint8, "qint16": np.int16, "quint16": np.uint16, "qint32": np.int32}


class Code(np.ndarray):
    """An array of integers and the quantised dtype that it has for TensorFlow."""

    quantised: str

    def __array_finalize__(self, of: Any) -> None:
        self.quantised = getattr(of, "quantised", "")


def code(dtype: str, *shape: int, seed: int = 0, top: int | None = None) -> Code:
    info = np.iinfo(PLAIN[dtype])
    low, high = (info.min, info.max) if top is None else (max(info.min, -top), min(info.max, top))
    x = numbers(shape, "float64", low, high + 1, seed)
    out = np.asarray(np.clip(np.floor(x), low, high), PLAIN[dtype]).view(Code)
    out.quantised = dtype
    return out


class QuantisedCase(Case):
    __slots__ = ()

    def flat(self) -> list[tuple[Any, bool]]:
        """oneDNN's filters are constants."""
        return [(x, is_argument and not self._is_filter(i)) for i, (x, is_argument) in enumerate(super().flat())]

    def _is_filter(self, i: int) -> bool:
        return i == 1 and "Conv2D" in self.op and getattr(self.operands[1], "quantised", "") == "qint8"

    def call(self, flat: list[Any]) -> list[Any]:
        if tf.executing_eagerly():
            return tf.function(lambda *arrays: self.call(list(arrays)))(*flat)
        rows = [v for x in self.operands for v in (x if isinstance(x, list) else [x])]
        return super().call([self._typed(i, x, like) for i, (x, like) in enumerate(zip(flat, rows, strict=True))])

    def _typed(self, i: int, x: Any, like: Any) -> Any:
        if not isinstance(like, Code) or not like.quantised:
            return x
        dtype = getattr(tf, like.quantised)
        return tf.constant(np.asarray(like), dtype) if self._is_filter(i) else tf.bitcast(x, dtype)


def case(op: str, *operands: Any, **attributes: Any) -> QuantisedCase:
    return QuantisedCase(op, operands, attributes)


RANGE, OTHER, POSITIVE = (f32(-3.1), f32(5.2)), (f32(-1.3), f32(2.1)), (f32(0), f32(5.3))


def converted() -> Iterator[Sample]:
    """Numbers to integers and back."""
    x = numbers((4, 6), low=-8, high=8)
    each = (-numbers((6,), low=0.1, high=6), numbers((6,), low=1, high=6))
    for dtype, narrow in itertools.product(("qint8", "quint8", "qint16", "quint16", "qint32"), (False, True)):
        codes = code(dtype, 4, 6)
        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
            how = {"mode": mode, "narrow_range": narrow}
            if dtype == "qint32" and narrow:
                continue
            if mode == "SCALED" or not narrow:
                yield case("Dequantize", codes, *RANGE, **how)
                yield case("QuantizeV2", x, *RANGE, T=dtype, **how)
                yield case("QuantizeV2", x, f32(0.5), f32(0.505), T=dtype, ensure_minimum_range=0.1, **how)
            if mode != "MIN_FIRST" and (mode == "SCALED" or not narrow):
                yield case("Dequantize", codes, *each, axis=1, **how)
            if mode == "SCALED" and dtype != "qint32":
                yield case("QuantizeV2", x, *RANGE, T=dtype, round_mode="HALF_TO_EVEN", **how)
            if mode == "SCALED":
                yield case("QuantizeV2", x, *each, T=dtype, axis=1, **how)
        if not narrow:
            yield case("Dequantize", codes, *RANGE, dtype="bfloat16")


def of_ranges() -> Iterator[Sample]:
    """TensorFlow's own kernels."""
    for seed in range(4):
        a, b = code("quint8", 3, 40, seed=seed), code("quint8", 40, 5, seed=seed)
        for turned, other in itertools.product((False, True), repeat=2):
            yield case(
                "QuantizedMatMul", a.T.copy() if turned else a, b.T.copy() if other else b, *RANGE, *OTHER,
                transpose_a=turned, transpose_b=other,
            )  # fmt: skip
        for op in ("QuantizedAdd", "QuantizedMul"):
            x, y = code("quint8", 3, 40, seed=seed), code("quint8", 40, seed=seed + 9)
            yield case(op, x, y, *RANGE, *OTHER)
            yield case(op, y, x, *OTHER, *RANGE)
            yield case(op, x, x[0, 0:1].copy(), *RANGE, *POSITIVE)
        for dtype in ("quint8", "qint8"):
            x = code(dtype, 2, 7, 6, 3, seed=seed)
            yield case("QuantizedBiasAdd", x, code(dtype, 3, seed=seed), *RANGE, *OTHER, out_type="qint32")
            for padding in ("SAME", "VALID"):
                how = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": padding}
                yield case("QuantizedMaxPool", x, *RANGE, **how)
                yield case("QuantizedAvgPool", x, *RANGE, **how)
        x, w = code("quint8", 2, 8, 9, 3, seed=seed), code("quint8", 3, 2, 3, 4, seed=seed)
        for padding, stride in itertools.product(("SAME", "VALID"), (1, 2, 3, 4)):
            yield case("QuantizedConv2D", x, w, *RANGE, *OTHER, strides=[1, stride, stride, 1], padding=padding)
        for dtype in ("quint8", "qint32"):
            x = code(dtype, 4, 30, seed=seed)
            for op in ("QuantizedRelu", "QuantizedRelu6"):
                yield case(op, x, f32(-3.1), f32(9.2), out_type=dtype)
            yield case("QuantizedReshape", x, i32([6, -1]), *RANGE)
            parts = [code(dtype, 2, 30, seed=seed), code(dtype, 2, 5, seed=seed), code(dtype, 2, 4, seed=seed)]
            lows, highs = [f32(-3.1), f32(-1), f32(-2)], [f32(5.2), f32(2.5), f32(5.2)]
            yield case("QuantizedConcat", i32(1), parts, lows, highs)
            image = code(dtype, 2, 5, 7, 3, seed=seed)
            for how in ({}, {"align_corners": True}, {"half_pixel_centers": True}) if dtype == "quint8" else ():
                yield case("QuantizedResizeBilinear", image, i32([9, 4 + seed * 7]), *RANGE, **how)
        yield case("QuantizedResizeBilinear", numbers((1, 4, 5, 2)), i32([7, 9]), *RANGE)
        total = code("qint32", 3, 50, seed=seed, top=10 ** (seed + 5))
        wide = f32(-40000.5), f32(39000.25)
        yield case("RequantizationRange", total, *wide)
        yield case("QuantizeDownAndShrinkRange", total, *wide, out_type="quint8")
        for dtype in ("quint8", "qint8"):
            yield case("Requantize", total, *wide, f32(-3), f32(7), out_type=dtype)
        small = [code("quint8", 3, seed=seed + k) for k in range(4)]
        for scaled in (True, False):
            yield case(
                "QuantizedBatchNormWithGlobalNormalization", code("quint8", 2, 3, 4, 3, seed=seed), *RANGE,
                small[0], *OTHER, small[1], *POSITIVE, small[2], *OTHER, small[3], *RANGE, out_type="qint32",
                variance_epsilon=1e-3, scale_after_normalization=scaled,
            )  # fmt: skip
        image = code("quint8", 2, 3, 4, 5, seed=seed)
        yield case("QuantizedInstanceNorm", image, *RANGE)
        yield case("QuantizedInstanceNorm", image, *RANGE, output_range_given=True, given_y_min=-1.5, given_y_max=2.0)


def fused() -> Iterator[Sample]:
    """oneDNN's kernels."""
    total = code("qint32", 1, 4, 5, 3)
    each = f32([-30000.5, -2000, -100]), f32([29000, 3000, 80])
    for clip in (1e9, 50.0):
        yield case("RequantizationRangePerChannel", total, *each, clip_value_max=clip)
    for dtype in ("quint8", "qint8"):
        yield case("RequantizePerChannel", total, *each, f32(-9000), f32(8000), out_type=dtype)
    for seed in range(3):
        bias = numbers((4,), seed=seed)
        x, w = code("quint8", 2, 7, 8, 3, seed=seed), code("qint8", 3, 2, 3, 4, seed=seed)
        one, several = OTHER, (f32([-1, -2, -0.5, -1.1]), f32([1.2, 1, 0.3, 2]))
        for padding, stride in itertools.product(("SAME", "VALID"), (1, 2)):
            how = {"strides": [1, stride, stride, 1], "padding": padding}
            for op in ("QuantizedConv2D", "QuantizedConv2DAndRelu"):
                yield case(op, x, w, *POSITIVE, *one, **how)
            yield case("QuantizedConv2DPerChannel", x, w, *POSITIVE, *several, **how)
            yield case("QuantizedConv2DAndRequantize", x, w, *POSITIVE, *one, f32(-20), f32(19), **how)
            yield case("QuantizedConv2DAndReluAndRequantize", x, w, *POSITIVE, *one, f32(0), f32(19), **how)
            for scales in (one, several):
                for op in ("QuantizedConv2DWithBias", "QuantizedConv2DWithBiasAndRelu"):
                    yield case(op, x, w, bias, *POSITIVE, *scales, **how)
                for op, low in (("AndRequantize", -20), ("AndReluAndRequantize", 0)):
                    yield case(f"QuantizedConv2DWithBias{op}", x, w, bias, *POSITIVE, *scales, f32(low), f32(19), **how)
            d = code("qint8", 3, 3, 3, 1, seed=seed)
            each = f32([-1, -2, -0.5]), f32([1.2, 1, 0.3])
            yield case("QuantizedDepthwiseConv2D", x, d, *POSITIVE, *each, **how)
            few = bias[:3].copy()
            for op in ("QuantizedDepthwiseConv2DWithBias", "QuantizedDepthwiseConv2DWithBiasAndRelu"):
                yield case(op, x, d, few, *POSITIVE, *each, **how)
            yield case(
                "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize", x, d, few, *POSITIVE, *each, f32(0), f32(19),
                **how,
            )  # fmt: skip
        x, whole = code("qint8", 2, 7, 8, 3, seed=seed), code("qint32", 4, seed=seed, top=20000)
        both = f32(-5.3), f32(5.3)
        for how in ({"dilations": [1, 2, 2, 1]}, {"padding_list": [0, 0, 1, 2, 0, 1, 0, 0]}):
            how |= {"strides": [1, 1, 1, 1], "padding": "VALID"}
            yield case("QuantizedConv2DWithBias", x, w, bias, *both, *one, **how)
        for op, low in (("AndRequantize", -20), ("AndReluAndRequantize", 0)):
            how = {"strides": [1, 2, 2, 1], "padding": "SAME"}
            yield case(f"QuantizedConv2DWithBias{op}", x, w, whole, *both, *one, f32(low), f32(19), **how)
        a, b, bias = code("quint8", 3, 20, seed=seed), code("qint8", 20, 5, seed=seed), numbers((5,), seed=seed)
        for mode, ends in (("MIN_FIRST", RANGE), ("SCALED", POSITIVE)):
            how = {"input_quant_mode": mode}
            for op in ("QuantizedMatMulWithBias", "QuantizedMatMulWithBiasAndRelu"):
                yield case(op, a, b, bias, *ends, *OTHER, Toutput="qint32", **how)
            for op in ("AndRequantize", "AndReluAndRequantize"):
                for added in (bias, code("qint32", 5, seed=seed, top=20000)):
                    yield case(f"QuantizedMatMulWithBias{op}", a, b, added, *ends, *OTHER, f32(0), f32(29), **how)
            yield case(
                "QuantizedMatMulWithBiasAndDequantize", a, b, bias, *ends, *OTHER, f32(0), f32(29), Toutput="float32",
                **how,
            )  # fmt: skip


def uniform() -> Iterator[Sample]:
    least, most = {"qint8": -128, "quint8": 0, "qint32": -(2**31)}, {"qint8": 127, "quint8": 255, "qint32": 2**31 - 1}

    def held(name: str, dtype: str = "qint8") -> dict[str, int]:
        return {f"{name}quantization_min_val": least[dtype], f"{name}quantization_max_val": most[dtype]}

    one, each = (f32(0.031), i32(3)), (f32([0.031, 0.11, 0.007, 0.5]), i32([3, -2, 0, 7]))
    for seed in range(3):
        x = numbers((3, 4, 5), low=-5, high=5, seed=seed)
        for dtype in ("qint8", "quint8", "qint32"):
            codes = code(dtype, 3, 4, 5, seed=seed, top=1000)
            for (scale, zero), axis in ((one, -1), (each, 1)):
                yield case("UniformQuantize", x, scale, zero, Tout=dtype, quantization_axis=axis, **held("", dtype))
                yield case(
                    "UniformDequantize", codes, scale, zero, Tout="float32", quantization_axis=axis, **held("", dtype)
                )
        for dtype, source, target in itertools.product(("qint8", "qint32"), (-1, 1), (-1, 1)):
            codes = code(dtype, 3, 4, 5, seed=seed, top=100000)
            new = (f32(0.2), i32(-5)) if target == -1 else (f32([0.2, 0.01, 4, 0.6]), i32([0, 1, 2, -3]))
            yield case(
                "UniformRequantize", codes, *(one if source == -1 else each), *new, Tout="qint8",
                input_quantization_axis=source, output_quantization_axis=target, **held("input_", dtype),
                **held("output_"),
            )  # fmt: skip
        a, b = code("qint32", 3, 5, 4, seed=seed, top=9999), code("qint32", 5, 4, seed=seed, top=9999)
        for axes, scales in (((-1,) * 3, (one,) * 3), ((2, 1, 2), (each,) * 3), ((2, 1, -1), (each, each, one))):
            named = dict(zip(("lhs_", "rhs_", "output_"), axes, strict=True))
            yield case(
                "UniformQuantizedAdd", a, b, *scales[0], *scales[1], *scales[2],
                **{f"{k}quantization_axis": v for k, v in named.items()},
                **{k: v for name in named for k, v in held(name, "qint32").items()},
            )  # fmt: skip
        for axis, (scale, zero) in ((-1, one), (2, each)):
            shape = () if axis == -1 else (4,)
            low, high = code("qint32", *shape, seed=seed, top=5000), code("qint32", *shape, seed=seed + 5, top=5000)
            low, high = np.minimum(low, high).reshape(shape), np.maximum(low, high).reshape(shape)
            yield case(
                "UniformQuantizedClipByValue", a, low, high, scale, zero, quantization_axis=axis, **held("", "qint32")
            )
        lhs, rhs = code("qint8", 3, 9, seed=seed), code("qint8", 9, 4, seed=seed)
        for axis in (-1, 1):
            scale = each if axis == 1 else one
            yield case(
                "UniformQuantizedDot", lhs, rhs, f32(0.02), i32(5), *scale, *scale, Tout="qint32",
                rhs_quantization_axis=axis, output_quantization_axis=axis, **held("lhs_"), **held("rhs_"),
                **held("output_", "qint32"),
            )  # fmt: skip
            yield case(
                "UniformQuantizedDotHybrid", numbers((3, 9), seed=seed), rhs, *scale, Tout="float32",
                rhs_quantization_axis=axis, **held("rhs_"),
            )  # fmt: skip
        yield from _convolutions(seed, one, each, held)


def _convolutions(seed: int, one: Any, each: Any, held: Any) -> Iterator[Sample]:
    from tensorflow.core.util.quantization import uniform_quant_ops_attr_pb2 as messages

    last = messages.UniformQuantizedConvolutionDimensionNumbersAttr(
        input_batch_dimension=0, input_feature_dimension=3, input_spatial_dimensions=[1, 2],
        kernel_output_feature_dimension=3, kernel_input_feature_dimension=2, kernel_spatial_dimensions=[0, 1],
        output_batch_dimension=0, output_feature_dimension=3, output_spatial_dimensions=[1, 2],
    ).SerializeToString()  # fmt: skip
    first = {"x": (2, 4, 7, 6), "w": (4, 2, 3, 2), "feature_group_count": 2, "axis": 0}
    forms: list[dict[str, Any]] = [
        {"x": (2, 7, 6, 3), "w": (3, 2, 3, 4), "dimension_numbers": last, "padding": "SAME", "axis": 3,
         "window_strides": [2, 1]},
        {**first, "padding": "VALID", "rhs_dilation": [1, 2]},
        {**first, "padding": "EXPLICIT", "explicit_padding": [1, 2, 0, 1], "lhs_dilation": [2, 1]},
        {"x": (4, 2, 5, 5), "w": (4, 2, 2, 2), "batch_group_count": 2, "padding": "VALID", "axis": 0},
    ]  # fmt: skip
    for form in forms:
        how = {k: v for k, v in form.items() if k not in ("x", "w", "axis")}
        w = code("qint8", *form["w"], seed=seed)
        for axis in (-1, form["axis"]):
            scale = one if axis == -1 else each
            out = -1 if axis == -1 else 3 if "dimension_numbers" in how else 1
            yield case(
                "UniformQuantizedConvolution", code("qint8", *form["x"], seed=seed), w, f32(0.02), i32(5), *scale,
                *scale, Tout="qint32", rhs_quantization_axis=axis, output_quantization_axis=out, **held("lhs_"),
                **held("rhs_"), **held("output_", "qint32"), **how,
            )  # fmt: skip
            yield case(
                "UniformQuantizedConvolutionHybrid", numbers(form["x"], seed=seed), w, *scale, Tout="float32",
                rhs_quantization_axis=axis, **held("rhs_"), **how,
            )  # fmt: skip


AREAS |= {"converted": converted, "of_ranges": of_ranges, "fused": fused, "uniform": uniform}
