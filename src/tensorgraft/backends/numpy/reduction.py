"""Reductions and scans: ufunc methods, which keep the dtype where told to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.backends.numpy.precision import widen, widened
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.reduction import Reduction

Axis = int | tuple[int, ...] | None


def _reduce(ufunc: np.ufunc, identity: Callable[[np.dtype], Any] | None = None) -> Callable[..., Any]:
    @widened
    def reduce(x: Array, axis: Axis, keepdims: bool) -> Array:
        # an initial value costs a pass, so it is given only where NumPy needs one
        if identity is not None and not x.size:
            return ufunc.reduce(x, axis=axis, keepdims=keepdims, initial=identity(x.dtype))
        return ufunc.reduce(x, axis=axis, keepdims=keepdims, dtype=x.dtype)

    def method(self: Any, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        return reduce(np.asarray(x), axis, keepdims)

    return method


_BLOCK = 512


def _sum_of_rows(x: Array) -> Array:
    """Return the sum along the first axis, in blocks: NumPy adds pairwise along the last axis only, and row after row
    along others, where the error grows with their number."""
    if len(x) <= 2 * _BLOCK:
        return np.add.reduce(x, axis=0, dtype=x.dtype)
    return _sum_of_rows(
        np.stack([np.add.reduce(x[i : i + _BLOCK], axis=0, dtype=x.dtype) for i in range(0, len(x), _BLOCK)])
    )


@widened
def _sum(x: Array, axis: Axis, keepdims: bool) -> Array:
    if axis is not None and x.size and x.flags.c_contiguous and dtypes.is_inexact(x.dtype):
        axes = sorted(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
        k = len(axes)
        rows = math.prod(x.shape[:k])
        if axes == list(range(k)) and k < x.ndim and rows > 2 * _BLOCK:
            return _sum_of_rows(x.reshape(rows, *x.shape[k:])).reshape((1,) * (k * keepdims) + x.shape[k:])
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _position(find: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
        return find(widen(x), axis=axis, keepdims=keepdims)

    return method


_WORTH_ROWS = 256  # elements of a row for which numpy is called once more


def _scan(ufunc: np.ufunc) -> Callable[..., Any]:
    @widened
    def accumulate(x: Array, axis: int) -> Array:
        # one after the other, roundings would add up
        wide = np.float64 if x.dtype == np.float32 and ufunc in (np.add, np.multiply, np.logaddexp) else x.dtype
        if x.size < _WORTH_ROWS * x.shape[axis] or x.strides[axis] <= x.itemsize:
            return ufunc.accumulate(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)
        out = np.empty_like(x)  # row by row: `accumulate` would go through memory column by column
        rows, into = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
        carry = rows[0].astype(wide)
        into[0] = carry
        for i in range(1, len(rows)):
            ufunc(carry, rows[i], out=carry)
            into[i] = carry
        return out

    def method(self: Any, x: Array, /, axis: int) -> Array:
        return accumulate(x, axis)

    return method


class NumpyReduction:
    def sum(self, x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        return _sum(np.asarray(x), axis, keepdims)

    prod = _reduce(np.multiply)
    max = _reduce(np.maximum, dtypes.lowest)
    min = _reduce(np.minimum, dtypes.highest)
    any = _reduce(np.logical_or)
    all = _reduce(np.logical_and)
    argmax = _position(np.argmax)
    argmin = _position(np.argmin)
    cumsum = _scan(np.add)
    cumprod = _scan(np.multiply)
    cummax = _scan(np.maximum)
    cummin = _scan(np.minimum)

    # ---- composites ------------------------------------------------------------------------------------------------

    def cumlogsumexp(self, x: Array, axis: int) -> Array:
        if dtypes.is_complex(x.dtype):
            return Reduction.cumlogsumexp(self, x, axis)  # type: ignore[arg-type]
        return _scan(np.logaddexp)(self, x, axis)

    def softmax(self, x: Array, axis: int) -> Array:
        return _softmax(x, axis)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return _log_softmax(x, axis)


@widened
def _softmax(x: Array, axis: int) -> Array:
    out = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    out = np.exp(out, out=out)
    out /= np.sum(out, axis=axis, keepdims=True)
    return out


@widened
def _log_softmax(x: Array, axis: int) -> Array:
    out = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    out -= np.log(np.sum(np.exp(out), axis=axis, keepdims=True))
    return out
