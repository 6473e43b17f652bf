"""Sums, means, extremes and counts over segments, groups of rows with the same segment id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.indexing import expand_to_rank, gather, scattered
from tensorgraft.frontends.tensorflow.rules.mathematics.elementwise import div
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def segment_total(xp: Backend, x: Array, segments: Array, count: int, mode: str = "add", first: Any = 0) -> Array:
    """Combine the rows of each segment; `first` is the value of segments without rows."""
    start = xp.full((count, *xp.shape(x)[1:]), first, xp.dtype_of(x))
    return scattered(xp, start, xp.expand_dims(segments, -1), x, mode)


def counts_of(xp: Backend, segments: Array, count: int, dtype: np.dtype) -> Array:
    return segment_total(xp, xp.ones(xp.shape(segments), dtype), segments, count)


def number_of(xp: Backend, segments: Array) -> int:
    """Return the number of segments, whose ids are ascending. Raises TracedValueError in a trace."""
    if xp.is_traced(segments):
        raise TracedValueError(
            "the number of segments depends on values that are being traced: use tf.math.unsorted_segment_* with"
            " num_segments="
        )
    ids = xp.to_numpy(segments)
    return int(ids[-1]) + 1 if ids.size else 0


def _divided(xp: Backend, total: Array, counts: Array) -> Array:
    """Divide totals by counts; by 1 where there are no rows."""
    counts = xp.maximum(counts, xp.ones_like(counts))
    counts = xp.astype(counts, xp.dtype_of(total))
    if dtypes.is_integer(xp.dtype_of(total)):
        return div(xp, total, expand_to_rank(xp, counts, total))  # toward zero
    return xp.divide(total, expand_to_rank(xp, counts, total))


@rule("SegmentSum", folds=False)
def segment_sum(xp: Backend, x: Array, segments: Array) -> Array:
    return segment_total(xp, x, segments, number_of(xp, segments))


@rule("SegmentProd", folds=False)
def segment_prod(xp: Backend, x: Array, segments: Array) -> Array:
    return segment_total(xp, x, segments, number_of(xp, segments), "multiply", 1)


@rule("SegmentMean", folds=False)
def segment_mean(xp: Backend, x: Array, segments: Array) -> Array:
    n = number_of(xp, segments)
    real = xp.dtype_of(xp.real(x)) if dtypes.is_complex(xp.dtype_of(x)) else xp.dtype_of(x)
    return _divided(xp, segment_total(xp, x, segments, n), counts_of(xp, segments, n, real))


def _extremes(mode: str) -> Callable[..., Array]:
    def segment(xp: Backend, x: Array, segments: Array) -> Array:
        """0 where a segment has no rows."""
        n, dtype = number_of(xp, segments), xp.dtype_of(x)
        first: Any = dtypes.lowest(dtype)
        if mode == "min":
            first = float("inf") if dtypes.is_floating(dtype) else int(dtypes.iinfo(dtype).max)
        extremes = segment_total(xp, x, segments, n, mode, first)
        is_nonempty = xp.greater(counts_of(xp, segments, n, dtypes.int32), 0)
        return xp.where(expand_to_rank(xp, is_nonempty, extremes), extremes, xp.zeros_like(extremes))

    return segment


rule("SegmentMax", folds=False)(_extremes("max"))
rule("SegmentMin", folds=False)(_extremes("min"))


# ---- rows that are looked up -----------------------------------------------------------------------------------------


def _weights(xp: Backend, counts: Array, kind: str) -> Array:
    """Return the divisor for sums of so many rows: the count, or its root for `SqrtN`, and at least 1."""
    counts = xp.maximum(counts, xp.ones_like(counts))
    return xp.sqrt(counts) if kind == "SqrtN" else counts


def looked_up(xp: Backend, x: Array, indices: Array, segments: Array, n: int, kind: str) -> Array:
    """Rows of `x`, combined (`Sum`, `Mean`, `SqrtN`) by segments; in at least float32."""
    dtype = xp.dtype_of(x)
    rows = gather(xp, x, indices)
    if kind == "Sum":
        return segment_total(xp, rows, segments, n)
    wide = dtypes.accumulator(dtype)
    total = segment_total(xp, xp.astype(rows, wide), segments, n)
    weights = _weights(xp, counts_of(xp, segments, n, wide), kind)
    return xp.astype(xp.divide(total, expand_to_rank(xp, weights, total)), dtype)


def _lookup_rules(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def combined(xp: Backend, x: Array, indices: Array, segments: Array) -> Array:
        return looked_up(xp, x, indices, segments, number_of(xp, segments), kind)

    def counted(xp: Backend, x: Array, indices: Array, segments: Array, count: np.ndarray) -> Array:
        return looked_up(xp, x, indices, segments, int(count), kind)

    return combined, counted


def _share(xp: Backend, d: Array, segments: Array, kind: str) -> Array:
    """Return the fraction of its segment's gradient that belongs to each looked-up row."""
    if kind != "Sum":
        dtype = xp.dtype_of(d)
        weights = _weights(xp, counts_of(xp, segments, xp.shape(d)[0], dtype), kind)
        d = xp.divide(d, expand_to_rank(xp, weights, d))
    return gather(xp, d, segments)


