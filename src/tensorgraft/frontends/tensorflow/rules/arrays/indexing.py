"""Gather, scatter and segments: of arrays, and of the values of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.counted_rows import compacted
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.mathematics.elementwise import div
from tensorgraft.frontends.tensorflow.values import CountedRows, VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


@with_operators
def _in_bounds(xp: ValueBackend, indices: Value, n: int) -> tuple[Value, Value]:
    """Return (a mask of valid indices, the indices clipped to the valid range)."""
    indices = xp.astype(indices, dtypes.int64)
    is_valid = (indices >= 0) & (indices < n)
    return is_valid, xp.where(is_valid, indices, xp.zeros_like(indices))


def expand_to_rank(xp: Backend, x: Array, like: Array) -> Array:
    """Append axes of extent 1, up to as many axes as `like` has."""
    return xp.reshape(x, (*xp.shape(x), *[1] * (xp.ndim(like) - xp.ndim(x))))


@rule("GatherV2", known=("axis",))
def gather_v2(xp: Backend, x: Array, indices: Array, axis: np.ndarray, *, batch_dims: int = 0) -> Array:
    """An index out of range is an error of TensorFlow's; here the result is 0 there, as on its GPUs."""
    at = int(axis) % xp.ndim(x)
    batch = batch_dims % (xp.ndim(indices) + 1) if batch_dims < 0 else batch_dims
    extent = xp.shape(x)[at]
    if not extent:
        shape = xp.shape(x)
        return xp.zeros((*shape[:at], *xp.shape(indices)[batch:], *shape[at + 1 :]), xp.dtype_of(x))
    valid, indices = _in_bounds(xp, indices, extent)
    if not batch:
        out = xp.take(x, indices, at)
        leading = at
    else:
        out, leading = _batched_take(xp, x, indices, at, batch)
    shape = xp.shape(indices)
    mask = xp.reshape(valid, (*shape[:batch], *[1] * (leading - batch), *shape[batch:], *[1] * (xp.ndim(x) - at - 1)))
    return xp.where(mask, out, xp.zeros_like(out))


def _batched_take(xp: Backend, x: Array, indices: Array, axis: int, batch: int) -> tuple[Array, int]:
    """Leading axes go along."""
    moved = x
    for _ in range(axis - batch):  # move the axes between batch and axis after it
        moved = xp.moveaxis(moved, batch, axis)
    shape = xp.shape(indices)
    grid = []
    for b in range(batch):
        grid.append(
            xp.reshape(xp.iota(shape[b], dtypes.int64), tuple(shape[b] if a == b else 1 for a in range(len(shape))))
        )
    out = xp.gather(moved, (*grid, indices))
    n = len(shape) - batch
    axes_between = axis - batch
    order = [*range(batch), *range(batch + n, batch + n + axes_between), *range(batch, batch + n)]
    order += range(len(order), xp.ndim(out))
    return xp.permute_dims(out, tuple(order)), axis


@rule("Gather")
def gather(xp: Backend, x: Array, indices: Array) -> Array:
    return gather_v2(xp, x, indices, np.asarray(0))


@rule("ResourceGather")
def resource_gather(xp: Backend, cell: VariableCell, indices: Array, *, batch_dims: int = 0) -> Array:
    return gather_v2(xp, cell.value, indices, np.asarray(batch_dims), batch_dims=batch_dims)


def _nd(xp: Any, x: AnyArray, indices: AnyArray) -> tuple[AnyArray, list[AnyArray]]:
    """Return (whether each place is one, an index array for each of the first axes)."""
    parts = xp.unstack(indices, -1) if xp.shape(indices)[-1] else []
    is_valid = xp.full(xp.shape(indices)[:-1], True, dtypes.bool_)
    index_arrays = []
    for i, part in enumerate(parts):
        in_bounds, part = _in_bounds(xp, part, xp.shape(x)[i])
        is_valid = xp.logical_and(is_valid, in_bounds)
        index_arrays.append(part)
    return is_valid, index_arrays


