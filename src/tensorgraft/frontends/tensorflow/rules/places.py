"""Places among ordered numbers, sparse matrices by places, and what tells by its values how large its result is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.indexing import scattered
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.frontends.tensorflow.values import is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


@rule("Bucketize")
def bucketize(xp: Backend, x: Array, *, boundaries: Sequence[float]) -> Array:
    dtype = dtypes.float64 if dtypes.is_integer(xp.dtype_of(x)) else xp.dtype_of(x)
    edges = xp.asarray(np.asarray(boundaries, dtype))
    flat = xp.reshape(xp.astype(x, dtype), (xp.size(x),))
    return xp.reshape(xp.astype(xp.searchsorted(edges, flat, right=True), dtypes.int32), xp.shape(x))


@rule("LowerBound")
def lower_bound(xp: Backend, ordered: Array, values: Array, *, out_type: np.dtype = dtypes.int32) -> Array:
    return xp.astype(xp.searchsorted(ordered, values), out_type)


@rule("UpperBound")
def upper_bound(xp: Backend, ordered: Array, values: Array, *, out_type: np.dtype = dtypes.int32) -> Array:
    return xp.astype(xp.searchsorted(ordered, values, right=True), out_type)


@rule("Unique", known=("x",))
def unique(xp: Backend, x: np.ndarray, *, out_idx: np.dtype = dtypes.int32) -> list[np.ndarray]:
    """In the order in which they come."""
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return [values[order], np.argsort(order)[inverse].astype(out_idx)]


@rule("ListDiff", known=("x", "y"))
def list_diff(xp: Backend, x: np.ndarray, y: np.ndarray, *, out_idx: np.dtype = dtypes.int32) -> list[np.ndarray]:
    kept = np.flatnonzero(~np.isin(x, y))
    return [x[kept], kept.astype(out_idx)]


@rule("DynamicPartition", known=("partitions",))
def dynamic_partition(xp: Backend, x: Array, partitions: np.ndarray, *, num_partitions: int) -> list[Array]:
    rest = xp.shape(x)[partitions.ndim :]
    flat = xp.reshape(x, (partitions.size, *rest))
    places = [np.flatnonzero(partitions.ravel() == i) for i in range(num_partitions)]
    return [xp.take(flat, xp.asarray(at), 0) for at in places]


@rule("SparseToDense", known=("shape",))
def sparse_to_dense(
    xp: Backend, indices: Array, shape: np.ndarray, values: Array, default: Array, *, validate_indices: bool = True
) -> Array:
    extents = ints(shape)
    places = xp.reshape(indices, (xp.size(indices) // max(len(extents), 1), len(extents)))
    return scattered(xp, xp.broadcast_to(default, extents), places, values, "set")


@rule("SparseTensorDenseMatMul", known=("shape",))
def sparse_dense_matmul(
    xp: Backend,
    indices: Array,
    values: Array,
    shape: np.ndarray,
    b: Array,
    *,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> Array:
    complex_ = dtypes.is_complex(xp.dtype_of(b))
    if adjoint_b:
        b = xp.conj(xp.matrix_transpose(b)) if complex_ else xp.matrix_transpose(b)
    row, column = xp.unstack(xp.astype(indices, dtypes.int64), 1)
    if adjoint_a:
        row, column = column, row
        values = xp.conj(values) if complex_ else values
    terms = xp.multiply(xp.take(b, column, 0), xp.expand_dims(values, 1))
    n = ints(shape)[1 if adjoint_a else 0]
    return scattered(xp, xp.zeros((n, xp.shape(b)[1]), xp.dtype_of(b)), xp.expand_dims(row, 1), terms, "add")


@rule("DynamicStitch", "ParallelDynamicStitch", either=EVERY)
def dynamic_stitch(xp: Backend, *operands: Any) -> Array:
    """Rows put where indices say, the last of several; the indices have to be known."""
    n = len(operands) // 2
    indices = [np.asarray(x if is_known(x) else xp.to_numpy(x)) for x in operands[:n]]
    parts = [lifted(xp, x) for x in operands[n:]]
    rest = xp.shape(parts[0])[indices[0].ndim :]
    flat = [xp.reshape(x, (i.size, *rest)) for x, i in zip(parts, indices, strict=True)]
    every = np.concatenate([i.ravel() for i in indices])
    count = int(every.max(initial=-1)) + 1
    source = np.zeros(count, np.int64)
    source[every] = np.arange(every.size)
    rows = xp.take(xp.concat(flat, axis=0), xp.asarray(source), 0)
    there = np.isin(np.arange(count), every).reshape(count, *[1] * len(rest))
    return rows if there.all() else xp.where(xp.asarray(there), rows, xp.zeros_like(rows))
