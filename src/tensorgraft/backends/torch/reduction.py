"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.backends.torch.precision import (
    FLOAT8,
    NARROW,
    NUMPY,
    SIGNED,
    as_bits,
    filled,
    from_ordered,
    ordered,
    rounded,
    widen,
    widened,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Axis = int | tuple[int, ...] | None
Tensor = torch.Tensor


def _axes(x: Tensor, axis: Axis) -> tuple[int, ...]:
    """Return the axes of a reduction, all non-negative: an empty list would mean all axes in PyTorch."""
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _shape(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    return tuple(n for a, n in enumerate(x.shape) if a not in axes)


def _sum(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.sum(x, axes, keepdims, dtype=x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """PyTorch multiplies along one axis."""
    if len(axes) == 1:
        return torch.prod(x, axes[0], keepdims, dtype=x.dtype)
    kept_axes = tuple(a for a in range(x.ndim) if a not in axes)
    lead = tuple(x.shape[a] for a in kept_axes)
    n = math.prod(x.shape[a] for a in axes)
    flat = x.permute(*kept_axes, *axes).reshape(*lead, n)
    return torch.prod(flat, -1, dtype=x.dtype).reshape(_shape(x, axes, keepdims))


def _arithmetic(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    """Sums and products, of unsigned integers as of signed ones, of narrow floats in float32."""
    wide = widened(fn)

    def method(self: Any, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        axes = _axes(x, axis)
        if not axes:
            return x
        if x.dtype in SIGNED:
            return fn(as_bits(x), axes, keepdims).view(x.dtype)
        return wide(x, axes, keepdims)

    return method


def _extreme(fn: Callable[..., Tensor], identity: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        axes = _axes(x, axis)
        if not axes:
            return x
        if not x.numel():
            return filled(_shape(x, axes, keepdims), identity(NUMPY[x.dtype]), x.dtype, x.device)
        return from_ordered(fn(ordered(x), axes, keepdims), x.dtype)

    return method


def _logical(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        axes = _axes(x, axis)
        return fn(x, axes, keepdims) if axes else x

    return method


def _numbers(x: Tensor) -> Tensor:
    """Return `x` as numbers in the same order, bool included."""
    return x.to(torch.uint8) if x.dtype == torch.bool else ordered(x)


def _position(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
        return fn(_numbers(x), axis, keepdims)

    return method


def _accumulated(fn: Callable[..., Tensor]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: int) -> Array:
        dtype = x.dtype
        if dtype in SIGNED:
            return fn(as_bits(x), axis, dtype=SIGNED[dtype]).view(dtype)
        if dtype in NARROW:
            return rounded(fn(x.to(torch.float32), axis), dtype)
        if dtype == torch.bool:
            return fn(x, axis, dtype=torch.int64).to(dtype)
        return fn(x, axis, dtype=dtype)

    return method


def _running(fn: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: int) -> Array:
        if x.dtype == torch.bool:
            return fn(x.to(torch.uint8), axis)[0].to(torch.bool)
        return from_ordered(fn(ordered(x), axis)[0], x.dtype)

    return method


class TorchReduction:
    sum = _arithmetic(_sum)
    prod = _arithmetic(_prod)
    max = _extreme(torch.amax, dtypes.lowest)
    min = _extreme(torch.amin, dtypes.highest)
    any = _logical(torch.any)
    all = _logical(torch.all)
    argmax = _position(torch.argmax)
    argmin = _position(torch.argmin)
    cumsum = _accumulated(torch.cumsum)
    cumprod = _accumulated(torch.cumprod)
    cummax = _running(torch.cummax)
    cummin = _running(torch.cummin)

    # ---- composites ------------------------------------------------------------------------------------------------

    def cumlogsumexp(self, x: Array, axis: int) -> Array:
        return widened(torch.logcumsumexp)(x, axis)

    def softmax(self, x: Array, axis: int) -> Array:
        return widened(torch.softmax)(x, axis)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return widened(torch.log_softmax)(x, axis)


__all__ = ["FLOAT8", "TorchReduction", "widen"]
