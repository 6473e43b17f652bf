"""Advanced indexing: `x[i, :, j]`, masks, and their writes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.frontends.torch.kernels.bounds import out_of_bounds, within
from tensorgraft.frontends.torch.kernels.common import check_fits, number
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Indices = Sequence[Array | None]


def _masks(indices: Any) -> list[Any]:
    """Return the masks among the tensors of an index."""
    import torch

    return [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]


def _mixes_masks(x: Any, indices: Any, *_: Any) -> bool:
    """Return True if there is a mask among several indices, which has to be converted to positions; a single mask
    becomes a `where`."""
    return bool(_masks(indices)) and sum(i is not None for i in indices) > 1


def _is_mask(xp: Any, index: Array) -> bool:
    return xp.dtype_of(index) in (dtypes.bool_, dtypes.uint8)


def _check_mask(xp: Any, x: Array, mask: Array, at: int, axis: int) -> None:
    shape, x_shape = xp.shape(mask), xp.shape(x)
    if shape != x_shape[axis : axis + len(shape)]:
        raise IndexError(
            f"The shape of the mask {list(shape)} at index {at} does not match the shape of the indexed tensor"
            f" {list(x_shape)} at index {axis}"
        )


def _positions(xp: Any, x: Array, indices: Indices) -> list[tuple[int, Array]]:
    """Return (axis, int64 indices in bounds) of an index; masks are expanded, so they must have values."""
    positions: list[tuple[int, Array]] = []
    axis, shape = 0, xp.shape(x)
    for at, index in enumerate(indices):
        if index is None:
            axis += 1
        elif _is_mask(xp, index):
            _check_mask(xp, x, index, at, axis)
            mask = xp.astype(index, dtypes.bool_)
            if not xp.ndim(mask):  # x[True] has a new first axis: not an ATen index
                raise NotImplementedError("a mask without axes")
            for where in xp.nonzero(mask):
                positions.append((axis, where))
                axis += 1
        else:
            positions.append((axis, xp.astype(index, dtypes.int64)))
            axis += 1
    if not positions:
        return positions
    axes, arrays = zip(*positions, strict=True)
    batch_shape = _common_shape(xp, arrays)
    if 0 in batch_shape:  # nothing is indexed: the CPU looks at no index
        return [(axis, xp.broadcast_to(index, batch_shape)) for axis, index in positions]
    if any(shape[axis] == 0 for axis in axes):
        raise IndexError("index is out of bounds for dimension with size 0")
    if any(n == 0 for axis, n in enumerate(shape) if axis not in axes):
        return [(axis, xp.zeros_like(index)) for axis, index in positions]
    return [  # ATen counts the axes that are indexed
        (axis, within(xp, index, n, out_of_bounds(IndexError, at, n), wrap=True))
        for at, (axis, index) in enumerate(positions)
        for n in (shape[axis],)
    ]


def _indexed_first(axes: Sequence[int], n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (the order of axes that brings the indexed ones to the front, those that are not)."""
    rest = tuple(a for a in range(n) if a not in axes)
    return (*axes, *rest), rest


def _result_order(axes: Sequence[int], k: int, rest: int) -> tuple[int, ...]:
    """Return the order of (k index axes, `rest` axes) -> PyTorch's result: index axes stay where neighbours were
    indexed."""
    adjacent = all(b - a == 1 for a, b in itertools.pairwise(axes))
    before = axes[0] if adjacent else 0
    return (*range(k, k + before), *range(k), *range(k + before, k + rest))


def _common_shape(xp: Any, arrays: Sequence[Array]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*map(xp.shape, arrays))
    except ValueError:
        shapes = ", ".join(str(list(xp.shape(a))) for a in arrays)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


