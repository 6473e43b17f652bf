"""Sets of values, searching, stitching, and operations on rows. If the shape of a result depends on values, it is
computed on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.counted_rows import compacted
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import batch_to_space_nd, ints, space_to_batch_nd
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import by_kernel
from tensorgraft.frontends.tensorflow.values import CountedRows, is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

# ---- results whose lengths depend on values --------------------------------------------------------------------------


@rule("Unique", "UniqueWithCounts", either=EVERY)
def unique(xp: Backend, x: Any, *, out_idx: np.dtype = dtypes.int32, node: Any) -> Any:
    counted = None if is_known(x) or not xp.is_traced(x) else _counted_unique(xp, x, out_idx, node)
    return by_kernel(xp, x, node=node) if counted is None else counted


def _counted_unique(xp: Backend, x: Array, out_idx: np.dtype, node: Any) -> list[Any] | None:
    """Return the results for traced integers, with values and counts as counted rows; None for other arrays."""
    n = xp.size(x)
    if not n or not dtypes.is_integer(xp.dtype_of(x)):
        return None
    order = xp.argsort(x, axis=0)
    ordered = xp.take(x, order, 0)
    differ = xp.not_equal(xp.take_slice(ordered, 0, 1, n), xp.take_slice(ordered, 0, 0, n - 1))
    is_group_start = xp.concat([xp.full((1,), True, dtypes.bool_), differ], axis=0)
    groups = xp.subtract(xp.cumsum(xp.astype(is_group_start, dtypes.int64), 0), xp.full((n,), 1, dtypes.int64))
    # the first occurrence of each element: the sort is stable, so it comes first in its group
    firsts = xp.take(order, xp.take(compacted(xp, is_group_start).array, groups, 0), 0)
    firsts = xp.scatter(xp.zeros((n,), dtypes.int64), (order,), firsts, mode="set")
    is_first = xp.equal(firsts, xp.iota(n, dtypes.int64))
    ranks = xp.subtract(xp.cumsum(xp.astype(is_first, dtypes.int64), 0), xp.full((n,), 1, dtypes.int64))
    inverse = xp.take(ranks, firsts, 0)
    distinct = compacted(xp, is_first)
    counts = xp.scatter(xp.zeros((n,), dtypes.int64), (inverse,), xp.full((n,), 1, dtypes.int64), mode="add")
    rows = [CountedRows(y, distinct.count) for y in (xp.take(x, distinct.array, 0), xp.astype(counts, out_idx))]
    return [rows[0], xp.astype(inverse, out_idx), rows[1]][: len(node.dtypes)]


@rule("DynamicStitch", "ParallelDynamicStitch", either=EVERY)
def dynamic_stitch(xp: Backend, *operands: Any) -> Array:
    """Return an array whose row i is the row of the data that has index i, the last one if several have it. Indices are
    read on the host. Rows without an index are zeros."""
    half = len(operands) // 2
    positions = [i if is_known(i) else xp.to_numpy(i) for i in operands[:half]]
    rows = [lifted(xp, x) for x in operands[half:]]
    count = max((int(p.max()) + 1 for p in positions if p.size), default=0)
    rest = xp.shape(rows[0])[positions[0].ndim :]
    flat = [xp.reshape(x, (math.prod(p.shape), *rest)) for x, p in zip(rows, positions, strict=True)]
    all_rows = xp.concat([*flat, xp.zeros((1, *rest), xp.dtype_of(rows[0]))], axis=0)
    total = sum(p.size for p in positions)
    source = np.full(count, total, np.int64)
    source[np.concatenate([p.ravel() for p in positions])] = np.arange(total)
    return xp.take(all_rows, xp.asarray(source), 0)


# ---- searching -------------------------------------------------------------------------------------------------------


def _searched(right: bool) -> Any:
    def search(xp: Backend, sorted_rows: Array, values: Array, *, out_type: np.dtype = dtypes.int32) -> Array:
        return xp.astype(xp.searchsorted(sorted_rows, values, right=right), out_type)

    return search


rule("LowerBound")(_searched(False))
rule("UpperBound")(_searched(True))


@rule("Bucketize")
def bucketize(xp: Backend, x: Array, *, boundaries: tuple[float, ...] = ()) -> Array:
    dtype = dtypes.float64 if xp.dtype_of(x) == dtypes.float64 else dtypes.float32
    edges = xp.asarray(np.asarray(boundaries, np.float32).astype(dtype))
    return xp.astype(xp.searchsorted(edges, xp.astype(x, dtype), right=True), dtypes.int32)


@rule("HistogramFixedWidth", known=("bins",))
@with_operators
def histogram_fixed_width(
    xp: ValueBackend, values: Value, span: Value, bins: np.ndarray, *, dtype: np.dtype = dtypes.int32
) -> Value:
    n = int(bins)
    low, high = xp.unstack(xp.astype(span, dtypes.float64), 0)
    flat = xp.astype(xp.reshape(values, (xp.size(values),)), dtypes.float64)
    step = (high - low) / float(n)
    bin_index = xp.clip(xp.floor((flat - low) / step), 0.0, float(n - 1))
    counts = xp.zeros((n,), dtype)
    return xp.scatter(counts, (xp.astype(bin_index, dtypes.int64),), xp.ones(flat.shape, dtype), mode="add")


@rule("InTopKV2", "InTopK", known=("k",))
@with_operators
def in_top_k(xp: ValueBackend, predictions: Value, targets: Value, k: Any = None, *, node: Any = None) -> Value:
    """Return for each row whether fewer than `k` predictions are greater than that of the target; False if one is not
    finite."""
    limit = int(node.attributes["k"] if k is None else k)
    n = predictions.shape[1]
    in_range = (targets >= 0) & (targets < n)
    index = xp.expand_dims(xp.where(in_range, targets, xp.zeros_like(targets)), -1)
    target_score = xp.take_along_axis(predictions, xp.astype(index, dtypes.int64), 1)
    better = xp.sum(xp.astype(predictions > target_score, dtypes.int32), axis=1)
    finite = xp.all(xp.isfinite(predictions), axis=1)
    return in_range & finite & (better < limit)


@rule("NthElement", known=("n",))
def nth_element(xp: Backend, x: Array, n: np.ndarray, *, reverse: bool = False) -> Array:
    count = xp.shape(x)[-1]
    (ordered,) = xp.sort((x,), axis=-1)
    i = count - 1 - int(n) if reverse else int(n)
    return xp.squeeze(xp.take_slice(ordered, xp.ndim(x) - 1, i, i + 1), xp.ndim(x) - 1)


@rule("ApproxTopK")
def approx_top_k(xp: Backend, x: Array, *, k: int, reduction_dimension: int = -1, is_max_k: bool = True) -> list[Array]:
    """Return the exact result, as TensorFlow does on a CPU."""
    values, indices = xp.top_k(x, k, reduction_dimension, is_max_k)
    return [values, xp.astype(indices, dtypes.int32)]


@rule("UnravelIndex", known=("dims",))
def unravel_index(xp: Backend, indices: Array, dims: np.ndarray) -> Array:
    rows, rest = [], indices
    for n in ints(dims)[::-1]:
        size = xp.full_like(rest, n)
        rows.append(xp.remainder(rest, size))
        rest = xp.integer_floor_divide(rest, size)
    return xp.stack(rows[::-1], axis=0)


@rule("ReverseSequence")
@with_operators
def reverse_sequence(xp: ValueBackend, x: Value, lengths: Value, *, seq_dim: int, batch_dim: int = 0) -> Value:
    n, rank = x.shape[seq_dim], x.ndim

    def broadcast_axis(v: Value, axis: int) -> Value:
        return xp.reshape(v, tuple(v.shape[0] if a == axis else 1 for a in range(rank)))

    index = broadcast_axis(xp.iota(n, dtypes.int64), seq_dim)
    ends = broadcast_axis(xp.astype(lengths, dtypes.int64), batch_dim)
    source_index = xp.where(index < ends, ends - index - 1, index)
    return xp.take_along_axis(x, xp.broadcast_to(source_index, x.shape), seq_dim)


# ---- operations of earlier versions of TensorFlow --------------------------------------------------------------------


@rule("SpaceToBatch", known=("paddings",))
def space_to_batch(xp: Backend, x: Array, paddings: np.ndarray, *, block_size: int) -> Array:
    return space_to_batch_nd(xp, x, np.asarray([block_size] * 2), paddings)


@rule("BatchToSpace", known=("crops",))
def batch_to_space(xp: Backend, x: Array, crops: np.ndarray, *, block_size: int) -> Array:
    return batch_to_space_nd(xp, x, np.asarray([block_size] * 2), crops)


@rule("DataFormatDimMap")
def data_format_dim_map(xp: Backend, x: Array, *, src_format: str = "NHWC", dst_format: str = "NCHW") -> Array:
    n = len(src_format)
    table = xp.asarray(np.asarray([dst_format.index(c) for c in src_format], xp.dtype_of(x)))
    wrapped = xp.fmod(xp.add(x, xp.full_like(x, n)), xp.full_like(x, n))
    # TensorFlow's kernel compares a C++ remainder with 0, 1, ...: for a negative one (x < -n) it takes the last entry
    return xp.gather(table, (xp.where(xp.less(wrapped, xp.zeros_like(x)), xp.full_like(x, n - 1), wrapped),))


@rule("DataFormatVecPermute")
def data_format_vec_permute(xp: Backend, x: Array, *, src_format: str = "NHWC", dst_format: str = "NCHW") -> Array:
    if xp.shape(x)[0] == 2:
        src_format, dst_format = (
            s.replace("N", "").replace("C", "").replace("D", "") for s in (src_format, dst_format)
        )
    return xp.take(x, xp.asarray(np.asarray([src_format.index(c) for c in dst_format], np.int64)), 0)


@rule("InplaceUpdate")
def inplace_update(xp: Backend, x: Array, rows: Array, v: Array) -> Array:
    return xp.scatter(x, (xp.astype(rows, dtypes.int64),), v)


@rule("InplaceAdd")
def inplace_add(xp: Backend, x: Array, rows: Array, v: Array) -> Array:
    return xp.scatter(x, (xp.astype(rows, dtypes.int64),), v, mode="add")


@rule("InplaceSub")
def inplace_sub(xp: Backend, x: Array, rows: Array, v: Array) -> Array:
    return xp.scatter(x, (xp.astype(rows, dtypes.int64),), xp.negative(v), mode="add")


@rule("ParallelConcat")
def parallel_concat(xp: Backend, *rows: Array) -> Array:
    return xp.concat(rows, axis=0)


@rule("GuaranteeConst")
def guarantee_const(xp: Backend, x: Array) -> Array:
    return x


@rule("ToBool")
def to_bool(xp: Backend, x: Array) -> Array:
    if not xp.ndim(x):
        return xp.not_equal(x, xp.zeros_like(x))
    return xp.full((), xp.size(x) > 0, dtypes.bool_)
