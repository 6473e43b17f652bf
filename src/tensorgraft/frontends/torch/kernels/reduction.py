"""Reductions. Sums, products and moments of 16-bit floats are accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import axes_of, wide
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray

Dim = int | Sequence[int] | None


def summable(xp: Any, x: Array, dtype: np.dtype | None) -> Array:
    """Return `x` in the dtype of its sums: by default integers and bool in int64."""
    if dtype is None and not dtypes.is_inexact(xp.dtype_of(x)):
        dtype = dtypes.int64
    return wide(xp, x if dtype is None else xp.astype(x, dtype))


@kernel("sum")
def _sum_all(xp: Any, x: Array, dtype: np.dtype | None = None) -> Array:
    return xp.sum(summable(xp, x, dtype))


@kernel("sum.dim_IntList")
def _sum(xp: Any, x: Array, dim: Dim, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    x = summable(xp, x, dtype)
    return xp.sum(x, axis=axes_of(dim, xp.ndim(x)), keepdims=keepdim)


def _shape_of_sum(
    x: torch.Tensor, dim: int | list[int] | None = None, keepdim: bool = False, **options: Any
) -> torch.Tensor:
    """PyTorch's own meta function of nansum takes an empty list for no axes, where its kernels take it for all."""
    return torch.sum(x, None if dim == [] else dim, keepdim, **options)