def _index(xp: Any, x: Array, indices: Indices) -> Array:
    positions = _positions(xp, x, indices)
    if not positions:
        return x
    if len(positions) == 1:
        axis, index = positions[0]
        return xp.take(x, index, axis)
    axes, arrays = zip(*positions, strict=True)
    order, rest = _indexed_first(axes, xp.ndim(x))
    k = len(_common_shape(xp, arrays))
    return xp.permute_dims(xp.gather(xp.permute_dims(x, order), arrays), _result_order(axes, k, len(rest)))


kernel("index.Tensor", host=("indices",), concrete=lambda x, indices, *_: bool(_masks(indices)))(_index)


def _value_error(values: Sequence[int], result: Sequence[int]) -> RuntimeError:
    return RuntimeError(
        f"shape mismatch: value tensor of shape {list(values)} cannot be broadcast to indexing result of shape"
        f" {list(result)}"
    )


def _expand(xp: Any, values: Array, shape: tuple[int, ...]) -> Array:
    try:
        is_broadcastable = np.broadcast_shapes(xp.shape(values), shape) == shape
    except ValueError:
        is_broadcastable = False
    extents = xp.shape(values)
    if not is_broadcastable and len(extents) > len(shape) and all(n == 1 for n in extents[: len(extents) - len(shape)]):
        return _expand(xp, xp.reshape(values, extents[len(extents) - len(shape) :]), shape)
    if not is_broadcastable:
        raise _value_error(extents, shape)
    return xp.broadcast_to(values, shape)


def _put_masked(xp: Any, x: Array, mask: Array, axis: int, values: Array, accumulate: bool) -> Array:
    """Compute `x[:, mask] = values`, where the mask begins at `axis`; no shape depends on the mask."""
    _check_mask(xp, x, mask, axis, axis)
    shape, k = xp.shape(x), xp.ndim(mask)
    before, shape_after = shape[:axis], shape[axis + k :]
    mask = xp.astype(mask, dtypes.bool_)
    original = extents = xp.shape(values)
    while len(extents) > len(before) + 1 + len(shape_after) and extents[0] == 1:
        extents = extents[1:]
    values = xp.reshape(values, extents)
    mask_axis = len(extents) - len(shape_after) - 1  # the axis of `values` that runs over the true elements
    rows = extents[mask_axis] if mask_axis >= 0 else 1
    if rows != 1:
        flat = xp.astype(xp.reshape(mask, (xp.size(mask),)), dtypes.int64)

        def verify(count: np.ndarray) -> None:
            if int(count) != rows:
                raise _value_error(original, (*before, int(count), *shape_after))

        check(xp, xp.sum(flat), verify)
        if not rows:
            return x
        at = xp.clip(xp.subtract(xp.cumsum(flat, axis=0), 1), 0, rows - 1)
        values = xp.take(values, at, mask_axis)
        extents = (*extents[:mask_axis], *xp.shape(mask), *extents[mask_axis + 1 :])
    elif mask_axis >= 0:
        extents = (*extents[:mask_axis], *(1,) * k, *extents[mask_axis + 1 :])
    values = _expand(xp, xp.reshape(values, extents), shape)
    mask = xp.reshape(mask, (*(1,) * axis, *xp.shape(mask), *(1,) * len(shape_after)))
    return xp.where(mask, xp.add(x, values) if accumulate else values, x)


