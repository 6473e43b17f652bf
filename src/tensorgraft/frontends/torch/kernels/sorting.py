"""Sorting, order statistics, and searching in sorted sequences. NaN is the greatest value."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import at_least_1d
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Pair = tuple[Array, Array]


def _scalar_pair(xp: Any, x: Array) -> Pair:
    return x, xp.zeros((), dtypes.int64)


def _refuse_complex(xp: Any, x: Array) -> None:
    if dtypes.is_complex(xp.dtype_of(x)):
        raise NotImplementedError("complex numbers have no order")


@kernel("sort")
def _sort(xp: Any, x: Array, dim: int = -1, descending: bool = False) -> Pair:
    _refuse_complex(xp, x)
    if not xp.ndim(x):
        return _scalar_pair(xp, x)
    return xp.sort_with_indices(x, dim, descending)


@kernel("sort.stable")
def _sort_stable(xp: Any, x: Array, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Pair:
    return _sort(xp, x, dim, descending)


@kernel("topk")
def _topk(xp: Any, x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    _refuse_complex(xp, x)
    if not xp.ndim(x):  # whatever `k`
        return _scalar_pair(xp, x)
    return xp.top_k(x, k, axis=dim, largest=largest)


def _select(xp: Any, x: Array, dim: int, keepdim: bool, k: int | Array) -> Pair:
    """Return the element that is `k`-th in order along `dim`, and where it comes from."""
    if not isinstance(k, int) and not xp.ndim(k):
        k = xp.full(tuple(1 if a == dim % xp.ndim(x) else n for a, n in enumerate(xp.shape(x))), k, dtypes.int64)
    pair = xp.kth_value(x, k, dim)
    return pair if keepdim else (xp.squeeze(pair[0], dim), xp.squeeze(pair[1], dim))


def _there_is(x: Any, k: int, dim: int = -1, keepdim: bool = False, **_: Any) -> dict[str, Any] | None:
    return {} if -x.dim() <= dim < x.dim() and 1 <= k <= x.size(dim) else None


@kernel("kthvalue", positions=("k",), moves=_there_is)
def _kthvalue(xp: Any, x: Array, k: Any, dim: int = -1, keepdim: bool = False) -> Pair:
    _refuse_complex(xp, x)
    if not xp.ndim(x):
        return _scalar_pair(xp, x)
    return _select(xp, x, dim, keepdim, k - 1 if isinstance(k, int) else xp.subtract(k, 1))


def _middle(xp: Any, x: Array, dim: int, ignore_nan: bool) -> Any:
    """Return the position of the lower median along an axis in order: that of a NaN, if there is one, unless
    `ignore_nan`."""
    n = xp.shape(x)[dim]
    if not dtypes.is_floating(xp.dtype_of(x)):
        return (n - 1) // 2
    numbers = xp.sum(xp.astype(xp.logical_not(xp.isnan(x)), dtypes.int64), axis=dim, keepdims=True)
    if ignore_nan:
        return xp.integer_floor_divide(xp.maximum(xp.subtract(numbers, 1), 0), 2)
    return xp.where(xp.less(numbers, n), numbers, xp.full_like(numbers, (n - 1) // 2))


def _median(ignore_nan: bool, name: str) -> None:
    @kernel(f"{name}.dim")
    def along_axis(xp: Any, x: Array, dim: int, keepdim: bool = False) -> Pair:
        _refuse_complex(xp, x)
        if not xp.ndim(x):
            return _scalar_pair(xp, x)
        return _select(xp, x, dim, keepdim, _middle(xp, x, dim, ignore_nan))

    @kernel(name)
    def of_all(xp: Any, x: Array) -> Array:
        if not xp.size(x):
            if dtypes.is_floating(xp.dtype_of(x)):
                return xp.full((), float("nan"), xp.dtype_of(x))
            raise NotImplementedError("the median of no integers is what the CPU's conversion of NaN gives")
        return along_axis(xp, xp.reshape(x, (xp.size(x),)), 0)[0]


_median(False, "median")
_median(True, "nanmedian")


@kernel("mode")
def _mode(xp: Any, x: Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """Return the most frequent value, of several the least: where in sorted order the count within its run peaks
    first."""
    _refuse_complex(xp, x)
    if not xp.ndim(x):
        return _scalar_pair(xp, x)
    axis = dim % xp.ndim(x)
    n = xp.shape(x)[axis]

    values, order = xp.sort_with_indices(x, axis)
    broadcast_shape = tuple(n if a == axis else 1 for a in range(xp.ndim(values)))
    at = xp.broadcast_to(xp.reshape(xp.iota(n, dtypes.int64), broadcast_shape), xp.shape(values))
    starts = xp.not_equal(xp.take_slice(values, axis, 1, n), xp.take_slice(values, axis, 0, n - 1))
    first = xp.full_like(xp.take_slice(at, axis, 0, 1), True)
    starts = xp.concat([xp.astype(first, dtypes.bool_), starts], axis=axis)
    run = xp.cummax(xp.where(starts, at, xp.zeros_like(at)), axis=axis)
    last = xp.argmax(xp.subtract(at, run), axis=axis, keepdims=True)
    value, index = (xp.take_along_axis(v, last, axis) for v in (values, order))
    return (value, index) if keepdim else (xp.squeeze(value, axis), xp.squeeze(index, axis))


# ---- searching -------------------------------------------------------------------------------------------------------


def _comparable(xp: Any, boundaries: Array, values: Array) -> Pair:
    """Both in one dtype, which holds the values of either (as C++ compares them)."""
    a, b = xp.dtype_of(boundaries), xp.dtype_of(values)
    if a == b:
        return boundaries, values
    common = dtypes.float64 if dtypes.is_floating(a) or dtypes.is_floating(b) else dtypes.int64
    return xp.astype(boundaries, common), xp.astype(values, common)


@kernel("searchsorted.Tensor")
def _searchsorted(
    xp: Any,
    boundaries: Array,
    x: Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    if sorter is not None:
        boundaries = xp.take_along_axis(boundaries, sorter, -1)
    boundaries, values = _comparable(xp, boundaries, x)
    at = xp.searchsorted(boundaries, at_least_1d(xp, values), right=right or side == "right")
    return xp.reshape(at, xp.shape(x))


@kernel("searchsorted.Scalar", dynamic=("self",))
def _searchsorted_scalar(xp: Any, boundaries: Array, x: Any, *args: Any, **kwargs: Any) -> Array:
    return _searchsorted(xp, boundaries, _as_array(xp, x, boundaries), *args, **kwargs)


def _as_array(xp: Any, x: Any, like: Array) -> Array:
    dtype = xp.dtype_of(like)
    if dtypes.is_floating(dtype) or (
        not isinstance(x, float) and dtypes.is_integer(xp.dtype_of(xp.full((), x, dtype)))
    ):
        return xp.full((), x, dtype)
    return xp.full((), x, dtypes.float64)


def _check_boundaries(xp: Any, boundaries: Array) -> None:
    if xp.ndim(boundaries) != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({xp.ndim(boundaries)})")


@kernel("bucketize.Tensor")
def _bucketize(xp: Any, x: Array, boundaries: Array, out_int32: bool = False, right: bool = False) -> Array:
    _check_boundaries(xp, boundaries)
    return _searchsorted(xp, boundaries, x, out_int32, right)


@kernel("bucketize.Scalar")
def _bucketize_scalar(xp: Any, x: Any, boundaries: Array, out_int32: bool = False, right: bool = False) -> Array:
    _check_boundaries(xp, boundaries)
    return _searchsorted(xp, boundaries, _as_array(xp, x, boundaries), out_int32, right)
