"""Layers: convolutions, pooling, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.exporting.onnx.rules.shapes import filled_array, pad, reshaped
from tensorgraft.hub.recorded.block import Var

Ints = Sequence[int]
Pads = Sequence[tuple[int, int]]


def _pads(padding: Pads) -> list[int]:
    return [*(int(low) for low, _ in padding), *(int(high) for _, high in padding)]


def _conv(
    g: GraphBuilder, x: Any, weight: Any, bias: Any, stride: Ints, padding: Any, dilation: Ints, groups: int
) -> str:
    if any(n < 0 for n in _pads(padding)):
        raise NotImplementedError("a convolution with negative padding")
    return str(g.op("Conv", x, weight, bias, strides=list(stride), pads=_pads(padding), dilations=list(dilation),
                    group=groups))  # fmt: skip


@rule("conv")
def conv(
    g: GraphBuilder, x: Var, weight: Var, bias: Var | None = None, stride: Ints = (1,), padding: Pads = ((0, 0),),
    dilation: Ints = (1,), groups: int = 1,
) -> str:  # fmt: skip
    return _conv(g, x, weight, bias, stride, padding, dilation, groups)


@rule("conv_channels_last")
def conv_channels_last(
    g: GraphBuilder, x: Var, weight: Var, bias: Var | None = None, stride: Ints = (1,), padding: Pads = ((0, 0),),
    dilation: Ints = (1,), groups: int = 1,
) -> str:  # fmt: skip
    n = len(stride)
    image = g.op("Transpose", x, perm=[0, n + 1, *range(1, n + 1)])
    kernel = g.op("Transpose", weight, perm=[n + 1, n, *range(n)])
    y = _conv(g, image, kernel, bias, stride, padding, dilation, groups)
    return str(g.op("Transpose", y, perm=[0, *range(2, n + 2), 1]))


@rule("convolution")
def convolution(
    g: GraphBuilder, x: Var, w: Var, strides: Ints, padding: Pads, lhs_dilation: Ints, rhs_dilation: Ints,
    groups: int = 1, batch_groups: int = 1,
) -> str:  # fmt: skip
    if batch_groups != 1:
        raise NotImplementedError("a convolution with groups of the batch")
    image: Any = x
    if any(d != 1 for d in lhs_dilation):
        config = [(0, 0, 0), (0, 0, 0), *((0, 0, d - 1) for d in lhs_dilation)]
        image = pad(g, x, 0, config)
    return _conv(g, image, w, None, strides, padding, rhs_dilation, groups)


@rule("conv_transpose")
def conv_transpose(
    g: GraphBuilder, x: Var, weight: Var, bias: Var | None = None, stride: Ints = (1,), padding: Ints = (0,),
    output_padding: Ints = (0,), dilation: Ints = (1,), groups: int = 1,
) -> str:  # fmt: skip
    return str(g.op("ConvTranspose", x, weight, bias, strides=list(stride), pads=[*padding, *padding],
                    output_padding=list(output_padding), dilations=list(dilation), group=groups))  # fmt: skip


# ---- pooling ---------------------------------------------------------------------------------------------------------


@rule("max_pool")
def max_pool(
    g: GraphBuilder, x: Var, window: Ints, stride: Ints, padding: Pads = ((0, 0),), dilation: Ints | None = None
) -> str:
    if x.ndim != len(window) + 2:
        lead = (1,) * (x.ndim - len(window))
        places = (*lead, *window), (*lead, *stride), (*((0, 0) for _ in lead), *padding)
        return reduce_window(g, x, "max", *places, (*lead, *(dilation or [1] * len(window))))
    return str(g.op("MaxPool", x, kernel_shape=list(window), strides=list(stride), pads=_pads(padding),
                    dilations=list(dilation or [1] * len(window))))  # fmt: skip


@rule("avg_pool")
def avg_pool(
    g: GraphBuilder, x: Var, window: Ints, stride: Ints, padding: Pads = ((0, 0),), count_padding: bool = True
) -> str:
    if x.ndim != len(window) + 2:
        image = reshaped_lead(g, x, x, range(x.ndim - len(window), x.ndim))
        y = _average(g, image, window, stride, padding, count_padding)
        return reshaped(g, y, g.results.shape)
    return _average(g, x, window, stride, padding, count_padding)


def _average(g: GraphBuilder, x: Any, window: Ints, stride: Ints, padding: Pads, count_padding: bool) -> str:
    return str(g.op("AveragePool", x, kernel_shape=list(window), strides=list(stride), pads=_pads(padding),
                    count_include_pad=int(count_padding)))  # fmt: skip


@rule("reduce_window")
def reduce_window(
    g: GraphBuilder, x: Var, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
) -> str:
    moved = [
        a for a in range(x.ndim) if window[a] != 1 or strides[a] != 1 or tuple(padding[a]) != (0, 0)
    ]  # fmt: skip
    rest = [a for a in range(x.ndim) if a not in moved]
    if not moved:
        return str(g.op("Identity", x))
    order = [*rest, *moved]
    y: Any = g.op("Transpose", x, perm=order)
    y = reshaped_lead(g, y, x, moved)
    own = {name: [value[a] for a in moved] for name, value in
           {"window": window, "strides": strides, "dilation": window_dilation}.items()}  # fmt: skip
    pads = _pads([padding[a] for a in moved])
    if kind == "max":
        y = g.op("MaxPool", y, kernel_shape=own["window"], strides=own["strides"], pads=pads, dilations=own["dilation"])
    elif kind == "min":
        y = g.op("MaxPool", g.op("Neg", y), kernel_shape=own["window"], strides=own["strides"], pads=pads,
                 dilations=own["dilation"])  # fmt: skip
        y = g.op("Neg", y)
    else:
        y = g.op("AveragePool", y, kernel_shape=own["window"], strides=own["strides"], pads=pads, count_include_pad=1,
                 dilations=own["dilation"] if any(d != 1 for d in own["dilation"]) else None)  # fmt: skip
        y = g.op("Mul", y, g(float(math.prod(own["window"])), x.dtype))
    y = reshaped(g, y, [g.results.shape[a] for a in order])
    return str(g.op("Transpose", y, perm=[order.index(a) for a in range(x.ndim)]))


def reshaped_lead(g: GraphBuilder, y: Any, x: Var, moved: Ints) -> str:
    """Merge the leading axes into a batch of one channel."""
    lead = g.op("Concat", np.array([-1, 1], np.int64), g.shape([x.shape[a] for a in moved]), axis=0)
    return str(g.op("Reshape", y, lead))


# ---- norms -----------------------------------------------------------------------------------------------------------


@rule("layer_norm")
def layer_norm(
    g: GraphBuilder, x: Var, weight: Var | None = None, bias: Var | None = None, axes: int = 1, eps: float = 1e-5
) -> str:
    shape = x.shape[x.ndim - axes :]
    scale = filled_array(g, shape, 1, x.dtype) if weight is None else _as_long(g, weight, shape)
    shift = None if bias is None else _as_long(g, bias, shape)
    return str(g.op("LayerNormalization", x, scale, shift, axis=-axes, epsilon=float(eps)))


def _as_long(g: GraphBuilder, v: Var, shape: Sequence[Any]) -> str:
    return g(v) if v.ndim == len(shape) else str(g.op("Expand", v, g.shape(shape)))


@rule("batch_norm")
def batch_norm(
    g: GraphBuilder, x: Var, mean: Var, variance: Var, weight: Var | None = None, bias: Var | None = None,
    eps: float = 1e-5,
) -> str:  # fmt: skip
    scale = g(weight) if weight is not None else filled_array(g, mean.shape, 1, x.dtype)
    shift = g(bias) if bias is not None else filled_array(g, mean.shape, 0, x.dtype)
    return str(g.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=float(eps)))