def _index_put(xp: Any, x: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    if xp.dtype_of(values) != xp.dtype_of(x):
        if xp.ndim(values):
            raise NotImplementedError("values of another dtype")
        values = xp.astype(values, xp.dtype_of(x))
    present = [(at, i) for at, i in enumerate(indices) if i is not None]
    if len(present) == 1 and _is_mask(xp, present[0][1]):
        at, mask = present[0]
        if xp.ndim(mask):
            return _put_masked(xp, x, mask, at, values, accumulate)
        if xp.size(values) == 1 and xp.ndim(values) <= xp.ndim(x):  # the CPU accepts only one value
            return xp.where(xp.astype(mask, dtypes.bool_), xp.add(x, values) if accumulate else values, x)
    positions = _positions(xp, x, indices)
    if not positions:
        return xp.add(x, values) if accumulate else _expand(xp, values, xp.shape(x))
    axes, arrays = zip(*positions, strict=True)
    order, rest = _indexed_first(axes, xp.ndim(x))
    batch_shape, shape = _common_shape(xp, arrays), xp.shape(x)
    target_order = _result_order(axes, len(batch_shape), len(rest))
    target = (*batch_shape, *(shape[a] for a in rest))  # the shape of the values, index axes first
    values = _expand(xp, values, tuple(target[a] for a in target_order))
    values = xp.permute_dims(values, _inverse(target_order))
    if not math.prod(target):
        return x
    out = xp.scatter(xp.permute_dims(x, order), arrays, values, mode="add" if accumulate else "set")
    return xp.permute_dims(out, _inverse(order))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(a) for a in range(len(order)))


kernel("index_put", host=("indices",), concrete=_mixes_masks)(_index_put)


@kernel("_index_put_impl_", host=("indices",), concrete=_mixes_masks)
def _index_put_impl(
    xp: Any, x: Array, indices: Indices, values: Array, accumulate: bool = False, unsafe: bool = False
) -> list[Array]:
    return [_index_put(xp, x, indices, values, accumulate)]


# ---- masks ---------------------------------------------------------------------------------------------------------


def _check_bool(xp: Any, name: str, mask: Array) -> None:
    if not dtypes.is_bool(xp.dtype_of(mask)):
        raise RuntimeError(f"{name} only supports boolean masks, but got mask with dtype {xp.dtype_of(mask)}")


def _check_fits(xp: Any, value: Any, dtype: np.dtype) -> None:
    """Check that elements can hold a number: raises for numbers beyond the integers of the dtype, and for complex
    ones."""

    def verify(parts: np.ndarray) -> None:
        check_fits(complex(*map(float, parts)), dtype)

    if isinstance(value, int | float | complex):
        check_fits(value, dtype)
        return
    kind = xp.dtype_of(value)
    if dtypes.is_complex(kind):
        check(xp, xp.stack([xp.real(value), xp.imag(value)]), verify)
    elif dtypes.is_floating(kind) and dtypes.is_integer(dtype):
        check(xp, xp.stack([xp.astype(value, dtypes.float64), xp.zeros((), dtypes.float64)]), verify)


@kernel("masked_fill.Scalar", dynamic=("value",))
def _masked_fill(xp: Any, x: Array, mask: Array, value: Any) -> Array:
    _check_bool(xp, "masked_fill_", mask)
    if not dtypes.is_complex(xp.dtype_of(x)):
        _check_fits(xp, value, xp.dtype_of(x))
    return xp.where(mask, number(xp, value, xp.dtype_of(x)), x)


@kernel("masked_fill.Tensor")
def _masked_fill_tensor(xp: Any, x: Array, mask: Array, value: Array) -> Array:
    return _masked_fill(xp, x, mask, value)


@kernel("masked_select", concrete=True, meta=False)
def _masked_select(xp: Any, x: Array, mask: Array) -> Array:
    if not dtypes.is_bool(xp.dtype_of(mask)):
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = np.broadcast_shapes(xp.shape(x), xp.shape(mask))
    n = math.prod(shape)
    selected = np.broadcast_to(xp.to_numpy(mask), shape).reshape(n)
    return xp.gather(xp.reshape(xp.broadcast_to(x, shape), (n,)), xp.nonzero(xp.asarray(selected)))