@rule("GatherNd")
def gather_nd(xp: Backend, x: Array, indices: Array) -> Array:
    is_valid, index_arrays = _nd(xp, x, indices)
    if not index_arrays:
        return xp.broadcast_to(x, (*xp.shape(indices)[:-1], *xp.shape(x)))
    out = xp.gather(x, index_arrays)
    return xp.where(expand_to_rank(xp, is_valid, out), out, xp.zeros_like(out))


@rule("ResourceGatherNd")
def resource_gather_nd(xp: Backend, cell: VariableCell, indices: Array) -> Array:
    return gather_nd(xp, cell.value, indices)


# ---- scatter ---------------------------------------------------------------------------------------------------------


@with_operators
def scattered(xp: ValueBackend, x: Value, indices: Value, updates: Value, mode: str) -> Value:
    """Return `x` with updates at indices (coordinates are along the last axis); indices out of range are left out."""
    is_valid, index_arrays = _nd(xp, x, indices)
    rest = x.shape[len(index_arrays) :]
    updates = xp.broadcast_to(updates, (*is_valid.shape, *rest))
    if not index_arrays:
        return _update_whole(xp, x, updates, mode)
    if mode == "subtract" and x.dtype.kind == "b":  # a difference of booleans is their exclusive or
        flips = scattered(xp, xp.zeros(x.shape, dtypes.int32), indices, xp.astype(updates, dtypes.int32), "add")
        return x != (xp.fmod(flips, xp.full_like(flips, 2)) == 1)
    if mode == "subtract":
        mode, updates = "add", -updates
    if mode == "divide":
        factors = xp.scatter(xp.ones_like(x), index_arrays, _masked_updates(xp, is_valid, updates, 1), mode="multiply")
        return div(xp, x, factors)
    # indices out of range write to an additional last row
    first, n = index_arrays[0], x.shape[0]
    padded = xp.pad(x, 0, [(0, 1, 0), *[(0, 0, 0)] * (x.ndim - 1)])
    first = xp.where(is_valid, first, xp.full_like(first, n))
    return xp.take_slice(xp.scatter(padded, (first, *index_arrays[1:]), updates, mode=mode), 0, 0, n)


def _masked_updates(xp: Any, is_valid: AnyArray, updates: AnyArray, fill_value: int) -> AnyArray:
    return xp.where(expand_to_rank(xp, is_valid, updates), updates, xp.full_like(updates, fill_value))


def _update_whole(xp: Any, x: AnyArray, updates: AnyArray, mode: str) -> AnyArray:
    """Combine updates without positions, each of which is of the whole array."""
    count = xp.size(updates) // max(xp.size(x), 1)
    for part in xp.unstack(xp.reshape(updates, (count, *xp.shape(x))), 0):
        x = part if mode == "set" else getattr(xp, _PAIRS[mode])(x, part)
    return x


_PAIRS = {"add": "add", "subtract": "subtract", "multiply": "multiply", "min": "minimum", "max": "maximum"}
_PAIRS["divide"] = "divide"
_MODES = {"Update": "set", "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Min": "min"}
_MODES["Max"] = "max"


def _of_arrays(mode: str) -> Callable[..., Array]:
    def scatter(xp: Backend, x: Array, indices: Array, updates: Array) -> Array:
        return scattered(xp, x, indices, updates, mode)

    return scatter


def _of_variables(mode: str, nd: bool) -> Callable[..., list[Array]]:
    def scatter(xp: Backend, cell: VariableCell, indices: Array, updates: Array) -> list[Array]:
        indices = indices if nd else xp.expand_dims(indices, -1)
        cell.value = scattered(xp, cell.value, indices, updates, mode)
        return []

    return scatter


