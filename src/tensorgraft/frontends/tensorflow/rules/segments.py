"""Sums and extremes of segments, counts, and what says by its values how large its result is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.indexing import scattered
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


def _sorted(mode: str, start: float) -> Callable[..., Array]:
    def segment(xp: Backend, x: Array, segments: np.ndarray) -> Array:
        """As many as the last segment says; one without elements is `start`."""
        count = int(segments[-1]) + 1 if segments.size else 0
        places = xp.expand_dims(xp.asarray(segments.astype(np.int64)), 1)
        dtype = xp.dtype_of(x)
        whole = xp.full((count, *xp.shape(x)[1:]), start, dtype)
        if mode in ("min", "max"):
            identity = dtypes.lowest(dtype) if mode == "max" else dtypes.highest(dtype)
            best = scattered(xp, xp.full_like(whole, identity), places, x, mode)
            there = np.isin(np.arange(count), segments).reshape(count, *[1] * (xp.ndim(x) - 1))
            return xp.where(xp.asarray(there), best, whole)
        return scattered(xp, whole, places, x, mode)

    return segment


for _name, _mode, _start in (("Sum", "add", 0), ("Prod", "multiply", 1), ("Max", "max", 0), ("Min", "min", 0)):
    rule(f"Segment{_name}", known=("segments",))(_sorted(_mode, _start))


@rule("SegmentMean", known=("segments",))
def segment_mean(xp: Backend, x: Array, segments: np.ndarray) -> Array:
    total = _sorted("add", 0)(xp, x, segments)
    counts = np.maximum(np.bincount(segments, minlength=xp.shape(total)[0]), 1)
    return xp.divide(total, xp.asarray(counts.reshape(-1, *[1] * (xp.ndim(x) - 1)).astype(xp.dtype_of(x))))


@rule("SparseSegmentSum", known=("segments",))
def sparse_segment_sum(xp: Backend, x: Array, indices: Array, segments: np.ndarray) -> Array:
    return _sorted("add", 0)(xp, xp.take(x, xp.astype(indices, dtypes.int64), 0), segments)


@rule("SparseSegmentMean", known=("segments",))
def sparse_segment_mean(xp: Backend, x: Array, indices: Array, segments: np.ndarray) -> Array:
    return segment_mean(xp, xp.take(x, xp.astype(indices, dtypes.int64), 0), segments)


# ---- counts and places -----------------------------------------------------------------------------------------------


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


@rule("DenseBincount", known=("size",))
def dense_bincount(xp: Backend, x: Array, size: np.ndarray, weights: Array, *, binary_output: bool = False) -> Array:
    """Of a vector, or of each row; numbers beyond the size are left out."""
    n, dtype = int(size), xp.dtype_of(weights)
    rows = x if xp.ndim(x) == 2 else xp.expand_dims(x, 0)
    b, m = xp.shape(rows)
    row = xp.broadcast_to(xp.expand_dims(xp.iota(b, dtypes.int64), 1), (b, m))
    places = xp.stack([row, xp.astype(rows, dtypes.int64)], axis=2)
    plain = binary_output or not xp.size(weights)
    each = xp.ones((b, m), dtype) if plain else xp.reshape(weights, (b, m))
    out = scattered(xp, xp.zeros((b, n), dtype), places, each, "set" if binary_output else "add")
    return out if xp.ndim(x) == 2 else xp.reshape(out, (n,))


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
