"""Shapes, creation, and slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.structure.size_merging import Extent, Quantity, equal_sizes
from tensorgraft.codegen.targets.rules import minus, plus
from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var

_LAST = np.iinfo(np.int64).max


@rule("reshape")
def reshape(g: GraphBuilder, x: Any, shape: Sequence[Any]) -> str:
    return reshaped(g, x, shape)


def reshaped(g: GraphBuilder, x: Any, shape: Sequence[Any]) -> str:
    """Reshape; one extent that varies is inferred."""
    varied = [n for n in shape if isinstance(n, Extent)]
    if len(varied) == 1 and 0 not in shape:
        return str(g.op("Reshape", x, np.array([-1 if isinstance(n, Extent) else n for n in shape], np.int64)))
    return str(g.op("Reshape", x, g.shape(shape), allowzero=1 if 0 in shape else None))


@rule("flatten")
def flatten(g: GraphBuilder, x: Var, start: int = 0, end: int = -1) -> str:
    return reshaped(g, x, g.results.shape)


@rule("squeeze")
def squeeze(g: GraphBuilder, x: Var, axes: Any) -> str:
    axes = [axes] if isinstance(axes, int) else [*axes]
    return str(g.op("Squeeze", x, np.array(axes, np.int64)))


@rule("expand_dims")
def expand_dims(g: GraphBuilder, x: Var, axis: int) -> str:
    return str(g.op("Unsqueeze", x, np.array([axis], np.int64)))


@rule("broadcast_to")
def broadcast_to(g: GraphBuilder, x: Any, shape: Sequence[Any]) -> str:
    if isinstance(x, Var) and equal_sizes(tuple(x.shape), tuple(shape)):
        return str(g.op("Identity", x))
    return str(g.op("Expand", x, g.shape(shape)))


@rule("permute_dims")
def permute_dims(g: GraphBuilder, x: Any, axes: Sequence[int]) -> str:
    if not axes:
        return str(g.op("Identity", x))
    return str(g.op("Transpose", x, perm=list(axes)))


@rule("concat")
def concat(g: GraphBuilder, arrays: Sequence[Any], axis: int) -> str:
    return str(g.op("Concat", *arrays, axis=axis))


@rule("stack")
def stack(g: GraphBuilder, arrays: Sequence[Any], axis: int = 0) -> str:
    return str(g.op("Concat", *(g.op("Unsqueeze", x, np.array([axis], np.int64)) for x in arrays), axis=axis))


@rule("split")
def split(g: GraphBuilder, x: Var, sizes: Sequence[Any], axis: int = 0) -> tuple[str, ...]:
    kept, rest = len(sizes), minus(x.shape[axis % x.ndim], *sizes)
    lengths = [*sizes, *([rest] if not equal_sizes(rest, 0) else [])]
    if len(lengths) == 1:
        return (str(g.op("Identity", x)),)
    parts = g.op("Split", x, g.shape(lengths), axis=axis, outputs=len(lengths))
    return tuple(parts[:kept])


@rule("tile")
def tile(g: GraphBuilder, x: Var, repeats: Sequence[Any]) -> str:
    lead = len(repeats) - x.ndim
    operand = reshaped(g, x, (*(1,) * lead, *x.shape)) if lead > 0 else x
    return str(g.op("Tile", operand, g.shape([*(1,) * -lead, *repeats])))


@rule("repeat")
def repeat(g: GraphBuilder, x: Var, times: Any, axis: int) -> str:
    axis %= x.ndim
    if equal_sizes(times, 0):
        return sliced(g, x, [(axis, 0, 0, 1)])
    wide = g.op("Unsqueeze", x, np.array([axis + 1], np.int64))
    wide = g.op("Expand", wide, g.shape([*x.shape[: axis + 1], times, *x.shape[axis + 1 :]]))
    return reshaped(g, wide, g.results.shape)


@rule("flip")
def flip(g: GraphBuilder, x: Any, axes: Sequence[int]) -> str:
    n = len(axes)
    ends = np.full(n, np.iinfo(np.int64).min)
    return str(g.op("Slice", x, np.full(n, -1), ends, np.array(axes, np.int64), np.full(n, -1)))


def sliced(g: GraphBuilder, x: Any, bounds: Sequence[tuple[int, Any, Any, int]]) -> str:
    """Slice along axes: (axis, start, stop, step) of each."""
    if not bounds:
        return str(g.op("Identity", x))
    axes, starts, stops, steps = zip(*bounds, strict=True)
    return str(g.op("Slice", x, g.shape(starts), g.shape(stops), np.array(axes, np.int64), np.array(steps, np.int64)))


@rule("slice")
def slice_(g: GraphBuilder, x: Var, start: Any, stop: Any, step: Any) -> str:
    bounds = [
        (axis, a, b, c) for axis, (a, b, c) in enumerate(zip(start, stop, step, strict=True))
        if not (equal_sizes(a, 0) and equal_sizes(b, x.shape[axis]) and c == 1)
    ]  # fmt: skip
    return sliced(g, x, bounds)


@rule("take_slice")
def take_slice(g: GraphBuilder, x: Var, axis: int, start: Any, stop: Any, step: int = 1) -> str:
    return sliced(g, x, [(axis % x.ndim, start, stop, step)])


@rule("getitem")
def getitem(g: GraphBuilder, x: Var, index: tuple[Any, ...]) -> str:
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    index = (*index[:at], *[slice(None)] * (x.ndim - taken), *index[at + 1 :])
    bounds: list[tuple[int, Any, Any, int]] = []
    dropped: list[int] = []
    added: list[int] = []
    axis = out = 0
    for i in index:
        if i is None:
            added.append(out)
            out += 1
            continue
        if isinstance(i, slice):
            if not (i.start in (None, 0) and i.stop is None and i.step in (None, 1)):
                bounds.append((axis, i.start or 0, _LAST if i.stop is None else i.stop, i.step or 1))
            out += 1
        else:
            bounds.append((axis, i, plus(i, 1) if isinstance(i, Extent) or i != -1 else _LAST, 1))
            dropped.append(axis)
        axis += 1
    y = sliced(g, x, bounds) if bounds else g(x)
    y = g.op("Squeeze", y, np.array(dropped, np.int64)) if dropped else y
    y = g.op("Unsqueeze", y, np.array(added, np.int64)) if added else y
    return str(g.op("Identity", y)) if y == g(x) else str(y)


@rule("pad")
def pad(g: GraphBuilder, x: Var, value: Any, config: Sequence[tuple[Any, Any, Any]]) -> str:
    operand, shape = g(x), list(x.shape)
    for axis, (_, _, gap) in enumerate(config):
        if gap:
            operand = _spread(g, operand, x, value, shape, axis, gap)
    low, high = [c[0] for c in config], [c[1] for c in config]
    if all(equal_sizes(n, 0) for n in (*low, *high)):
        return str(g.op("Identity", operand))
    return str(g.op("Pad", operand, g.shape([*low, *high]), g(value, x.dtype), mode="constant"))


def _spread(g: GraphBuilder, operand: str, x: Var, value: Any, shape: list[Any], axis: int, gap: int) -> str:
    """Put `gap` elements between those along an axis: along a new one, of which the last part is cut off."""
    n = shape[axis]
    wide = g.op("Unsqueeze", operand, np.array([axis + 1], np.int64))
    pads = np.zeros(2 * (len(shape) + 1), np.int64)
    pads[len(shape) + 1 + axis + 1] = gap
    wide = g.op("Pad", wide, pads, g(value, x.dtype), mode="constant")
    long = [*shape[:axis], n * (gap + 1), *shape[axis + 1 :]] if not isinstance(n, Extent) else None
    if long is None:
        raise NotImplementedError("gaps along an axis whose size varies")
    shape[axis] = n + (n - 1) * gap
    return sliced(g, reshaped(g, wide, long), [(axis, 0, shape[axis], 1)])


@rule("pad_reflect", "pad_edge")
def pad_with_itself(g: GraphBuilder, x: Var, pads: Sequence[tuple[int, int]]) -> str:
    lead = [0] * (x.ndim - len(pads))
    widths = np.array([*lead, *(low for low, _ in pads), *lead, *(high for _, high in pads)], np.int64)
    return str(g.op("Pad", x, widths, mode="reflect" if g.method == "pad_reflect" else "edge"))


# ---- creation --------------------------------------------------------------------------------------------------------


@rule("full")
def full(g: GraphBuilder, shape: Sequence[Any], value: Any, dtype: np.dtype) -> str:
    return filled_array(g, shape, value, dtype)


def filled_array(g: GraphBuilder, shape: Sequence[Any], value: Any, dtype: Any) -> str:
    value_name = g(value, dtype)
    if isinstance(value, Var) and value.dtype != dtype:
        value_name = g.cast(value_name, dtype)
    return str(g.op("Expand", value_name, g.shape(shape))) if shape else str(g.op("Identity", value_name))


@rule("zeros", "ones")
def zeros(g: GraphBuilder, shape: Sequence[Any], dtype: np.dtype) -> str:
    return filled_array(g, shape, int(g.method == "ones"), dtype)


@rule("zeros_like", "ones_like")
def zeros_like(g: GraphBuilder, x: Var) -> str:
    return filled_array(g, x.shape, int(g.method == "ones_like"), x.dtype)


@rule("full_like")
def full_like(g: GraphBuilder, x: Var, value: Any) -> str:
    return filled_array(g, x.shape, value, x.dtype)


@rule("iota")
def iota(g: GraphBuilder, n: Any, dtype: np.dtype) -> str:
    if not isinstance(n, Extent) and n <= 4096:
        return str(g.op("Identity", np.arange(n).astype(dtype)))
    y = g.op("Range", g(0, np.int64), g(n, np.int64), g(1, np.int64))
    return str(y) if dtype == np.int64 else g.cast(y, dtype)


@rule("arange")
def arange(g: GraphBuilder, start: Any, stop: Any, step: Any, dtype: np.dtype) -> str:
    if not any(isinstance(n, Extent | Quantity) for n in (start, stop, step)) and (stop - start) / step <= 4096:
        return str(g.op("Identity", np.arange(start, stop, step).astype(dtype)))
    wide = dtypes.int64 if np.dtype(dtype).kind in "iu" else dtypes.float64
    y = g.op("Range", g(start, wide), g(stop, wide), g(step, wide))
    return str(y) if dtype == wide else g.cast(y, dtype)