@kernel("masked_scatter")
def _masked_scatter(xp: Any, x: Array, mask: Array, source: Array) -> Array:
    if not dtypes.is_bool(xp.dtype_of(mask)):
        raise RuntimeError("masked_scatter_ only supports boolean masks")
    if xp.dtype_of(source) != xp.dtype_of(x):
        raise RuntimeError("masked_scatter: expected self and source to have same dtypes")
    shape = np.broadcast_shapes(xp.shape(x), xp.shape(mask))
    x, mask = xp.broadcast_to(x, shape), xp.broadcast_to(mask, shape)
    n, rows = math.prod(shape), xp.size(source)
    flat = xp.astype(xp.reshape(mask, (n,)), dtypes.int64)

    def verify(count: np.ndarray) -> None:
        if int(count) > rows:
            raise RuntimeError("Number of elements of source < number of ones in mask")

    check(xp, xp.sum(flat), verify)
    if not rows or not n:
        return x
    at = xp.clip(xp.subtract(xp.cumsum(flat, axis=0), 1), 0, rows - 1)
    return xp.where(mask, xp.reshape(xp.take(xp.reshape(source, (rows,)), at, 0), shape), x)


@kernel("nonzero", concrete=True, meta=False)
def _nonzero(xp: Any, x: Array) -> Array:
    if not xp.ndim(x):
        return xp.zeros((int(bool(xp.to_numpy(x))), 0), dtypes.int64)
    return xp.stack(xp.nonzero(xp.astype(x, dtypes.bool_)), axis=1)


@kernel("nonzero_static")
def _nonzero_static(xp: Any, x: Array, size: int, fill_value: int = -1) -> Array:
    """Return the first `size` positions of true elements, each written at its rank; the others are `fill_value`."""
    shape, n = xp.shape(x), xp.size(x)
    mask = xp.reshape(xp.astype(x, dtypes.bool_), (n,))
    first = min(size, n)
    narrow = dtypes.int32 if n < 2**31 else dtypes.int64
    rank = xp.subtract(xp.cumsum(xp.astype(mask, narrow), axis=0), 1) if n else xp.zeros((0,), narrow)
    at = xp.where(xp.logical_and(mask, xp.less(rank, first)), rank, xp.full_like(rank, first))
    flat = xp.scatter(xp.zeros((first + 1,), dtypes.int64), (xp.astype(at, dtypes.int64),), xp.iota(n, dtypes.int64))
    flat = xp.take_slice(flat, 0, 0, first)
    columns = []
    for axis in range(len(shape)):
        step = math.prod(shape[axis + 1 :])
        columns.append(xp.fmod(xp.integer_floor_divide(flat, max(step, 1)), max(shape[axis], 1)))
    if not columns:
        return xp.zeros((size, 0), dtypes.int64)
    table = xp.stack(columns, axis=1)
    real = xp.less(xp.iota(first, dtypes.int64), xp.sum(xp.astype(mask, dtypes.int64)))
    table = xp.where(xp.expand_dims(real, 1), table, xp.full((), fill_value, dtypes.int64))
    return xp.pad(table, xp.full((), fill_value, dtypes.int64), ((0, size - first, 0), (0, 0, 0)))


# ---- flat positions --------------------------------------------------------------------------------------------------


def _flat(xp: Any, x: Array, index: Array) -> Array:
    n = xp.size(x)
    return within(
        xp,
        index,
        n,
        lambda value: IndexError(f"out of range: tried to access index {value} on a tensor of {n} elements."),
        wrap=True,
    )


@kernel("take")
def _take(xp: Any, x: Array, index: Array) -> Array:
    if not xp.size(x) and xp.size(index):
        raise IndexError("take(): tried to take from an empty tensor")
    return xp.gather(xp.reshape(x, (xp.size(x),)), (_flat(xp, x, index),))


@kernel("put")
def _put(xp: Any, x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    if xp.size(index) != xp.size(source):
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got"
            f" source.numel() = {xp.size(source)}, index.numel() = {xp.size(index)}"
        )
    if not xp.size(index):
        return x
    at = xp.reshape(_flat(xp, x, index), (xp.size(index),))
    flat = xp.scatter(
        xp.reshape(x, (xp.size(x),)), (at,), xp.reshape(source, (xp.size(source),)), mode="add" if accumulate else "set"
    )
    return xp.reshape(flat, xp.shape(x))
