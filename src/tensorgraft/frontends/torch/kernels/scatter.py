"""Gather and scatter along one axis, and their whole-row relatives `index_*`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.bounds import Refusal, out_of_bounds, within
from tensorgraft.frontends.torch.kernels.common import at_least_1d, number, wide
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

# PyTorch's names of reductions -> modes of the hub's scatter
MODES = {"add": "add", "multiply": "multiply", "sum": "add", "mean": "add", "prod": "multiply"} | {
    "amax": "max",
    "amin": "min",
}
_ACCUMULATED = frozenset({"add", "multiply"})


def _identity(reduce: str, dtype: np.dtype) -> Any:
    return {"sum": 0, "mean": 0, "prod": 1, "amax": dtypes.lowest(dtype), "amin": dtypes.highest(dtype)}[reduce]


# ---- one index an element --------------------------------------------------------------------------------------------


def _checked_index(xp: Any, x: Array, index: Array, dim: int) -> tuple[Array, int]:
    n = xp.ndim(x)
    axis = dim % max(n, 1)
    extent = xp.shape(x)[axis] if n else 1
    return within(xp, index, extent, out_of_bounds(RuntimeError, axis, extent)), axis


def _corner(xp: Any, src: Array, shape: tuple[int, ...]) -> Array:
    """Return the part of `src` that an index of this shape uses."""
    if xp.shape(src) == shape or not xp.ndim(src):
        return src if xp.ndim(src) else xp.broadcast_to(src, shape)
    if len(shape) != xp.ndim(src):  # one of the two is a number
        return xp.reshape(xp.slice(src, (0,), (1,), (1,)), shape)
    return xp.slice(src, (0,) * len(shape), shape, (1,) * len(shape))


@kernel("gather")
def _gather(xp: Any, x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if not xp.size(index):
        return xp.zeros(xp.shape(index), xp.dtype_of(x))
    index, axis = _checked_index(xp, x, index, dim)
    if xp.ndim(x) and not xp.ndim(index):
        return xp.reshape(xp.take_along_axis(x, xp.reshape(index, (1,)), 0), ())
    return xp.take_along_axis(x, index, axis)


def _scatter(xp: Any, x: Array, dim: int, index: Array, src: Array, mode: str) -> Array:
    if not xp.size(index):
        return x
    index, axis = _checked_index(xp, x, index, dim)
    if xp.ndim(x) and not xp.ndim(index):
        index = xp.reshape(index, (1,))
    dtype = xp.dtype_of(x)
    src = xp.astype(_corner(xp, src, xp.shape(index)), dtype)
    if mode in _ACCUMULATED:  # in float32 where that is wider, as on the CPU
        x, src = wide(xp, x), wide(xp, src)
    return xp.astype(xp.put_along_axis(x, index, src, axis, mode=mode), dtype)


def _check_dtype(xp: Any, x: Array, src: Array) -> None:
    if xp.dtype_of(x) != xp.dtype_of(src):
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")


@kernel("scatter.src")
def _scatter_src(xp: Any, x: Array, dim: int, index: Array, src: Array) -> Array:
    _check_dtype(xp, x, src)
    return _scatter(xp, x, dim, index, src, "set")


@kernel("scatter.value", dynamic=("value",))
def _scatter_value(xp: Any, x: Array, dim: int, index: Array, value: Any) -> Array:
    return _scatter(xp, x, dim, index, number(xp, value, xp.dtype_of(x)), "set")


@kernel("scatter.reduce")
def _scatter_reduce_src(xp: Any, x: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    _check_dtype(xp, x, src)
    return _scatter(xp, x, dim, index, src, MODES[reduce])


@kernel("scatter.value_reduce", dynamic=("value",))
def _scatter_reduce_value(xp: Any, x: Array, dim: int, index: Array, value: Any, reduce: str) -> Array:
    return _scatter(xp, x, dim, index, number(xp, value, xp.dtype_of(x)), MODES[reduce])


@kernel("scatter_add")
def _scatter_add(xp: Any, x: Array, dim: int, index: Array, src: Array) -> Array:
    _check_dtype(xp, x, src)
    return _scatter(xp, x, dim, index, src, "add")


@kernel("scatter_reduce.two")
def _scatter_reduce(
    xp: Any, x: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    _check_dtype(xp, x, src)
    if not xp.size(index):
        return x
    dtype = xp.dtype_of(x)
    start = x
    if not include_self:
        start = _scatter(xp, x, dim, index, xp.full((), _identity(reduce, dtype), dtype), "set")
    out = _scatter(xp, start, dim, index, src, MODES[reduce])
    if reduce != "mean":
        return out
    initial = xp.ones_like(x) if include_self else xp.zeros_like(x)
    count = _scatter(xp, initial, dim, index, xp.full((), 1, dtype), "add")
    return _divide(xp, out, count)


def _divide(xp: Any, total: Array, count: Array) -> Array:
    """Return the mean, total / count; for integers it is rounded down, and without elements it is the total."""
    count = xp.maximum(count, 1) if not dtypes.is_complex(xp.dtype_of(count)) else xp.where(
        xp.equal(count, 0), xp.ones_like(count), count
    )  # fmt: skip
    if dtypes.is_integer(xp.dtype_of(total)):
        return xp.integer_floor_divide(total, count)
    return xp.divide(total, count)


# ---- one index a row -------------------------------------------------------------------------------------------------


def _rows(xp: Any, x: Array, dim: int, index: Array, refuse: Refusal, wrap: bool = False) -> tuple[Array, Array]:
    """Return (`x` with `dim` first, the indices as a 1-d array). If rows have no elements, the CPU does not check
    indices."""
    x = at_least_1d(xp, x)
    moved = xp.moveaxis(x, dim % xp.ndim(x), 0)
    index = xp.reshape(index, (xp.size(index),))
    if 0 in xp.shape(moved)[1:]:
        return moved, index
    return moved, within(xp, index, xp.shape(moved)[0], refuse, wrap)


def _put_rows(xp: Any, x: Array, dim: int, index: Array, source: Array, mode: str, refuse: Refusal) -> Array:
    rows, index = _rows(xp, x, dim, index, refuse)
    if not xp.size(index) or not xp.size(rows):
        return x
    source = at_least_1d(xp, source)
    if mode == "set" and xp.size(index) == 1:
        return _put_row(xp, x, dim, xp.reshape(index, ()), source)
    if xp.ndim(source) == xp.ndim(rows):
        source = xp.moveaxis(source, dim % xp.ndim(rows), 0)
    source = xp.astype(source, xp.dtype_of(x))
    out = xp.scatter(rows, (index,), source, mode=mode)
    return xp.reshape(xp.moveaxis(out, 0, dim % max(xp.ndim(rows), 1)), xp.shape(x))


def _put_row(xp: Any, x: Array, dim: int, at: Array, row: Array) -> Array:
    """Write one row (a token into a cache of keys) where a scatter would pass over all of `x`."""
    whole = at_least_1d(xp, x)
    shape, axis = xp.shape(whole), dim % xp.ndim(whole)
    row = xp.astype(xp.reshape(row, (*shape[:axis], 1, *shape[axis + 1 :])), xp.dtype_of(x))
    return xp.reshape(xp.put_row(whole, at, row, axis), xp.shape(x))


def _axis(xp: Any, x: Array, dim: int) -> tuple[int, int]:
    n = xp.ndim(x)
    return (dim % n, xp.shape(x)[dim]) if n else (0, 1)


def _in_self(_: int) -> Exception:
    return IndexError("index out of range in self")


@kernel("index_select")
def _index_select(xp: Any, x: Array, dim: int, index: Array) -> Array:
    axis, n = _axis(xp, x, dim)
    rest = (*xp.shape(x)[:axis], *xp.shape(x)[axis + 1 :])

    def refuse(value: int) -> Exception:  # the CPU's kernel for axis 1, and for rows without elements, is another one
        words = f"INDICES element is out of DATA bounds, id={value} axis_dim={n}"
        return RuntimeError(words) if axis == 1 or 0 in rest else _in_self(value)

    if not xp.ndim(x):
        within(xp, index, n, refuse)
        return x
    index = within(xp, at_least_1d(xp, index), n, refuse)
    return xp.take(x, index, axis)


@kernel("index_add")
def _index_add(xp: Any, x: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    axis, n = _axis(xp, x, dim)
    if xp.dtype_of(x) != xp.dtype_of(source):
        raise RuntimeError("index_add_(): self and source must have the same scalar type")
    shape, source_shape = xp.shape(x), xp.shape(source)
    if (
        xp.ndim(x)
        and source_shape
        and (*shape[:axis], *shape[axis + 1 :]) != (*source_shape[:axis], *source_shape[axis + 1 :])
    ):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension."
            f" Got self.shape = {list(shape)} source.shape = {list(source_shape)}"
        )
    if alpha != 1:
        source = xp.multiply(source, number(xp, alpha, xp.dtype_of(source)))
    if xp.ndim(x) > 1 and not xp.size(x):  # the CPU looks at no index
        return x
    refuse = out_of_bounds(RuntimeError, axis, n) if xp.ndim(x) > 1 else _in_self
    dtype = xp.dtype_of(x)
    if xp.ndim(x) > 1 and axis in (0, xp.ndim(x) - 1) and xp.dtype_of(index) == dtypes.int64:
        x, source = wide(xp, x), wide(xp, source)  # the CPU calls scatter_add then, else it rounds every sum
    return xp.astype(_put_rows(xp, x, dim, index, source, "add", refuse), dtype)


@kernel("index_copy")
def _index_copy(xp: Any, x: Array, dim: int, index: Array, source: Array) -> Array:
    axis, n = _axis(xp, x, dim)
    return _put_rows(xp, x, dim, index, source, "set", out_of_bounds(IndexError, axis, n, "index_copy_(): "))


@kernel("index_fill.int_Scalar", dynamic=("value",))
def _index_fill(xp: Any, x: Array, dim: int, index: Array, value: Any) -> Array:
    axis, n = _axis(xp, x, dim)
    rows, index = _rows(xp, x, dim, index, out_of_bounds(IndexError, axis, n), wrap=True)
    if not xp.size(index) or not xp.size(rows):
        return x
    fill = xp.broadcast_to(number(xp, value, xp.dtype_of(x)), (xp.size(index), *xp.shape(rows)[1:]))
    return xp.reshape(xp.moveaxis(xp.scatter(rows, (index,), fill), 0, axis), xp.shape(x))


@kernel("index_fill.int_Tensor")
def _index_fill_tensor(xp: Any, x: Array, dim: int, index: Array, value: Array) -> Array:
    if xp.ndim(value):
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with"
            f" {xp.ndim(value)} dimension(s)."
        )
    return _index_fill(xp, x, dim, index, value)


@kernel("index_reduce")
def _index_reduce(
    xp: Any, x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    dtype = xp.dtype_of(x)
    if not xp.size(x):  # rows without elements: the CPU looks at these indices
        within(xp, xp.reshape(index, (xp.size(index),)), _axis(xp, x, dim)[1], _in_self)
    start = x
    if not include_self:
        fill = xp.full(xp.shape(source), _identity(reduce, dtype), dtype)
        start = _put_rows(xp, x, dim, index, fill, "set", _in_self)
    out = _put_rows(xp, start, dim, index, source, MODES[reduce], _in_self)
    if reduce != "mean":
        return out
    initial = xp.ones_like(x) if include_self else xp.zeros_like(x)
    count = _put_rows(xp, initial, dim, index, xp.full(xp.shape(source), 1, dtype), "add", _in_self)
    return _divide(xp, out, count)


@kernel("repeat_interleave.Tensor", concrete=True, meta=False)
def _repeat_interleave(xp: Any, repeats: Array, output_size: int | None = None) -> Array:
    counts = xp.to_numpy(repeats)
    if counts.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if counts.dtype.kind != "i":
        raise RuntimeError("repeats has to be Long or Int tensor")
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    if counts.size and output_size is not None and output_size != counts.sum():
        raise RuntimeError("allocated size does not match required size")
    return xp.asarray(np.repeat(np.arange(math.prod(counts.shape), dtype=counts.dtype), counts))
