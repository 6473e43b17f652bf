"""Rows of a table: `embedding`, and `embedding_bag`, which sums, averages or maximises them by bag."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.frontends.torch.core.modes import suspended, without_autocast
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.frontends.torch.kernels.bounds import within
from tensorgraft.frontends.torch.kernels.common import wide
from tensorgraft.frontends.torch.kernels.reduction import vector_norm
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

SUM, MEAN, MAX = 0, 1, 2


@kernel("embedding", host=("indices",))
def _embedding(
    xp: Any,
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    n = xp.shape(weight)[0]
    return xp.take(weight, within(xp, indices, n, lambda value: IndexError("index out of range in self")), 0)


def _counts(xp: Any, indices: AnyArray, n: int) -> AnyArray:
    """Return how often each row is looked up, int64 (n,)."""
    one_each = xp.full(xp.shape(indices), 1, dtypes.int64)
    return xp.scatter(xp.zeros((n,), dtypes.int64), (indices,), one_each, mode="add")


@kernel("embedding_dense_backward", host=("indices",))
def _embedding_backward(
    xp: Any, grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    n, width = xp.size(indices), xp.shape(grad)[-1]
    rows = xp.reshape(wide(xp, grad), (n, width))
    indices = xp.astype(xp.reshape(indices, (n,)), dtypes.int64)
    table = xp.zeros((num_weights, width), xp.dtype_of(rows))
    if not n:
        return table
    if padding_idx >= 0:
        real = xp.not_equal(indices, padding_idx)
        rows = xp.where(xp.expand_dims(real, 1), rows, xp.zeros_like(rows))
    if scale_grad_by_freq:
        occurrences = xp.gather(_counts(xp, indices, num_weights), (indices,))
        rows = xp.divide(rows, xp.expand_dims(xp.astype(occurrences, xp.dtype_of(rows)), 1))
    return xp.scatter(table, (indices,), rows, mode="add")


@kernel("embedding_renorm_", host=("indices",))
@with_operators
def _embedding_renorm(xp: Any, weight: Value, indices: Value, max_norm: float, norm_type: float) -> list[Value]:
    n = weight.shape[0]
    indices = within(xp, xp.reshape(indices, (xp.size(indices),)), n, lambda value: IndexError(
        f"select(): index {value} out of range for tensor of size {list(weight.shape)} at dimension 0"
    ))  # fmt: skip
    if not xp.size(indices):
        return [weight]
    norm = vector_norm(xp, weight, norm_type, (1,), True)
    scale = max_norm / (norm + 1e-7)
    used = xp.expand_dims(_counts(xp, indices, n) > 0, 1)
    renorm = used & (norm > max_norm)
    x = wide(xp, weight)
    scaled = x * xp.astype(scale, x.dtype)
    return [xp.where(renorm, xp.astype(scaled, weight.dtype), weight)]


# ---- bags ----------------------------------------------------------------------------------------------------------


def _check_offsets(xp: Any, offsets: Array, n: int) -> None:
    def verify(ends: np.ndarray) -> None:
        first, last = ends.tolist()
        if first != 0:
            raise RuntimeError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0."
                f" However, got {first}"
            )
        if last > n:
            raise RuntimeError(f"offsets[-1] can not be greater than input's length {n} but got offsets[-1] of {last}")

    if rows := xp.shape(offsets)[0]:
        check(xp, xp.gather(offsets, (xp.asarray(np.array([0, rows - 1])),)), verify)


def _largest(xp: Any, rows: Value, real: Value, bag_of: Value, bags: int) -> tuple[Value, Value]:
    """Return (the greatest numbers of each bag (bags, width), the first row that has them, or the number of rows for
    none)."""
    n, column = rows.shape[0], xp.expand_dims(real, 1)
    # a greater element replaces earlier ones: NaN counts only if it is the first of its bag
    at = xp.where(real, xp.iota(n, dtypes.int64), xp.full((), n, dtypes.int64))
    is_first = at == xp.take(xp.scatter(xp.full((bags,), n, dtypes.int64), (bag_of,), at, mode="min"), bag_of, 0)
    is_nan = xp.isnan(rows)
    nan_starts = is_nan & xp.expand_dims(is_first, 1) & column
    infinite = xp.full((), np.inf, rows.dtype)
    least = -infinite
    rows = xp.where(column & ~is_nan, rows, least)
    high = xp.scatter(xp.broadcast_to(least, (bags, rows.shape[1])), (bag_of,), rows, mode="max")
    zero = xp.zeros((bags, rows.shape[1]), dtypes.int64)
    spoilt = xp.scatter(zero, (bag_of,), xp.astype(nan_starts, dtypes.int64), mode="add") > 0
    high = xp.where(spoilt, xp.full((), np.nan, rows.dtype), high)
    largest = (rows == xp.take(high, bag_of, 0)) & ~is_nan
    is_extreme = nan_starts | (largest & column)
    position = xp.where(is_extreme, xp.expand_dims(xp.iota(n, dtypes.int64), 1), xp.full((), n, dtypes.int64))
    first = xp.scatter(xp.full((bags, rows.shape[1]), n, dtypes.int64), (bag_of,), position, mode="min")
    return high, first


@with_operators
def _bag(
    xp: Any,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """Return (the bags (B, width), the bag of each index, how many count in each bag, of a maximum the rows it is
    from)."""
    n, (rows, width) = xp.size(indices), weight.shape
    bags = offsets.shape[0] - include_last_offset
    dtype = weight.dtype
    indices = within(xp, indices, rows, lambda value: RuntimeError(
        f"Index 0 of input takes value {value} which is not in the valid range [0, {rows})"
    ))  # fmt: skip
    _check_offsets(xp, offsets, n)
    starts = xp.take_slice(xp.astype(offsets, dtypes.int64), 0, 0, bags)
    index_dtype = dtypes.int64
    if not n or not bags:
        empty = xp.zeros((bags,), index_dtype)
        return (
            xp.zeros((bags, width), dtype),
            xp.zeros((n,), index_dtype),
            empty,
            xp.zeros((bags, width), index_dtype) if mode == MAX else empty,
        )
    bag_of = xp.searchsorted(starts, xp.iota(n, dtypes.int64), right=True) - 1
    real = indices != padding_idx if padding_idx >= 0 else xp.full((n,), True, dtypes.bool_)
    size = xp.scatter(xp.zeros((bags,), index_dtype), (bag_of,), xp.astype(real, index_dtype), mode="add")
    rows_of_index = wide(xp, xp.take(weight, indices, 0))
    if per_sample_weights is not None:
        rows_of_index = rows_of_index * xp.expand_dims(xp.astype(per_sample_weights, rows_of_index.dtype), 1)
    column = xp.expand_dims(real, 1)
    if mode != MAX:
        rows_of_index = xp.where(column, rows_of_index, xp.zeros_like(rows_of_index))
        out = xp.scatter(xp.zeros((bags, width), rows_of_index.dtype), (bag_of,), rows_of_index, mode="add")
        if mode == MEAN:
            out = out / xp.expand_dims(xp.astype(xp.maximum(size, 1), out.dtype), 1)
        return out, bag_of, size, size
    high, first = _largest(xp, rows_of_index, real, bag_of, bags)
    present = first < n
    source = xp.take(indices, xp.where(present, first, xp.zeros_like(first)), 0)
    return (
        xp.where(present, high, xp.zeros_like(high)),
        bag_of,
        size,
        xp.where(present, source, xp.zeros_like(source)),
    )


HOST = ("indices", "offsets")
kernel("_embedding_bag", "_embedding_bag_forward_only", host=HOST, meta=False)(
    lambda xp, weight, *args, **kwargs: _in_dtype(xp, weight, _bag(xp, weight, *args, **kwargs))
)


def _in_dtype(xp: Any, weight: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
    return (xp.astype(results[0], xp.dtype_of(weight)), *results[1:])


@functools.cache
def _divides_by_another_row() -> bool:
    """Return whether the CPU's kernel divides a row's gradient by the frequency of another row, as it does up to
    PyTorch 2.13 (pytorch/pytorch#190063)."""
    with _disable_current_modes(), suspended(), without_autocast(), torch.device("cpu"):
        indices, grad = torch.tensor([1, 1, 3]), torch.ones(1, 1)
        options = grad, indices, torch.zeros_like(indices), torch.tensor([3]), torch.zeros_like(indices), 4, True, SUM
        return bool(torch.ops.aten._embedding_bag_dense_backward(*options, None)[3, 0] != 1)


@kernel("_embedding_bag_dense_backward", host=("indices",), meta=False)
def _bag_backward(
    xp: Any,
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """Compute the gradient as the CPU does: row by row, scaled by one factor, with each product and each sum
    rounded."""
    dtype, width = xp.dtype_of(grad), xp.shape(grad)[-1]
    table = xp.zeros((num_weights, width), dtype)
    n = xp.size(indices)
    if not n or not xp.size(grad):
        return table
    if mode == MAX:
        nonempty = xp.expand_dims(xp.greater(bag_size, 0), 1)
        rows = xp.astype(maximum_indices, dtypes.int64)
        columns = xp.reshape(xp.iota(width, dtypes.int64), (1, width))
        return xp.scatter(table, (rows, columns), xp.where(nonempty, grad, xp.zeros_like(grad)), mode="add")
    indices, offset2bag = (xp.astype(i, dtypes.int64) for i in (indices, offset2bag))
    scale = xp.ones((n,), dtypes.float64)
    if per_sample_weights is not None:
        scale = xp.astype(per_sample_weights, dtypes.float64)
    if scale_grad_by_freq:
        occurrences = _counts(xp, indices, num_weights)
        row_index = indices
        # the n-th row that occurs is divided by the frequency of the n-th of the sorted indices
        if _divides_by_another_row():
            # for each row, the number of rows that occur up to it
            number = xp.cumsum(xp.astype(xp.greater(occurrences, 0), dtypes.int64), 0)
            row_index = xp.take(xp.sort((indices,), 0)[0], xp.subtract(xp.take(number, indices, 0), 1), 0)
        scale = xp.divide(scale, xp.astype(xp.take(occurrences, row_index, 0), dtypes.float64))
    if mode == MEAN:
        size = xp.maximum(xp.take(bag_size, offset2bag, 0), 1)
        scale = xp.divide(scale, xp.astype(size, dtypes.float64))
    rows = xp.multiply(xp.take(grad, offset2bag, 0), xp.expand_dims(xp.astype(scale, dtype), 1))
    if padding_idx >= 0:
        rows = xp.where(xp.expand_dims(xp.not_equal(indices, padding_idx), 1), rows, xp.zeros_like(rows))
    return xp.scatter(table, (indices,), rows, mode="add")


@kernel("_embedding_bag_per_sample_weights_backward", meta=False)
def _bag_weights_backward(
    xp: Any,
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    indices, offset2bag = (xp.astype(i, dtypes.int64) for i in (indices, offset2bag))
    if not xp.size(indices):
        return xp.zeros((0,), xp.dtype_of(grad))
    products = xp.multiply(wide(xp, xp.take(grad, offset2bag, 0)), wide(xp, xp.take(weight, indices, 0)))
    out = xp.sum(products, axis=1)
    if padding_idx >= 0:
        out = xp.where(xp.not_equal(indices, padding_idx), out, xp.zeros_like(out))
    return xp.astype(out, xp.dtype_of(grad))