for _name, _mode in _MODES.items():
    rule(f"ResourceScatter{_name}", writes=True)(_of_variables(_mode, nd=False))
    if _name not in ("Mul", "Div"):
        rule(f"TensorScatter{_name}")(_of_arrays(_mode))
        rule(f"ResourceScatterNd{_name}", writes=True)(_of_variables(_mode, nd=True))


@rule("ScatterNd", known=("shape",))
def scatter_nd(xp: Backend, indices: Array, updates: Array, shape: np.ndarray) -> Array:
    return scattered(xp, xp.zeros(ints(shape), xp.dtype_of(updates)), indices, updates, "add")


@rule("ScatterNdNonAliasingAdd")
def scatter_nd_non_aliasing_add(xp: Backend, x: Array, indices: Array, updates: Array) -> Array:
    return scattered(xp, x, indices, updates, "add")


# ---- segments --------------------------------------------------------------------------------------------------------


def _segments(mode: str) -> Callable[..., Array]:
    def unsorted(xp: Backend, x: Array, segments: Array, count: np.ndarray) -> Array:
        """Combine rows by segment. Segments without elements have the identity, which for extremes is finite; negative
        segments are left out."""
        dtype, rest = xp.dtype_of(x), xp.shape(x)[xp.ndim(segments) :]
        first: Any = {"add": 0, "multiply": 1}.get(mode)
        if first is None:
            info = dtypes.finfo(dtype) if dtypes.is_floating(dtype) else dtypes.iinfo(dtype)
            first = info.min if mode == "max" else info.max
            first = float(first) if dtypes.is_floating(dtype) else int(first)
        start = xp.full((int(count), *rest), first, dtype)
        return scattered(xp, start, xp.expand_dims(segments, -1), x, mode)

    return unsorted


for _name, _mode in (("Sum", "add"), ("Prod", "multiply"), ("Max", "max"), ("Min", "min")):
    rule(f"UnsortedSegment{_name}", known=("count",))(_segments(_mode))


@rule("OneHot", known=("depth",))
def one_hot(xp: Backend, indices: Array, depth: np.ndarray, on: Array, off_value: Array, *, axis: int = -1) -> Array:
    n = xp.ndim(indices)
    at = n if axis == -1 else axis
    shape = tuple(int(depth) if a == at else 1 for a in range(n + 1))
    classes = xp.reshape(xp.iota(int(depth), dtypes.int64), shape)
    hot = xp.equal(xp.expand_dims(xp.astype(indices, dtypes.int64), at), classes)
    return xp.where(hot, on, off_value)


@rule("Where", folds=False)
def where(xp: Backend, x: Array) -> Any:
    """Return the positions of true elements; in a trace as counted rows, because their number depends on values."""
    dtype = xp.dtype_of(x)
    mask = x if dtypes.is_bool(dtype) else xp.not_equal(x, xp.zeros_like(x))
    if xp.is_traced(x) and xp.size(x):
        return _counted_places(xp, mask)
    true_positions = xp.nonzero(mask)
    if not true_positions:
        return xp.zeros((int(bool(xp.to_numpy(x))), 0), dtypes.int64)
    return xp.stack(true_positions, axis=1)


def _counted_places(xp: Backend, mask: Array) -> CountedRows:
    flat = compacted(xp, xp.reshape(mask, (xp.size(mask),)))
    columns, rest = [], flat.array
    for n in reversed(xp.shape(mask)):
        extent = xp.full_like(rest, n)
        before = xp.integer_floor_divide(rest, extent)
        columns.append(xp.subtract(rest, xp.multiply(before, extent)))
        rest = before
    rows = xp.stack(columns[::-1], axis=1) if columns else xp.zeros((1, 0), dtypes.int64)
    return CountedRows(rows, flat.count)


@rule("TopKV2", known=("k",))
def top_k_v2(
    xp: Backend, x: Array, k: np.ndarray, *, sorted: bool = True, index_type: np.dtype = dtypes.int32
) -> list[Array]:
    values, indices = xp.top_k(x, int(k))
    return [values, xp.astype(indices, index_type)]
