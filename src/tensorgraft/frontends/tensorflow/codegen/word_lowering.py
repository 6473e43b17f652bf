"""TensorFlow operations that are recorded by their usual names, because their rules would be many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.neural.convolution import pads
from tensorgraft.frontends.tensorflow.values import is_known
from tensorgraft.hub import dtypes

Said = Callable[..., Any]  # (recorder, node, *operands) -> a result, several, or None: recorded by its rule instead
SAID: dict[str, Said] = {}
# arrays that are made to a size: their values are known, and their steps are kept
MAKERS = frozenset({"Range", "Fill", "LinSpace", "BroadcastTo", "Tile", "ZerosLike", "OnesLike", "MatrixBandPart"})


def lowers(*names: str) -> Callable[[Said], Said]:
    def register(fn: Said) -> Said:
        SAID.update(dict.fromkeys(names, fn))
        return fn

    return register


def _word(name: str, **attributes: str) -> Said:
    """Make a lowering to a word of one array. `attributes`: {keyword of the word: the node's attribute}."""

    def fn(xp: Any, node: GraphNode, x: Any) -> Any:
        if is_known(x) or not dtypes.is_floating(x.dtype):
            return None
        named = {n: node.attributes[a] for n, a in attributes.items() if a in node.attributes}
        return xp.word(name, x, **named)

    return fn


for _op, _name in {"Relu": "relu", "Relu6": "relu6", "Elu": "elu", "Selu": "selu"}.items():
    SAID[_op] = _word(_name)
SAID["LeakyRelu"] = _word("leaky_relu", slope="alpha")


@lowers("StopGradient")
def stop_gradient(xp: Any, node: GraphNode, x: Any) -> Any:
    return x if is_known(x) or x.value is not None else xp.word("stop_gradient", x)


@lowers("Range")
def arange(xp: Any, node: GraphNode, start: Any, stop: Any, step: Any) -> Any:
    if not all(map(is_known, (start, stop, step))):
        return None
    numbers = [x.item() for x in (start, stop, step)]
    if all(float(x).is_integer() for x in numbers):  # float(length): the length itself can be an open size
        numbers = [int(x) for x in numbers]
    return xp.word("arange", *numbers, node.dtypes[0])


@lowers("Fill")
def fill(xp: Any, node: GraphNode, shape: Any, value: Any) -> Any:
    if not is_known(shape) or not is_known(value) or value.dtype.kind in "OSU":
        return None
    return xp.full(ints(shape), value.item(), value.dtype)


@lowers("MatrixBandPart")
def band(xp: Any, node: GraphNode, x: Any, lower: Any, upper: Any) -> Any:
    if not (is_known(lower) and is_known(upper)) or is_known(x):
        return None
    part = {(-1, 0): xp.tril, (0, -1): xp.triu}.get((int(lower), int(upper)))
    return None if part is None else part(x)


@lowers("MatMul")
def matmul(xp: Any, node: GraphNode, a: Any, b: Any) -> Any:
    a, b = (xp.asarray(np.asarray(x)) if is_known(x) else x for x in (a, b))
    if a.dtype != b.dtype or node.dtypes[0] != a.dtype:
        return None
    a = xp.matrix_transpose(a) if node.attributes.get("transpose_a") else a
    b = xp.matrix_transpose(b) if node.attributes.get("transpose_b") else b
    return xp.matmul(a, b)


@lowers("BatchMatMulV2", "BatchMatMul")
def batch_matmul(xp: Any, node: GraphNode, a: Any, b: Any) -> Any:
    a, b = (xp.asarray(np.asarray(x)) if is_known(x) else x for x in (a, b))
    if a.dtype != b.dtype or dtypes.is_complex(a.dtype):
        return None
    a = xp.matrix_transpose(a) if node.attributes.get("adj_x") else a
    b = xp.matrix_transpose(b) if node.attributes.get("adj_y") else b
    return xp.matmul(a, b)


@lowers("Einsum")
def einsum(xp: Any, node: GraphNode, *operands: Any) -> Any:
    equation = str(node.attributes["equation"]).replace(" ", "")
    left_side, arrow, result = equation.partition("->")
    terms = left_side.split(",")
    plain = all(len(set(t)) == len(t) for t in (*terms, result)) and arrow and "." not in equation
    if not plain or len(operands) != 2 or any(is_known(x) for x in operands):
        return None
    extents: dict[str, set[int]] = {}
    for t, x in zip(terms, operands, strict=True):
        for c, n in zip(t, x.shape, strict=True):
            extents.setdefault(c, set()).add(n)
    if any(len(ns) > 1 for ns in extents.values()) or any(c not in extents for c in result):
        return None
    return xp.word("einsum", equation, tuple(operands))


def _spatial(node: GraphNode, name: str) -> tuple[int, ...]:
    return tuple(node.attributes.get(name) or ())[1:-1]


def _is_channels_last(node: GraphNode) -> bool:
    return str(node.attributes.get("data_format", "NHWC")) in ("NHWC", "NDHWC")


def _padding(node: GraphNode, x: Any, window: Any, strides: Any, dilations: Any) -> tuple[tuple[int, int], ...]:
    explicit = node.attributes.get("explicit_paddings") or ()
    pad_widths = pads(x.shape[1:-1], window, strides, dilations, str(node.attributes["padding"]), explicit)
    return tuple((int(a), int(b)) for a, b in pad_widths)


@lowers("Conv2D", "Conv3D")
def convolution(xp: Any, node: GraphNode, x: Any, w: Any) -> Any:
    if not _is_channels_last(node) or is_known(x):
        return None
    w = xp.asarray(np.asarray(w)) if is_known(w) else w
    strides = _spatial(node, "strides")
    dilations = _spatial(node, "dilations") or (1,) * len(strides)
    padding = _padding(node, x, w.shape[:-2], strides, dilations)
    groups = x.shape[-1] // w.shape[-2]
    return xp.word("conv_channels_last", x, w, None, strides, padding, dilations, groups)


@lowers("DepthwiseConv2dNative")
def depthwise(xp: Any, node: GraphNode, x: Any, w: Any) -> Any:
    if not _is_channels_last(node) or is_known(x) or is_known(w):
        return None
    strides = _spatial(node, "strides")
    dilations = _spatial(node, "dilations") or (1,) * len(strides)
    padding = _padding(node, x, w.shape[:-2], strides, dilations)
    taps, channels, multiplier = w.shape[:-2], w.shape[-2], w.shape[-1]
    w = xp.reshape(w, (*taps, 1, channels * multiplier))
    return xp.word("conv_channels_last", x, w, None, strides, padding, dilations, channels)


@lowers("MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D")
def pool(xp: Any, node: GraphNode, x: Any) -> Any:
    window, strides = _spatial(node, "ksize"), _spatial(node, "strides")
    window_and_strides = (*node.attributes["ksize"], *node.attributes["strides"])
    outer = [window_and_strides[i] for i in (0, len(window) + 1, len(window) + 2, -1)]
    if not _is_channels_last(node) or is_known(x) or any(n != 1 for n in outer) or not dtypes.is_floating(x.dtype):
        return None
    padding = _padding(node, x, window, strides, (1,) * len(window))
    is_max = node.op.startswith("Max")
    if not is_max and any(map(any, padding)):
        return None  # TensorFlow does not count the padding
    return xp.word(f"{'max' if is_max else 'avg'}_pool_channels_last", x, window, strides, padding)


@lowers("GatherV2")
def gather(xp: Any, node: GraphNode, x: Any, indices: Any, axis: Any) -> Any:
    """Indices are in range: others are errors of TensorFlow's."""
    if node.attributes.get("batch_dims") or is_known(x):
        return None
    indices = xp.asarray(np.asarray(indices)) if is_known(indices) else indices
    at = int(axis) % x.ndim
    if at == 0 and x.ndim == 2 and indices.ndim and dtypes.is_inexact(x.dtype):
        return xp.word("embedding", x, indices)
    return xp.take(x, indices, at)


# ---- random numbers: each framework has its own ----------------------------------------------------------------------


def _random(name: str) -> Said:
    def fn(xp: Any, node: GraphNode, shape: Any, *state: Any) -> Any:
        stateless = node.op.startswith("Stateless")
        if not is_known(shape) or (stateless and all(map(is_known, state))):
            return None  # a seed that is known: TensorFlow's own numbers
        dtype = node.dtypes[0]
        x = getattr(xp, name)(xp.draw(), ints(shape), dtype)
        return x

    return fn


for _op in ("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"):
    SAID[_op] = _random("uniform")
for _op in ("RandomStandardNormal", "StatelessRandomNormal", "StatelessRandomNormalV2"):
    SAID[_op] = _random("normal")
