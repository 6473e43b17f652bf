"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def axes_of(xp: Backend, x: Array, axes: np.ndarray) -> tuple[int, ...]:
    """Return the axes as ascending non-negative numbers, each once."""
    n = xp.ndim(x)
    return tuple(sorted({int(a) % n for a in np.ravel(axes)})) if n else ()


def _reduction(name: str) -> Callable[..., Array]:
    def reduce(xp: Backend, x: Array, axes: np.ndarray, *, keep_dims: bool = False) -> Array:
        over = axes_of(xp, x, axes)
        return getattr(xp, name)(x, axis=over, keepdims=keep_dims) if over else x

    return reduce


for _name in ("sum", "prod", "all", "any"):
    rule(_name.capitalize(), known=("axes",))(_reduction(_name))


@rule("Max", known=("axes",))
def max_(xp: Backend, x: Array, axes: np.ndarray, *, keep_dims: bool = False) -> Array:
    over = axes_of(xp, x, axes)
    return xp.max(x, axis=over, keepdims=keep_dims) if over else x


@rule("Min", known=("axes",))
def min_(xp: Backend, x: Array, axes: np.ndarray, *, keep_dims: bool = False) -> Array:
    over = axes_of(xp, x, axes)
    return xp.min(x, axis=over, keepdims=keep_dims) if over else x


@rule("Mean", known=("axes",))
def mean(xp: Backend, x: Array, axes: np.ndarray, *, keep_dims: bool = False) -> Array:
    """Return the mean: of integers the quotient, toward zero, of the sum in 64 bits; of no complex numbers 0."""
    over, dtype = axes_of(xp, x, axes), xp.dtype_of(x)
    if not over:
        return x
    count = xp.count(x, over)
    if dtypes.is_complex(dtype) and count == 0:
        return xp.sum(x, axis=over, keepdims=keep_dims)
    if dtypes.is_inexact(dtype):
        return xp.mean(x, axis=over, keepdims=keep_dims)
    wide = xp.astype(x, dtypes.uint64 if dtype == dtypes.uint64 else dtypes.int64)
    total = xp.sum(wide, axis=over, keepdims=keep_dims)
    n = xp.full_like(total, max(count, 1))
    return xp.astype(xp.integer_floor_divide(xp.subtract(total, xp.fmod(total, n)), n), dtype)


@rule("EuclideanNorm", known=("axes",))
def euclidean_norm(xp: Backend, x: Array, axes: np.ndarray, *, keep_dims: bool = False) -> Array:
    """Return the root of the sum of squares. Sums of integers overflow as these do."""
    over = axes_of(xp, x, axes)
    dtype, size = xp.dtype_of(x), xp.abs(x)
    total = xp.multiply(size, size)
    total = xp.sum(total, axis=over, keepdims=keep_dims) if over else total
    total = xp.astype(total, dtypes.float64) if dtypes.is_integer(dtype) else total
    return xp.astype(xp.sqrt(total), dtype)


@rule("ArgMax", known=("axis",))
def argmax(xp: Backend, x: Array, axis: np.ndarray, *, output_type: np.dtype = dtypes.int64) -> Array:
    return xp.astype(xp.argmax(_without_nan(xp, x, -math.inf), axis=int(axis)), output_type)


def _without_nan(xp: Backend, x: Array, last: float) -> Array:
    """Replace NaN by `last`, so that it is never chosen; where all are NaN, the first one is."""
    return xp.where(xp.isnan(x), xp.full_like(x, last), x) if dtypes.is_floating(xp.dtype_of(x)) else x


@rule("ArgMin", known=("axis",))
def argmin(xp: Backend, x: Array, axis: np.ndarray, *, output_type: np.dtype = dtypes.int64) -> Array:
    return xp.astype(xp.argmin(_without_nan(xp, x, math.inf), axis=int(axis)), output_type)


def _scan(name: str, first: Any) -> Callable[..., Array]:
    def scan(xp: Backend, x: Array, axis: np.ndarray, *, exclusive: bool = False, reverse: bool = False) -> Array:
        at = int(axis) % xp.ndim(x)
        n = xp.shape(x)[at]
        x = xp.flip(x, (at,)) if reverse else x
        if exclusive and n:
            start = xp.full_like(xp.take_slice(x, at, 0, 1), first)
            x = xp.concat([start, xp.take_slice(x, at, 0, n - 1)], axis=at)
        x = getattr(xp, name)(x, axis=at)
        return xp.flip(x, (at,)) if reverse else x

    return scan


rule("Cumsum", known=("axis",))(_scan("cumsum", 0))
rule("Cumprod", known=("axis",))(_scan("cumprod", 1))
rule("CumulativeLogsumexp", known=("axis",))(_scan("cumlogsumexp", -float("inf")))
