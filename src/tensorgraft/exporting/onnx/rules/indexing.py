"""Gathers, updates and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.structure.size_merging import equal_sizes
from tensorgraft.codegen.targets.rules import plus
from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.exporting.onnx.rules.elementwise import ordered_dtype
from tensorgraft.exporting.onnx.rules.shapes import sliced
from tensorgraft.hub.recorded.block import Var

_REDUCTIONS = {"set": "none", "add": "add", "multiply": "mul", "min": "min", "max": "max"}


def _positions(g: GraphBuilder, indices: Sequence[Any]) -> str:
    """Return several indices as one of positions, along a last axis: int64."""
    names = [g.cast(i, np.int64) if getattr(i, "dtype", None) != np.int64 else g(i) for i in indices]
    if len(names) > 1 and not all(equal_sizes(i.shape, indices[0].shape) for i in indices[1:]):
        shape = g.op("Shape", _sum_of(g, names))
        names = [g.op("Expand", n, shape) for n in names]
    last = [g.op("Unsqueeze", n, np.array([-1], np.int64)) for n in names]
    return str(g.op("Concat", *last, axis=-1)) if len(last) > 1 else str(last[0])


def _sum_of(g: GraphBuilder, names: Sequence[str]) -> str:
    total = names[0]
    for n in names[1:]:
        total = g.op("Add", total, n)
    return total


@rule("gather")
def gather(g: GraphBuilder, x: Any, indices: Sequence[Any]) -> str:
    if not indices:
        return str(g.op("Identity", x))
    if len(indices) == 1:
        return str(g.op("Gather", x, indices[0], axis=0))
    return str(g.op("GatherND", x, _positions(g, indices)))


@rule("embedding")
def embedding(g: GraphBuilder, weight: Any, indices: Any, padding: Any = None) -> str:
    return str(g.op("Gather", weight, indices, axis=0))


@rule("take")
def take(g: GraphBuilder, x: Any, indices: Any, axis: int) -> str:
    return str(g.op("Gather", x, indices, axis=axis))


@rule("take_along_axis")
def take_along_axis(g: GraphBuilder, x: Var, indices: Var, axis: int) -> str:
    if not x.ndim:
        return str(g.op("Expand", x, g.shape(indices.shape)))
    return str(g.op("GatherElements", x, indices, axis=axis))


@rule("scatter")
def scatter(g: GraphBuilder, x: Var, indices: Sequence[Var], updates: Var, mode: str = "set") -> str:
    if not indices:
        if mode != "set":
            raise NotImplementedError(f"an update of a whole array by {mode}")
        return str(g.op("Identity", updates))
    positions = _positions(g, indices)
    lead = [*indices[0].shape] if all(equal_sizes(i.shape, indices[0].shape) for i in indices) else None
    if lead is None or not equal_sizes((*lead, *x.shape[len(indices) :]), tuple(updates.shape)):
        rest = g.shape(x.shape[len(indices) :])
        target = g.op("Concat", g.op("Shape", positions, end=-1), rest, axis=0)
        updates = g.op("Expand", updates, target)
    dtype = np.dtype(x.dtype)
    if mode == "set" or (dtype.kind == "f" or dtype == np.int64):
        return str(g.op("ScatterND", x, positions, updates, reduction=_REDUCTIONS[mode]))
    wide = ordered_dtype(dtype) if mode in ("min", "max") else np.dtype(np.int64)
    kind = np.dtype(np.int64) if wide.kind in "iu" else wide
    y = g.op("ScatterND", g.cast(x, kind), positions, g.cast(updates, kind), reduction=_REDUCTIONS[mode])
    return g.cast(y, dtype)


@rule("put_along_axis")
def put_along_axis(g: GraphBuilder, x: Var, indices: Any, updates: Any, axis: int, mode: str = "set") -> str:
    return str(g.op("ScatterElements", x, indices, updates, axis=axis, reduction=_REDUCTIONS[mode]))


@rule("slice_update")
def slice_update(g: GraphBuilder, x: Var, update: Var, start: Sequence[Any], step: Sequence[int]) -> str:
    partial = [
        a for a in range(x.ndim)
        if not (equal_sizes(start[a], 0) and step[a] == 1 and equal_sizes(update.shape[a], x.shape[a]))
    ]  # fmt: skip
    if not partial:
        return str(g.op("Identity", update))
    if len(partial) == 1 and step[partial[0]] == 1:
        (axis,) = partial
        at, n = start[axis], update.shape[axis]
        before = sliced(g, x, [(axis, 0, at, 1)])
        after = sliced(g, x, [(axis, plus(at, n), np.iinfo(np.int64).max, 1)])
        return str(g.op("Concat", before, update, after, axis=axis))
    starts = [g(s, np.int64) for s in start]
    return _written_window(g, x, update, starts, step)


@rule("dynamic_update_slice")
def dynamic_update_slice(g: GraphBuilder, x: Var, update: Var, start: Sequence[Any]) -> str:
    return _written_window(g, x, update, _clamped(g, x, start, update.shape), [1] * x.ndim)


def _written_window(g: GraphBuilder, x: Var, update: Var, starts: Sequence[str], step: Sequence[int]) -> str:
    """Write an update at the places of a grid."""
    grid = []
    for axis, (at, n, s) in enumerate(zip(starts, update.shape, step, strict=True)):
        line = g.op("Range", g(0, np.int64), g(n, np.int64), g(1, np.int64))
        line = g.op("Add", g.op("Mul", line, g(s, np.int64)), at)
        shape = [1] * x.ndim
        shape[axis] = -1
        line = g.op("Reshape", line, np.array(shape, np.int64))
        grid.append(g.op("Unsqueeze", g.op("Expand", line, g.shape(update.shape)), np.array([-1], np.int64)))
    if not grid:
        return str(g.op("Identity", update))
    places = g.op("Concat", *grid, axis=-1)
    return str(g.op("ScatterND", x, places, update))


def _clamped(g: GraphBuilder, x: Var, start: Sequence[Any], sizes: Sequence[Any]) -> list[str]:
    """Return starts at which a window is within the array: int64 without axes."""
    starts = []
    for i, n, size in zip(start, x.shape, sizes, strict=True):
        last = g.op("Sub", g(n, np.int64), g(size, np.int64))
        at = g.cast(i, np.int64) if isinstance(i, Var) else g(i, np.int64)
        starts.append(str(g.op("Min", g.op("Max", at, g(0, np.int64)), last)))
    return starts


@rule("dynamic_slice")
def dynamic_slice(g: GraphBuilder, x: Var, start: Sequence[Any], sizes: Sequence[Any]) -> str:
    if not x.ndim:
        return str(g.op("Identity", x))
    starts = [g.op("Reshape", s, np.array([1], np.int64)) for s in _clamped(g, x, start, sizes)]
    begin = g.op("Concat", *starts, axis=0)
    return str(g.op("Slice", x, begin, g.op("Add", begin, g.shape(sizes)), np.arange(x.ndim)))
