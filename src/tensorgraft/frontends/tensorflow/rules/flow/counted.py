"""Rules of operations on rows that a traced program counts (`counted`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.counted_rows import COUNTED, CountedRule, aligned, is_counted
from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rules.mathematics import elementwise as _elementwise
from tensorgraft.frontends.tensorflow.values import CountedRows, CountedSizes, is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Plain = Callable[..., Any]


def _register(*names: str) -> Callable[[CountedRule], CountedRule]:
    def register(fn: CountedRule) -> CountedRule:
        COUNTED.update(dict.fromkeys(names, fn))
        return fn

    return register


def _rank(xp: Backend, x: Any) -> int:
    x = x.array if isinstance(x, CountedRows) else x
    return x.ndim if is_known(x) else xp.ndim(x)


_NAMES = [name for row in _elementwise.OTHERWISE.values() for name in row.split()]
_NAMES += ["".join(part.capitalize() for part in name.split("_")) for name in _elementwise.SAME]


@_register(*_NAMES, "Abs", "Cast", "ZerosLike", "OnesLike", "Relu", "SelectV2", "DivNoNan", "SquaredDifference", "Pow")
def elementwise(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    """Compute on all rows: padding of the operands becomes padding of the result."""
    if not any(isinstance(x, CountedRows) for x in operands):
        return _of_sizes(xp, plain, operands, node)
    operands = [x.array if isinstance(x, CountedSizes) else x for x in operands]
    rank = max(_rank(xp, x) for x in operands)
    if any(isinstance(x, CountedRows) and _rank(xp, x) < rank for x in operands):
        return None
    inputs = [x if isinstance(x, CountedRows) else lifted(xp, x) for x in operands]
    long = [
        i for i, x in enumerate(inputs) if isinstance(x, CountedRows) or (xp.ndim(x) == rank and xp.shape(x)[0] != 1)
    ]
    arrays, count = aligned(xp, [inputs[i] for i in long])
    for i, array in zip(long, arrays, strict=True):
        inputs[i] = array
    return CountedRows(plain(*inputs), count)


@_register("Squeeze")
def squeeze(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    (x,) = operands
    axes = [a % _rank(xp, x) for a in node.attributes.get("squeeze_dims", ())]
    return CountedRows(plain(x.array), x.count) if axes and 0 not in axes else None


@_register("ExpandDims")
def expand_dims(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    x, axis = operands
    is_new_leading = is_known(axis) and int(axis) % (_rank(xp, x) + 1)
    return CountedRows(plain(x.array, axis), x.count) if is_new_leading else None


def _of_sizes(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    """Return a size, and a number more or less, as a size again."""
    x, *rest = operands
    dtype = node.dtypes[0]
    if node.op == "Cast" and isinstance(x, CountedSizes) and dtype is not None and dtype.kind in "iu":
        return replace(x, array=plain(x.array))
    if node.op not in ("Add", "AddV2", "Sub") or not isinstance(x, CountedSizes) or not is_known(rest[0]):
        return None
    if rest[0].ndim:
        return None
    offset = int(rest[0]) if node.op != "Sub" else -int(rest[0])
    return replace(x, array=plain(x.array, rest[0]), at_most=x.at_most + offset)


@_register("Shape")
def shape(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    (x,) = operands
    if not isinstance(x, CountedRows):
        return None
    dtype, extents = node.attributes.get("out_type", dtypes.int32), np.asarray(xp.shape(x.array), np.int64)
    known = [xp.full((), int(n), dtype) for n in extents[1:]]
    array = xp.stack([xp.astype(x.count, dtype), *known], axis=0)
    return CountedSizes(array, extents, np.arange(extents.size) == 0)


@_register("StridedSlice")
def strided_slice(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    x, *where = operands
    if not all(map(is_known, where)):
        return None
    if isinstance(x, CountedRows):  # all rows, and of each the same part
        masks = {name: int(node.attributes.get(f"{name}_mask", 0)) for name in ("begin", "end", "ellipsis", "new_axis")}
        takes_all_rows = masks["begin"] & masks["end"] & 1 and int(where[2][0]) == 1
        first = (masks["ellipsis"] | masks["new_axis"] | int(node.attributes.get("shrink_axis_mask", 0))) & 1
        return CountedRows(plain(x.array, *where), x.count) if takes_all_rows and not first else None
    parts = [np.asarray(plain(part, *where)) for part in (x.at_most, x.open)]
    return CountedSizes(plain(x.array, *where), *parts) if parts[1].any() else parts[0].astype(node.dtypes[0])


@_register("Pack")
def pack(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    if not all(isinstance(x, CountedSizes) or is_known(x) for x in operands):
        return None
    at_most = np.stack([x.at_most if isinstance(x, CountedSizes) else x for x in operands])
    is_open = np.stack([x.open if isinstance(x, CountedSizes) else np.zeros(x.shape, bool) for x in operands])
    return CountedSizes(plain(*(lifted(xp, x) for x in operands)), at_most, is_open)


@_register("Fill")
def fill(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    sizes, value = operands
    if not isinstance(sizes, CountedSizes) or isinstance(value, CountedRows) or sizes.open[1:].any():
        return None
    return CountedRows(plain(sizes.at_most, lifted(xp, value)), _first(xp, sizes))


@_register("Range")
def range_(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    start, limit, step = operands
    is_countable = is_known(start) and is_known(step) and isinstance(limit, CountedSizes) and int(step) == 1
    if not is_countable:
        return None
    numbers = plain(start, limit.at_most.astype(start.dtype), step)
    count = xp.subtract(xp.astype(limit.array, dtypes.int64), xp.full((), int(start), dtypes.int64))
    return CountedRows(lifted(xp, numbers), xp.maximum(count, xp.zeros_like(count)))


def _first(xp: Backend, sizes: CountedSizes) -> Array:
    return xp.astype(xp.squeeze(xp.take_slice(sizes.array, 0, 0, 1), 0), dtypes.int64)


@_register("GatherV2")
def gather(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    """Rows at counted places."""
    x, indices, axis = operands
    rows = is_known(axis) and int(axis) == 0 and not node.attributes.get("batch_dims", 0)
    if not rows or isinstance(x, CountedRows):
        return None
    return CountedRows(plain(x, indices.array, axis), indices.count)


@_register("GatherNd")
def gather_nd(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    x, indices = operands
    return None if isinstance(x, CountedRows) else CountedRows(plain(x, indices.array), indices.count)


def _scatters(first: int) -> CountedRule:
    """Return the rule of a scatter. `first`: the position of the indices among the operands; the updates follow
    them."""

    def scatter(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
        """Scatter counted rows: padding gets the index -1, and is left out."""
        pair = operands[first : first + 2]
        rest = [x for i, x in enumerate(operands) if not first <= i < first + 2]
        if _is_segments(node.op) and isinstance(rest[0], CountedSizes):  # the number of segments is the count of rows
            return None if any(isinstance(x, CountedRows) for x in pair) else _counted_segments(xp, plain, operands)
        if any(isinstance(x, CountedRows) for x in rest) or any(_rank(xp, x) == 0 for x in pair):
            return None
        arrays, count = aligned(xp, [x if isinstance(x, CountedRows) else lifted(xp, x) for x in pair])
        i = 1 if _is_segments(node.op) else 0
        indices = arrays[i]
        row_counts = is_counted(xp, CountedRows(indices, count))
        row_counts = xp.reshape(row_counts, (*xp.shape(row_counts), *[1] * (xp.ndim(indices) - 1)))
        arrays[i] = xp.where(row_counts, indices, xp.full_like(indices, -1))
        return plain(*operands[:first], *arrays, *operands[first + 2 :])

    return scatter


def _counted_segments(xp: Backend, plain: Plain, operands: list[Any]) -> CountedRows:
    x, segments, size = operands
    return CountedRows(plain(x, segments, size.at_most), xp.astype(size.array, dtypes.int64))


def _is_segments(op: str) -> bool:
    return op.startswith("UnsortedSegment")


for _name in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max"):
    _register(f"ResourceScatter{_name}", f"ResourceScatterNd{_name}", f"TensorScatter{_name}")(_scatters(1))
_register("ScatterNd", *(f"UnsortedSegment{name}" for name in ("Sum", "Prod", "Max", "Min")))(_scatters(0))


_NEUTRAL = {"Sum": 0, "Prod": 1, "Any": False, "All": True}


@_register(*_NEUTRAL, "Mean")
def reduce(xp: Backend, plain: Plain, operands: list[Any], node: GraphNode) -> Any:
    x, axes = operands
    if isinstance(axes, CountedRows) or not isinstance(x, CountedRows) or not is_known(axes):
        return None
    reduced = {int(a) % _rank(xp, x) for a in np.ravel(axes)}
    if 0 not in reduced:
        return CountedRows(plain(x.array, axes), x.count)
    if node.op == "Mean":
        return None
    is_row = is_counted(xp, x)
    is_row = xp.reshape(is_row, (*xp.shape(is_row), *[1] * (_rank(xp, x) - 1)))
    return plain(xp.where(is_row, x.array, xp.full_like(x.array, _NEUTRAL[node.op])), axes)
