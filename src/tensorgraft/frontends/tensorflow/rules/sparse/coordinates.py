"""Sparse tensors (indices, values, shape) and ragged ones (splits, values), where a program meets them on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.indexing import gather_nd, scattered
from tensorgraft.frontends.tensorflow.rules.arrays.segments import total_of
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.hosted import on_host
from tensorgraft.frontends.tensorflow.rules.mathematics.elementwise import div
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# ---- sparse and dense ------------------------------------------------------------------------------------------------


@rule("SparseToDense", known=("shape",))
def sparse_to_dense(
    xp: Backend, indices: Array, shape: np.ndarray, values: Array, default: Array, *, validate_indices: bool = True
) -> Array:
    extents = ints(shape)
    indices = xp.reshape(indices, (xp.size(indices) // max(len(extents), 1), len(extents)))
    return scattered(xp, xp.broadcast_to(default, extents), indices, values, "set")


@rule("SparseTensorDenseMatMul", known=("shape",))
def sparse_dense_matmul(
    xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array, *, adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> Array:  # fmt: skip
    n, _ = ints(shape)[::-1] if adjoint_a else ints(shape)
    rows, columns = xp.unstack(indices, 1)
    if adjoint_a:
        rows, columns = columns, rows
        values = xp.conj(values) if dtypes.is_complex(xp.dtype_of(values)) else values
    if adjoint_b:
        b = xp.matrix_transpose(b)
        b = xp.conj(b) if dtypes.is_complex(xp.dtype_of(b)) else b
    parts = xp.multiply(xp.expand_dims(values, -1), xp.take(b, columns, 0))
    return total_of(xp, parts, rows, n)


@rule("SparseTensorDenseAdd", known=("shape",))
def sparse_dense_add(xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array) -> Array:
    return scattered(xp, b, indices, values, "add")


def _with_dense(fn: Callable[[Backend, Array, Array], Array]) -> Any:
    def apply(xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array) -> Array:
        return fn(xp, values, gather_nd(xp, xp.broadcast_to(b, ints(shape)), indices))

    return apply


rule("SparseDenseCwiseAdd", known=("shape",))(_with_dense(lambda xp, x, y: xp.add(x, y)))
rule("SparseDenseCwiseMul", known=("shape",))(_with_dense(lambda xp, x, y: xp.multiply(x, y)))
rule("SparseDenseCwiseDiv", known=("shape",))(_with_dense(div))


def _reduced(
    indices: np.ndarray, values: np.ndarray, shape: np.ndarray, axes: np.ndarray, largest: bool, keep: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """(kept places, their values, shape, shape before axes come back)."""
    over = {a % shape.size for a in ints(axes)} if axes.size else set(range(shape.size))
    kept = [a for a in range(shape.size) if a not in over]
    groups = indices[:, kept]
    places, inverse = np.unique(groups, axis=0, return_inverse=True) if len(indices) else (groups, np.zeros(0, int))
    if largest:
        out = np.full(len(places), dtypes.lowest(values.dtype), values.dtype)
        np.maximum.at(out, np.ravel(inverse), values)
    else:
        out = np.zeros(len(places), values.dtype)
        np.add.at(out, np.ravel(inverse), values)
    small = tuple(int(shape[a]) for a in kept)
    whole = tuple(1 if a in over else int(shape[a]) for a in range(shape.size)) if keep else small
    if keep:
        full = np.zeros((len(places), shape.size), np.int64)
        full[:, kept] = places
        places = full
    return places, out, np.asarray(whole, np.int64), whole


def _declare(name: str, largest: bool) -> None:
    @on_host(f"SparseReduce{name}")
    def reduce(
        indices: np.ndarray, values: np.ndarray, shape: np.ndarray, axes: np.ndarray, *, keep_dims: bool = False
    ) -> np.ndarray:
        places, found, _, whole = _reduced(indices, values, shape, axes, largest, keep_dims)
        out = np.zeros(whole, values.dtype)
        out[tuple(places.T)] = found if whole else found[0] if len(found) else 0
        return out

    @on_host(f"SparseReduce{name}Sparse")
    def reduce_sparse(
        indices: np.ndarray, values: np.ndarray, shape: np.ndarray, axes: np.ndarray, *, keep_dims: bool = False
    ) -> list[np.ndarray]:
        return list(_reduced(indices, values, shape, axes, largest, keep_dims)[:3])


_declare("Sum", False)
_declare("Max", True)


@on_host("SparseReorder")
def sparse_reorder(indices: np.ndarray, values: np.ndarray, shape: np.ndarray) -> list[np.ndarray]:
    order = np.lexsort(indices.T[::-1]) if indices.shape[1] else np.arange(len(indices))
    return [indices[order], values[order]]


@on_host("SparseReshape")
def sparse_reshape(indices: np.ndarray, shape: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    total = math.prod(ints(shape))
    rest = math.prod(n for n in ints(wanted) if n != -1)
    new = tuple((total // rest if rest else 0) if n == -1 else n for n in ints(wanted))
    flat = np.ravel_multi_index(tuple(indices.T), ints(shape)) if len(indices) else np.zeros(0, np.int64)
    places = np.stack(np.unravel_index(flat, new), 1) if len(indices) else np.zeros((0, len(new)), np.int64)
    return [places.astype(np.int64), np.asarray(new, np.int64)]


@on_host("SparseConcat")
def sparse_concat(*operands: np.ndarray, concat_dim: int) -> list[np.ndarray]:
    n = len(operands) // 3
    parts, values, shapes = operands[:n], operands[n : 2 * n], operands[2 * n :]
    axis, start, moved = concat_dim % shapes[0].size, 0, []
    for part, shape in zip(parts, shapes, strict=True):
        step = np.zeros(shape.size, np.int64)
        step[axis] = start
        moved.append(part + step)
        start += int(shape[axis])
    whole = shapes[0].copy()
    whole[axis] = start
    return [*sparse_reorder(np.concatenate(moved), np.concatenate(values), whole), whole]


@on_host("SparseSplit")
def sparse_split(
    axis: np.ndarray, indices: np.ndarray, values: np.ndarray, shape: np.ndarray, *, num_split: int
) -> list[np.ndarray]:
    at, n = int(axis), int(shape[int(axis)])
    sizes = [n // num_split + (i < n % num_split) for i in range(num_split)]
    starts = np.cumsum([0, *sizes])
    parts = [_sliced(indices, values, shape, at, int(a), int(b)) for a, b in zip(starts, sizes, strict=False)]
    return [p[k] for k in range(3) for p in parts]


def _sliced(
    indices: np.ndarray, values: np.ndarray, shape: np.ndarray, axis: int, start: int, size: int
) -> tuple[np.ndarray, ...]:
    kept = (indices[:, axis] >= start) & (indices[:, axis] < start + size)
    step, new = np.zeros(shape.size, np.int64), shape.copy()
    step[axis], new[axis] = start, size
    return indices[kept] - step, values[kept], new


@on_host("SparseSlice")
def sparse_slice(
    indices: np.ndarray, values: np.ndarray, shape: np.ndarray, start: np.ndarray, size: np.ndarray
) -> list[np.ndarray]:
    stop = np.minimum(start + size, shape)
    kept = np.all((indices >= start) & (indices < stop), axis=1)
    return [indices[kept] - start, values[kept], np.maximum(stop - start, 0)]


@on_host("SparseSliceGrad")
def sparse_slice_grad(d: np.ndarray, indices: np.ndarray, start: np.ndarray, kept: np.ndarray) -> np.ndarray:
    where = {tuple(row): k for k, row in enumerate((kept + start).tolist())}
    found = [where.get(tuple(row)) for row in indices.tolist()]
    return np.asarray([0 if k is None else d[k] for k in found], d.dtype)


@on_host("SparseAdd")
def sparse_add(
    a: np.ndarray, va: np.ndarray, sa: np.ndarray, b: np.ndarray, vb: np.ndarray, sb: np.ndarray, limit: np.ndarray
) -> list[np.ndarray]:
    places, inverse = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
    values = np.zeros(len(places), va.dtype)
    np.add.at(values, np.ravel(inverse), np.concatenate([va, vb]))
    kept = np.abs(values) >= limit
    return [places[kept], values[kept], sa]


@on_host("SparseAddGrad")
def sparse_add_grad(d: np.ndarray, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> list[np.ndarray]:
    where = {tuple(row): k for k, row in enumerate(total.tolist())}
    return [np.asarray([d[where[tuple(r)]] if tuple(r) in where else 0 for r in x.tolist()], d.dtype) for x in (a, b)]


def _pairs(name: str, fn: Any) -> None:
    @on_host(f"SparseSparse{name}")
    def combine(
        a: np.ndarray, va: np.ndarray, sa: np.ndarray, b: np.ndarray, vb: np.ndarray, sb: np.ndarray
    ) -> list[np.ndarray]:
        places, inverse = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
        inverse = np.ravel(inverse)
        both = np.zeros((2, len(places)), va.dtype)
        both[0, inverse[: len(a)]], both[1, inverse[len(a) :]] = va, vb
        return [places, fn(*both)]


_pairs("Maximum", np.maximum)
_pairs("Minimum", np.minimum)


@on_host("SparseSoftmax")
def sparse_softmax(indices: np.ndarray, values: np.ndarray, shape: np.ndarray) -> np.ndarray:
    _, rows = np.unique(indices[:, :-1], axis=0, return_inverse=True)
    rows = np.ravel(rows)
    most = np.full(rows.max(initial=-1) + 1, -np.inf, values.dtype)
    np.maximum.at(most, rows, values)
    parts = np.exp(values - most[rows])
    total = np.zeros_like(most)
    np.add.at(total, rows, parts)
    return (parts / total[rows]).astype(values.dtype)


@on_host("SparseFillEmptyRows")
def sparse_fill_empty_rows(
    indices: np.ndarray, values: np.ndarray, shape: np.ndarray, default: np.ndarray
) -> list[np.ndarray]:
    rows = np.arange(int(shape[0]))
    empty = ~np.isin(rows, indices[:, 0])
    more = np.zeros((int(empty.sum()), shape.size), np.int64)
    more[:, 0] = rows[empty]
    places = np.concatenate([indices, more])
    order = np.argsort(places[:, 0], kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    filled = np.concatenate([values, np.full(len(more), default, values.dtype)])
    return [places[order], filled[order], empty, back[: len(indices)].astype(np.int64)]


@on_host("SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad")
def sparse_fill_empty_rows_grad(back: np.ndarray, d: np.ndarray) -> list[np.ndarray]:
    rest = np.ones(len(d), bool)
    rest[back] = False
    return [d[back], d[rest].sum(dtype=d.dtype)]


# ---- ragged ----------------------------------------------------------------------------------------------------------


@on_host("RaggedRange")
def ragged_range(
    starts: np.ndarray, limits: np.ndarray, deltas: np.ndarray, *, Tsplits: np.dtype = dtypes.int64
) -> list[np.ndarray]:
    rows = [np.arange(a, b, s, dtype=starts.dtype) for a, b, s in np.broadcast(starts, limits, deltas)]
    splits = np.cumsum([0, *map(len, rows)]).astype(Tsplits)
    return [splits, np.concatenate([*rows, np.zeros(0, starts.dtype)])]


@on_host("RaggedGather")
def ragged_gather(*operands: np.ndarray, OUTPUT_RAGGED_RANK: int, PARAMS_RAGGED_RANK: int) -> list[np.ndarray]:
    splits, values, indices = operands[:PARAMS_RAGGED_RANK], operands[-2], operands[-1]
    out = []
    for k in range(1, indices.ndim):  # these axes have rows of one length
        outer, inner = math.prod(indices.shape[:k]), indices.shape[k]
        out.append(np.arange(outer + 1, dtype=splits[0].dtype) * inner)
    ranges = [(int(i), int(i) + 1) for i in indices.ravel()]
    for split in splits:
        lengths = [int(split[i + 1] - split[i]) for a, b in ranges for i in range(a, b)]
        out.append(np.cumsum([0, *lengths]).astype(split.dtype))
        ranges = [(int(split[a]), int(split[b])) for a, b in ranges]
    return [*out, np.concatenate([*(values[a:b] for a, b in ranges), values[:0]])]


def _rows(kind: str, x: np.ndarray) -> np.ndarray:
    """Row lengths of a partition."""
    if kind == "ROW_SPLITS":
        return np.diff(x)
    if kind == "ROW_LENGTHS":
        return x
    return np.bincount(x)


@on_host("RaggedTensorToTensor")
def ragged_to_tensor(
    shape: np.ndarray, values: np.ndarray, default: np.ndarray, *partitions: np.ndarray,
    row_partition_types: tuple[str, ...],
) -> np.ndarray:  # fmt: skip
    kinds = list(row_partition_types)
    if kinds[0] == "FIRST_DIM_SIZE":
        count, kinds, partitions = int(partitions[0]), kinds[1:], partitions[1:]
    else:
        count = len(_rows(kinds[0], partitions[0]))
    ragged = len(kinds)
    extents = [-1] * (1 + ragged) if shape.ndim == 0 else list(ints(shape))[: 1 + ragged]
    places: list[tuple[int, ...] | None] = [(i,) for i in range(count)]
    sizes = [count]
    for kind, partition in zip(kinds, partitions, strict=True):
        by_ids = kind == "VALUE_ROWIDS"
        lengths = np.bincount(partition, minlength=len(places)) if by_ids else _rows(kind, partition)
        sizes.append(int(lengths.max(initial=0)))
        places = [
            None if place is None else (*place, j)
            for place, n in zip(places, lengths.tolist(), strict=True)
            for j in range(n)
        ]
    whole = [s if e < 0 else e for s, e in zip(sizes, extents, strict=True)]
    out = np.empty((*whole, *values.shape[1:]), values.dtype)
    out[...] = default
    for k, place in enumerate(places):
        if place is not None and k < len(values) and all(i < n for i, n in zip(place, whole, strict=True)):
            out[place] = values[k]
    return out


@on_host("RaggedTensorToSparse")
def ragged_to_sparse(*operands: np.ndarray) -> list[np.ndarray]:
    *splits, values = operands
    places: list[tuple[int, ...]] = [(i,) for i in range(len(splits[0]) - 1)]
    sizes = [len(places)]
    for split in splits:
        lengths = np.diff(split)
        sizes.append(int(lengths.max(initial=0)))
        places = [(*p, j) for p, n in zip(places, lengths.tolist(), strict=True) for j in range(n)]
    inner = values.shape[1:]
    flat = [(*p, *map(int, at)) for p in places for at in np.ndindex(*inner)]
    indices = np.asarray(flat, np.int64).reshape(len(flat), len(sizes) + len(inner))
    return [indices, values.reshape(-1), np.asarray([*sizes, *inner], np.int64)]


@on_host("RaggedFillEmptyRows")
def ragged_fill_empty_rows(
    rowids: np.ndarray, values: np.ndarray, count: np.ndarray, default: np.ndarray
) -> list[np.ndarray]:
    places, filled, empty, back = sparse_fill_empty_rows(rowids[:, None], values, np.asarray([int(count)]), default)
    return [places[:, 0], filled, empty, back]