def _gradients(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def dense(xp: Backend, d: Array, indices: Array, segments: Array, rows: np.ndarray) -> Array:
        return segment_total(xp, _share(xp, d, segments, kind), indices, int(rows))

    def unique(xp: Backend, d: Array, indices: Array, segments: Array, rows: np.ndarray) -> list[Array]:
        """Return (gradients, their row numbers in the table), ascending and unique."""
        if xp.is_traced(indices):
            raise TracedValueError("the number of rows that are looked up depends on values that are being traced")
        distinct, inverse = np.unique(xp.to_numpy(indices), return_inverse=True)
        out = segment_total(xp, _share(xp, d, segments, kind), xp.asarray(inverse.astype(np.int64)), distinct.size)
        return [out, xp.asarray(distinct)]

    return dense, unique


for _kind in ("Sum", "Mean", "SqrtN"):
    _plain, _counted = _lookup_rules(_kind)
    rule(f"SparseSegment{_kind}", folds=False)(_plain)
    rule(f"SparseSegment{_kind}WithNumSegments", known=("count",))(_counted)
    _dense, _unique = _gradients(_kind)
    rule(f"SparseSegment{_kind}Grad", known=("rows",))(_dense)
    rule(f"SparseSegment{_kind}GradV2", known=("rows",), folds=False)(_unique)


# ---- counting --------------------------------------------------------------------------------------------------------


def _binned(xp: Backend, bins: Array, values: Array, weights: Array, shape: tuple[int, ...], binary: bool) -> Array:
    """Sum into bins at `bins` (..., 1 or 2); values beyond the last bin are ignored."""
    dtype = xp.dtype_of(weights)
    if binary:
        return scattered(xp, xp.zeros(shape, dtype), bins, xp.ones(xp.shape(values), dtype), "set")
    bin_weights = xp.reshape(weights, xp.shape(values)) if xp.size(weights) else xp.ones(xp.shape(values), dtype)
    return scattered(xp, xp.zeros(shape, dtype), bins, bin_weights, "add")


@rule("Bincount", known=("size",))
def bincount(xp: Backend, values: Array, size: np.ndarray, weights: Array) -> Array:
    return dense_bincount(xp, xp.reshape(values, (xp.size(values),)), size, xp.reshape(weights, (xp.size(weights),)))


@rule("DenseBincount", known=("size",))
def dense_bincount(
    xp: Backend, values: Array, size: np.ndarray, weights: Array, *, binary_output: bool = False
) -> Array:
    n = int(size)
    if xp.ndim(values) == 1:
        return _binned(xp, xp.expand_dims(values, -1), values, weights, (n,), binary_output)
    rows, width = xp.shape(values)
    row = xp.broadcast_to(xp.reshape(xp.iota(rows, xp.dtype_of(values)), (rows, 1)), (rows, width))
    return _binned(xp, xp.stack([row, values], axis=-1), values, weights, (rows, n), binary_output)


@rule("RaggedBincount", known=("size",))
def ragged_bincount(
    xp: Backend, splits: Array, values: Array, size: np.ndarray, weights: Array, *, binary_output: bool = False
) -> Array:
    rows = xp.shape(splits)[0] - 1
    at = xp.subtract(xp.searchsorted(splits, xp.iota(xp.shape(values)[0], xp.dtype_of(splits)), right=True), 1)
    positions = xp.stack([at, xp.astype(values, dtypes.int64)], axis=-1)
    return _binned(xp, positions, values, weights, (rows, int(size)), binary_output)


@rule("SparseBincount", known=("shape", "size"))
def sparse_bincount(
    xp: Backend,
    indices: Array,
    values: Array,
    shape: np.ndarray,
    size: np.ndarray,
    weights: Array,
    *,
    binary_output: bool = False,
) -> Array:
    if shape.size == 1:
        return _binned(xp, xp.expand_dims(values, -1), values, weights, (int(size),), binary_output)
    row = xp.take_slice(indices, 1, 0, 1)
    positions = xp.concat([row, xp.expand_dims(xp.astype(values, xp.dtype_of(indices)), -1)], axis=1)
    return _binned(xp, positions, values, weights, (int(shape[0]), int(size)), binary_output)
