"""Operators at each version of their definition, against onnxruntime, or onnx's reference where that has no kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from tests.frontends.onnx import differential

NEWEST = 24
Case = tuple[str, list[Any], dict[str, Any], Sequence[int]]


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def number(x: float) -> np.ndarray:
    return np.array(x, np.float32)


X, IMAGE, BOXES = f(2, 3, 4), f(2, 4, 6, 6), np.sort(np.random.default_rng(0).random((1, 6, 4)), -1).astype(np.float32)
CHANNELS = [f(4), f(4), f(4), np.abs(f(4)) + 0.5]
REDUCTIONS = [
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]
SCALES = np.array([1, 1, 2, 1.5], np.float32)


def reductions() -> Iterator[Case]:
    for op in REDUCTIONS:
        yield op, [X], {"axes": [1], "keepdims": 0}, (7, 11, 13)
        yield op, [X], {}, (7, 13, 18)
        yield op, [X, i(-1, 0)], {}, (18,)
        yield op, [X], {"noop_with_empty_axes": 1}, (18,)
    yield "ReduceSum", [X], {"axes": [0, 2]}, (7, 11)
    yield "ReduceSum", [X], {"axes": [-1]}, (11,)
    yield "ReduceSum", [X, i(-1)], {"keepdims": 0}, (13,)
    yield "ReduceLogSum", [np.abs(X)], {"axes": [1]}, (7, 11, 13)
    for op in ("ArgMax", "ArgMin"):
        yield op, [np.round(X)], {"axis": 2}, (7, 11, 12, 13)
        yield op, [np.round(X)], {"axis": -1, "select_last_index": 1, "keepdims": 0}, (12, 13)


def shapes() -> Iterator[Case]:
    row = f(1, 3, 1)
    yield "Squeeze", [row], {"axes": [0]}, (7, 11)
    yield "Squeeze", [row], {}, (7, 11, 13, 21)
    yield "Squeeze", [row, i(-1)], {}, (13, 21)
    yield "Unsqueeze", [X], {"axes": [0, 2]}, (7, 11)
    yield "Unsqueeze", [X, i(0, -1)], {}, (13, 21)
    yield "Flatten", [X], {"axis": 2}, (7, 9, 11, 13)
    yield "Flatten", [X], {"axis": -1}, (11, 13)
    yield "Reshape", [X, i(0, -1)], {}, (7, 13, 14, 19)
    yield "Reshape", [f(0, 3), i(0, 3)], {"allowzero": 1}, (14, 19)
    yield "Shape", [X], {}, (7, 13, 15)
    yield "Shape", [X], {"start": 1, "end": -1}, (15, 19)
    yield "Concat", [X, X], {"axis": 1}, (7, 11, 13)
    yield "Concat", [X, X], {"axis": -1}, (11, 13)
    yield "Tile", [X, i(2, 1, 3)], {}, (7, 13)
    yield "Expand", [row, i(2, 1, 4)], {}, (8, 13)
    yield "DepthToSpace", [f(2, 8, 2, 3)], {"blocksize": 2}, (7, 11, 13)
    yield "DepthToSpace", [f(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, (11, 13)
    yield "SpaceToDepth", [IMAGE], {"blocksize": 2}, (7, 13)
    yield "Slice", [X], {"starts": [1, -3], "ends": [3, 100], "axes": [1, 2]}, (7,)
    yield "Slice", [X], {"starts": [0, 1], "ends": [1, -1]}, (7,)
    yield "Slice", [X, i(1, -3), i(3, 100), i(1, 2)], {}, (10, 11, 13)
    yield "Slice", [X, i(-1, 0), i(-100, 3), i(2, 1), i(-2, 2)], {}, (10, 11, 13)
    yield "Split", [X], {"axis": 2}, (7, 11, 13)
    yield "Split", [X], {"axis": 2, "split": [1, 3]}, (7, 11)
    yield "Split", [X, i(1, 3)], {"axis": -1}, (13, 18)
    yield "Split", [f(2, 3, 5)], {"axis": 2, "num_outputs": 2}, (18,)
    yield "Pad", [X], {"pads": [0, 1, 0, 2, 0, 1], "value": 2.5}, (7,)
    yield "Pad", [X, i(0, 1, 0, 2, 0, 1), number(2.5)], {}, (11, 13, 18, 19, 21)
    yield "Pad", [X, i(1, -1), None, i(2)], {}, (18, 19)
    for mode in ("reflect", "edge"):
        yield "Pad", [X], {"pads": [0, 1, 0, 0, 1, 2], "mode": mode}, (7,)
        yield "Pad", [X, i(0, 1, 0, 0, 1, 2)], {"mode": mode}, (11, 13, 19)
    yield "Pad", [X, i(0, 1, 0, 0, 1, 2)], {"mode": "wrap"}, (19, 21)


def elementwise() -> Iterator[Case]:
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield op, [X], {}, (7, 11, 13)
        yield op, [X], {"axis": 1}, (7, 11, 13)
        yield op, [X], {"axis": -2}, (11, 13)
    yield "Clip", [X], {"min": -0.5, "max": 0.25}, (7,)
    yield "Clip", [X], {"max": 0.25}, (7,)
    yield "Clip", [X], {}, (7, 11, 12, 13)
    yield "Clip", [X, number(-0.5), number(0.25)], {}, (11, 12, 13)
    yield "Clip", [X, None, number(0.25)], {}, (11, 12, 13)
    yield "Cast", [X * 3], {"to": TensorProto.INT32}, (7, 9, 13, 19, 21)
    yield "Cast", [np.round(X)], {"to": TensorProto.BOOL}, (7, 9, 13, 19)
    yield "Cast", [X * 300], {"to": TensorProto.FLOAT16}, (7, 13, 19)
    yield "PRelu", [X, f(4)], {}, (7, 9, 16)
    yield "Elu", [X], {"alpha": 0.5}, (7, 22)
    for op in ("Add", "Mul", "Sub", "Div", "Pow"):
        yield op, [np.abs(X), f(3, 1)], {}, (7, 13, 14, 15)
    for op in ("Sum", "Max", "Min", "Mean"):
        yield op, [X, X[::-1]], {}, (7, 8, 13)
        yield op, [X, f(3, 1), f(4)], {}, (8, 13)
    for op in ("Less", "Greater", "Equal"):
        yield op, [i(1, 2, 3), i(3, 2, 1)], {}, (9, 11, 13)
    yield "Less", [X, f(4)], {}, (7, 9, 13)
    yield "Mod", [i(-5, 4, 7), i(3, -3, 2)], {}, (10, 13)
    yield "Mod", [X, f(4)], {"fmod": 1}, (10, 13)
    yield "CumSum", [X, np.array(1, np.int32)], {"reverse": 1, "exclusive": 1}, (11, 14)
    yield "Where", [X > 0, X, f(4)], {}, (9, 16)
    yield "Gemm", [f(2, 3), f(4, 3), f(4)], {"transB": 1, "alpha": 0.5, "beta": 2.0}, (7, 9, 11, 13)
    yield "Gemm", [f(2, 3), f(3, 4)], {}, (11, 13)


def indexing() -> Iterator[Case]:
    at = i(2, 0)
    yield "Gather", [X, at], {"axis": 1}, (7, 11, 13)
    yield "Gather", [X, i(-1, 0)], {"axis": -1}, (11, 13)
    yield "GatherElements", [f(3, 4), np.array([[0, 2, 1, 0]])], {"axis": 0}, (11, 13)
    yield "GatherND", [X, np.array([[0, 2], [1, -1]])], {}, (11, 12, 13)
    yield "GatherND", [X, np.array([[2], [-1]])], {"batch_dims": 1}, (12, 13)
    yield "Scatter", [f(3, 4), np.array([[0, 2, 1, 0]]), f(1, 4)], {"axis": 0}, (9,)
    yield "ScatterElements", [f(3, 4), np.array([[0, -1, 1, 0]]), f(1, 4)], {"axis": 0}, (11, 13, 16, 18)
    yield "ScatterElements", [f(3, 4), np.array([[0, 2, 1, 0]]), f(1, 4)], {"reduction": "add"}, (16, 18)
    yield "ScatterElements", [f(3, 4), np.array([[0, 2, 1, 0]]), f(1, 4)], {"reduction": "max"}, (18,)
    yield "ScatterND", [X, np.array([[0, 2], [1, 0]]), f(2, 4)], {}, (11, 13, 16, 18)
    yield "OneHot", [i(0, 2, -1), np.array([4], np.int64), f(2)], {}, (9, 11)
    yield "OneHot", [i(0, 2, 1), np.array([4], np.int64), f(2)], {"axis": 0}, (9, 11)
    yield "TopK", [X], {"k": 2, "axis": 1}, (7,)
    yield "TopK", [X, i(2)], {"axis": 1}, (10, 11)
    yield "TopK", [X, i(2)], {"largest": 0}, (11,)
    scores = np.random.default_rng(1).random((1, 2, 6)).astype(np.float32)
    yield "NonMaxSuppression", [BOXES, scores, i(2), number(0.5), number(0.1)], {}, (10, 11)
    yield "NonMaxSuppression", [BOXES, scores, i(3)], {"center_point_box": 1}, (10, 11)
    yield "NonMaxSuppression", [BOXES, scores], {}, (10, 11)
    yield "ReverseSequence", [X, i(1, 3)], {"batch_axis": 0, "time_axis": 1}, (10,)


def normalisation() -> Iterator[Case]:
    yield "BatchNormalization", [IMAGE, *CHANNELS], {"epsilon": 1e-3}, (7, 9, 14, 15)
    yield "InstanceNormalization", [IMAGE, *CHANNELS[:2]], {}, (7, 22)
    yield "LpNormalization", [X], {"axis": 1, "p": 1}, (7, 22)
    yield "GroupNormalization", [IMAGE, f(2), f(2)], {"num_groups": 2}, (18,)
    yield "GroupNormalization", [IMAGE, f(4), f(4)], {"num_groups": 2}, (21,)
    yield "LayerNormalization", [X, f(3, 4)], {"axis": 1}, (17,)
    yield "Dropout", [X], {"ratio": 0.9}, (7, 10)
    yield "Dropout", [X], {}, (12, 13, 22)
    yield "Dropout", [X, number(0.9)], {}, (12, 13, 22)


def windows() -> Iterator[Case]:
    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for op in ("AveragePool", "MaxPool", "LpPool"):
        yield op, [IMAGE], {**window, "pads": [1, 1, 1, 1]}, (7, 8, 10, 11, 12, 18, 19, 22)
        yield op, [IMAGE], {**window, "auto_pad": "SAME_UPPER"}, (7, 10, 11, 18, 22)
    for op, first in (("AveragePool", 10), ("MaxPool", 10), ("LpPool", 18)):
        yield op, [IMAGE], {**window, "ceil_mode": 1}, [v for v in (10, 11, 12, 18, 19) if v >= first]
    yield "AveragePool", [IMAGE], {**window, "pads": [1, 0, 1, 0], "count_include_pad": 1}, (7, 10, 19)
    yield "MaxPool", [IMAGE], {**window, "dilations": [2, 2]}, (10, 11, 12, 22)
    yield "Conv", [IMAGE, f(2, 4, 3, 3), f(2)], {"pads": [1, 0, 1, 2]}, (7, 11, 22)
    yield "ConvTranspose", [IMAGE, f(4, 2, 3, 3)], {"strides": [2, 2], "output_padding": [1, 1]}, (7, 11, 22)
    for mode in ("nearest", "linear"):
        yield "Upsample", [IMAGE], {"scales": SCALES.tolist(), "mode": mode}, (7,)
        yield "Upsample", [IMAGE, SCALES], {"mode": mode}, (9,)
        yield "Resize", [IMAGE, SCALES], {"mode": mode}, (10,)
        yield "Resize", [IMAGE, np.array([1, 1, 0.6, 0.5], np.float32)], {"mode": mode}, (10,)
        for places in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            options = {"mode": mode, "coordinate_transformation_mode": places}
            yield "Resize", [IMAGE, None, SCALES], options, (13, 18, 19)
            yield "Resize", [IMAGE, f(0), SCALES], options, (11,)
            yield "Resize", [IMAGE, None, None, i(2, 4, 4, 9)], options, (13, 18, 19)
    places = "tf_half_pixel_for_nn"
    yield "Resize", [IMAGE, f(0), SCALES], {"coordinate_transformation_mode": places}, (11,)
    roi = np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9], np.float32)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0}
    yield "Resize", [IMAGE, roi, SCALES], crop, (11, 13, 18)
    regions = [np.array([[0, 0, 4, 4], [1, 1, 3, 5]], np.float32), i(0, 1)]
    yield "RoiAlign", [IMAGE, *regions], {"output_height": 2, "output_width": 2, "sampling_ratio": 2}, (10, 16, 22)
    grid = np.tanh(f(2, 3, 3, 2))
    yield "GridSample", [IMAGE, grid], {"mode": "bilinear"}, (16,)
    yield "GridSample", [IMAGE, grid], {"mode": "linear", "align_corners": 1}, (20, 22)


def quantised() -> Iterator[Case]:
    codes = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)
    yield "QuantizeLinear", [X, number(0.1), np.array(3, np.int8)], {}, (10, 13, 19, 21, 23)
    yield "QuantizeLinear", [X, np.abs(f(3)), np.zeros(3, np.uint8)], {"axis": 1}, (13, 19, 21)
    yield "DequantizeLinear", [codes, number(0.1), np.array(3, np.int8)], {}, (10, 13, 19, 21, 23)
    yield "DequantizeLinear", [codes, np.abs(f(3))], {"axis": 1}, (13, 19, 21)
    yield "DequantizeLinear", [codes, np.abs(f(2, 3, 2))], {"axis": 2, "block_size": 2}, (21, 23)


def recurrent() -> Iterator[Case]:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [f(5, 2, 3), f(1, gates * 4, 3), f(1, gates * 4, 4), f(1, gates * 8)]
        yield op, weights, {"hidden_size": 4}, (7, 14, 22)
        yield op, [*weights, np.array([5, 2], np.int32)], {"hidden_size": 4, "direction": "reverse"}, (7, 14, 22)


def signal() -> Iterator[Case]:
    x = f(1, 6, 1)
    yield "DFT", [x], {"axis": 1}, (17,)
    yield "DFT", [x, np.array(8, np.int64)], {"axis": 1, "onesided": 1}, (17,)
    yield "DFT", [x, None, np.array(1, np.int64)], {}, (20,)
    yield "DFT", [x, np.array(8, np.int64), np.array(-2, np.int64)], {"onesided": 1}, (20,)


GROUPS = (reductions, shapes, elementwise, indexing, normalisation, windows, quantised, recurrent, signal)
CASES = [(*case[:3], opset) for group in GROUPS for case in group() for opset in case[3]]
TWO_RESULTS = ("TopK", "Split")


def _expected(model: Any, inputs: Sequence[Any]) -> list[Any]:
    try:
        return differential.reference(model, inputs)
    except NoKernel:  # a version without a kernel
        feeds = {v.name: inputs[int(v.name[1:])] for v in model.graph.input}
        return list(ReferenceEvaluator(model).run(None, feeds))


@pytest.mark.parametrize("op", sorted({case[0] for case in CASES}))
def test_operators_are_those_of_each_version(op: str) -> None:
    for name, inputs, attributes, opset in CASES:
        if name != op:
            continue
        model = differential.single(op, inputs, attributes, opset=opset, outputs=1 + (op in TWO_RESULTS))
        wanted = _expected(model, inputs)
        for on in ("numpy", "jax"):
            found = differential.actual(model, inputs, on)
            for got, want in zip(found, wanted, strict=True):
                label = f"{op} of opset {opset} {attributes} on {on}"
                differential.equal(got, want, label, 1e-4, 1e-5)
