"""Reductions, sorting and running totals."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.exporting.onnx.rules.elementwise import computed_dtype, ordered_dtype
from tensorgraft.hub.recorded.block import Var

_KINDS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "mean": "ReduceMean",
          "any": "ReduceMax", "all": "ReduceMin"}  # fmt: skip


def axes_of(x: Var, axis: Any) -> list[int]:
    """Return the axes of a reduction, counted from the first."""
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return [a % x.ndim for a in axes] if x.ndim else []


@rule(*_KINDS)
def reduction(g: GraphBuilder, x: Var, axis: Any = None, keepdims: bool = False) -> str:
    dtype = np.dtype(x.dtype)
    wide = computed_dtype(dtype) if g.method in ("sum", "prod") else ordered_dtype(dtype)
    operand = g(x) if wide == dtype else g.cast(x, wide)
    axes = axes_of(x, axis)
    if not axes:
        y = g.op("Identity", operand)
    else:
        y = g.op(_KINDS[g.method], operand, np.array(axes, np.int64), keepdims=int(keepdims))
    return str(y) if wide == dtype else g.cast(y, g.results.dtype)


@rule("argmax", "argmin")
def extreme_index(g: GraphBuilder, x: Var, axis: int, keepdims: bool = False) -> str:
    dtype = np.dtype(x.dtype)
    wide = ordered_dtype(dtype)
    operand = g(x) if wide == dtype else g.cast(x, wide)
    kind = "ArgMax" if g.method == "argmax" else "ArgMin"
    y = g.op(kind, operand, axis=axis, keepdims=int(keepdims))
    return str(y) if g.results.dtype == np.int64 else g.cast(y, g.results.dtype)


@rule("cumsum")
def cumsum(g: GraphBuilder, x: Var, axis: int) -> str:
    dtype = np.dtype(x.dtype)
    wide = computed_dtype(dtype)
    y = g.op("CumSum", g(x) if wide == dtype else g.cast(x, wide), np.array(axis, np.int64))
    return str(y) if wide == dtype else g.cast(y, dtype)


@rule("softmax", "log_softmax")
def softmax(g: GraphBuilder, x: Var, axis: int) -> str:
    return str(g.op("Softmax" if g.method == "softmax" else "LogSoftmax", x, axis=axis))


def _ordered(g: GraphBuilder, x: Var, axis: int, descending: bool, k: Any = None) -> tuple[str, str]:
    """Return the sorted elements and their places; equal ones keep their order."""
    dtype = np.dtype(x.dtype)
    wide = ordered_dtype(dtype)
    operand = g(x) if wide == dtype else g.cast(x, wide)
    count = g.extent(x.shape[axis] if k is None else k)
    values, places = g.op("TopK", operand, count, axis=axis, largest=int(descending), outputs=2)
    return (values if wide == dtype else g.cast(values, dtype)), places


@rule("sort")
def sort(g: GraphBuilder, operands: Any, axis: int = -1, num_keys: int = 1) -> tuple[str, ...]:
    if num_keys != 1:
        raise NotImplementedError("a sort of several keys")
    values, places = _ordered(g, operands[0], axis, False)
    return values, *(str(g.op("GatherElements", x, places, axis=axis)) for x in operands[1:])


@rule("argsort")
def argsort(g: GraphBuilder, x: Var, axis: int = -1, descending: bool = False) -> str:
    places = _ordered(g, x, axis, descending)[1]
    return places if g.results.dtype == np.int64 else g.cast(places, g.results.dtype)


@rule("sort_with_indices")
def sort_with_indices(g: GraphBuilder, x: Var, axis: int = -1, descending: bool = False) -> tuple[str, str]:
    return _with_places(g, *_ordered(g, x, axis, descending))


@rule("top_k")
def top_k(g: GraphBuilder, x: Var, k: int, axis: int = -1, largest: bool = True) -> tuple[str, str]:
    return _with_places(g, *_ordered(g, x, axis, largest, k))


def _with_places(g: GraphBuilder, values: str, places: str) -> tuple[str, str]:
    dtype = g.results[1].dtype
    return values, places if dtype == np.int64 else g.cast(places, dtype)


@rule("searchsorted")
def searchsorted(g: GraphBuilder, boundaries: Var, values: Any, right: bool = False) -> str:
    """Count the boundaries below each value."""
    v = g(values, boundaries.dtype)
    edges = g(boundaries)
    if boundaries.ndim > 1:
        edges = g.op("Unsqueeze", boundaries, np.array([-2], np.int64))
    wide = g.op("Unsqueeze", v, np.array([-1], np.int64))
    below = g.op("LessOrEqual" if right else "Less", edges, wide)
    count = g.op("ReduceSum", g.cast(below, np.int64), np.array([-1], np.int64), keepdims=0)
    return str(count) if g.results.dtype == np.int64 else g.cast(count, g.results.dtype)