@kernel("nansum", meta=_shape_of_sum)
def _nansum(xp: Any, x: Array, dim: Dim = None, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    if dtypes.is_inexact(xp.dtype_of(x)):
        x = xp.where(xp.isnan(x), xp.zeros_like(x), x)
    return _sum(xp, x, dim, keepdim, dtype)


@kernel("mean")
def _mean_all(xp: Any, x: Array, dtype: np.dtype | None = None) -> Array:
    return _mean(xp, x, None, False, dtype)


@kernel("mean.dim")
def _mean(xp: Any, x: Array, dim: Dim, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    x = wide(xp, x) if dtype is None else xp.astype(x, dtypes.accumulator(dtype))  # not rounded before, as on the CPU
    return xp.mean(x, axis=axes_of(dim, xp.ndim(x)), keepdims=keepdim)


@kernel("prod")
def _prod_all(xp: Any, x: Array, dtype: np.dtype | None = None) -> Array:
    return xp.prod(summable(xp, x, dtype))


@kernel("prod.dim_int")
def _prod(xp: Any, x: Array, dim: int, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
    x = summable(xp, x, dtype)
    return xp.prod(x, axis=axes_of(dim, xp.ndim(x)), keepdims=keepdim)


def _logical(method: str, *names: str) -> None:
    @kernel(*names)
    def reduce(xp: Any, x: Array, dim: Dim = None, keepdim: bool = False, dtype: np.dtype | None = None) -> Array:
        axes = () if isinstance(dim, list | tuple) and not dim else axes_of(dim, xp.ndim(x))
        if dtype == dtypes.uint8:  # the dtype of `out=`: numbers below 1 count as 0
            x = xp.astype(x, dtype)
        return getattr(xp, method)(xp.astype(x, dtypes.bool_), axis=axes, keepdims=keepdim)


_logical("any", "any", "any.dim", "any.dims")
_logical("all", "all", "all.dim", "all.dims")


# ---- the greatest and the least --------------------------------------------------------------------------------------


def _amax(method: str) -> Any:
    def reduce(xp: Any, x: Array, dim: Dim = (), keepdim: bool = False) -> Array:
        return getattr(xp, method)(x, axis=axes_of(dim, xp.ndim(x)), keepdims=keepdim)

    return reduce


def _extreme_of_all(method: str) -> Any:
    def reduce(xp: Any, x: Array) -> Array:
        return getattr(xp, method)(x)  # over nothing PyTorch refuses it, but for `out=`

    return reduce


def _best_along(method: str) -> Any:
    def reduce(xp: Any, x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        if not xp.ndim(x):
            return x, xp.zeros((), dtypes.int64)
        at = getattr(xp, f"arg{method}")(_ordered(xp, x), axis=dim, keepdims=True)
        values = xp.take_along_axis(x, at, dim)
        return (values, at) if keepdim else (xp.squeeze(values, dim), xp.squeeze(at, dim))

    return reduce


def _ordered(xp: Any, x: Array) -> Array:
    return xp.astype(x, dtypes.uint8) if dtypes.is_bool(xp.dtype_of(x)) else x


def _position(method: str) -> Any:
    def reduce(xp: Any, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        if not xp.ndim(x):
            return xp.zeros((), dtypes.int64)
        x = _ordered(xp, x)
        if dim is not None:
            return getattr(xp, method)(x, axis=dim % xp.ndim(x), keepdims=keepdim)
        if not xp.size(x):
            raise IndexError(f"{method}(): Expected reduction dim to be specified for input.numel() == 0.")
        at = getattr(xp, method)(xp.reshape(x, (xp.size(x),)), axis=0)
        return xp.reshape(at, (1,) * xp.ndim(x)) if keepdim else at

    return reduce


for _method in ("max", "min"):
    kernel(f"a{_method}")(_amax(_method))
    kernel(_method)(_extreme_of_all(_method))
    kernel(f"{_method}.dim")(_best_along(_method))
    kernel(f"arg{_method}")(_position(f"arg{_method}"))


# ---- moments and norms -----------------------------------------------------------------------------------------------


def _var(xp: Any, x: Array, dim: Dim, correction: float | None, keepdim: bool) -> Array:
    axes = axes_of(dim, xp.ndim(x))
    if not all(xp.shape(x)[a] for a in axes):  # NaN, whatever is taken off
        correction = 0
    correction = 1 if correction is None else correction
    return xp.var(wide(xp, x), axis=axes, keepdims=keepdim, correction=correction)


@kernel("var.correction")
def _variance(xp: Any, x: Array, dim: Dim = None, correction: float | None = None, keepdim: bool = False) -> Array:
    return _var(xp, x, dim, correction, keepdim)


@kernel("std.correction")
def _deviation(xp: Any, x: Array, dim: Dim = None, correction: float | None = None, keepdim: bool = False) -> Array:
    return xp.sqrt(_var(xp, x, dim, correction, keepdim))


@kernel("var_mean.correction")
def _var_mean(
    xp: Any, x: Array, dim: Dim = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return _var(xp, x, dim, correction, keepdim), _mean(xp, x, dim, keepdim)


@kernel("std_mean.correction")
def _std_mean(
    xp: Any, x: Array, dim: Dim = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return xp.sqrt(_var(xp, x, dim, correction, keepdim)), _mean(xp, x, dim, keepdim)


@kernel("logsumexp")
def _logsumexp(xp: Any, x: Array, dim: Dim, keepdim: bool = False) -> Array:
    x = wide(xp, x if dtypes.is_inexact(xp.dtype_of(x)) else xp.astype(x, dtypes.float32))
    axes = axes_of(dim, xp.ndim(x))
    if dtypes.is_complex(xp.dtype_of(x)):
        high = xp.max(xp.real(x), axis=axes, keepdims=True)
        high = xp.where(xp.isfinite(high), high, xp.zeros_like(high))
        high = xp.complex(high, xp.zeros_like(high))
        total = xp.add(xp.log(xp.sum(xp.exp(xp.subtract(x, high)), axis=axes, keepdims=True)), high)
        return total if keepdim or not axes else xp.squeeze(total, axes)
    return xp.logsumexp(x, axis=axes, keepdims=keepdim)


def vector_norm(xp: Any, x: AnyArray, p: float, axes: tuple[int, ...], keepdim: bool) -> AnyArray:
    """Return the p-norm over axes, in the real accumulation dtype of `x`."""
    x = wide(xp, x)
    size = xp.abs(x)
    options = {"axis": axes, "keepdims": keepdim}
    if p == math.inf:
        return xp.max(size, **options)
    if p == -math.inf:
        return xp.min(size, **options)
    if p == 0:
        return xp.sum(xp.astype(xp.not_equal(size, 0), xp.dtype_of(size)), **options)
    if not axes:
        return size
    if p == 1:
        return xp.sum(size, **options)
    if all(xp.shape(x)[a] == 1 for a in axes):  # no power that could overflow
        return xp.max(size, **options)
    if p == 2:
        return xp.sqrt(xp.sum(xp.square(size), **options))
    return xp.pow(xp.sum(xp.pow(size, p), **options), 1 / p)


@kernel("linalg_vector_norm")
def _vector_norm(
    xp: Any, x: Array, ord: float = 2, dim: Dim = None, keepdim: bool = False, dtype: np.dtype | None = None
) -> Array:
    x = x if dtype is None else xp.astype(x, dtype)
    axes = axes_of(dim, xp.ndim(x))
    return vector_norm(xp, x, ord, axes, keepdim)
