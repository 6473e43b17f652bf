"""Scans: running sums, products and extremes. A 0-d tensor is one of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.kernels.common import at_least_1d, wide
from tensorgraft.frontends.torch.kernels.reduction import summable
from tensorgraft.frontends.torch.spec import kernel
from tensorgraft.hub import dtypes

Array = Any


def _scan(method: str) -> Callable[..., Array]:
    def scan(xp: Any, x: Array, dim: int, dtype: np.dtype | None = None) -> Array:
        shape = xp.shape(x)
        x = at_least_1d(xp, summable(xp, x, dtype))
        return xp.reshape(getattr(xp, method)(x, axis=dim % xp.ndim(x)), shape)

    return scan


kernel("cumsum")(_scan("cumsum"))
kernel("cumprod")(_scan("cumprod"))


def _running(method: str) -> Callable[..., tuple[Array, Array]]:
    """The extreme so far and where it is: of equal ones the last, of NaN, which stays, too."""

    def scan(xp: Any, x: Array, dim: int) -> tuple[Array, Array]:
        shape, dtype = xp.shape(x), xp.dtype_of(x)
        x = at_least_1d(xp, x)
        axis = dim % xp.ndim(x)
        if dtypes.is_bool(dtype):
            x = xp.astype(x, dtypes.uint8)
        best = getattr(xp, method)(x, axis=axis)
        here = xp.equal(x, best)
        if dtypes.is_floating(dtype):
            here = xp.logical_or(here, xp.isnan(x))
        along = tuple(n if a == axis else 1 for a, n in enumerate(xp.shape(x)))
        at = xp.reshape(xp.iota(along[axis], dtypes.int64), along)
        indices = xp.cummax(xp.where(here, at, xp.zeros_like(at)), axis=axis)
        return xp.reshape(xp.astype(best, dtype), shape), xp.reshape(indices, shape)

    return scan


for _name in ("cummax", "cummin"):
    kernel(_name)(_running(_name))


@kernel("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(xp: Any, x: Array, dim: int) -> Array:
    shape = xp.shape(x)
    if not xp.size(x):
        return x
    x = at_least_1d(xp, wide(xp, x))
    if dtypes.is_complex(xp.dtype_of(x)):
        return xp.reshape(_complex_logcumsumexp(xp, x, dim % xp.ndim(x)), shape)
    return xp.reshape(xp.cumlogsumexp(x, dim % xp.ndim(x)), shape)


def _complex_logcumsumexp(xp: Any, x: Array, axis: int) -> Array:
    """One after the other, the greater real part before the logarithm. Of two infinite ones of one sign the negative
    stay, as their angle means nothing, and the positive are added as vectors of infinite length."""

    def add(total: Array, x: Array) -> tuple[Array, Array]:
        swap = xp.less(xp.real(total), xp.real(x))
        high, low = xp.where(swap, x, total), xp.where(swap, total, x)
        real = xp.real(high)
        same = xp.logical_and(xp.equal(real, xp.real(low)), xp.isinf(real))
        gap = xp.subtract(low, xp.where(same, xp.zeros_like(high), high))
        out = xp.add(high, xp.log1p(xp.exp(gap)))
        infinite = xp.where(xp.less(real, 0), total, _sum_of_infinite(xp, high, low))
        out = xp.where(same, infinite, out)
        bad = xp.logical_or(xp.isnan(total), xp.isnan(x))
        out = xp.where(bad, xp.full_like(out, complex(np.nan, np.nan)), out)
        return out, out

    moved = xp.moveaxis(x, axis, 0)
    start = xp.full(xp.shape(moved)[1:], complex(-np.inf, 0.0), xp.dtype_of(x))
    return xp.moveaxis(xp.scan(add, start, moved, length=xp.shape(moved)[0])[1], 0, axis)


def _sum_of_infinite(xp: Any, x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y)) of x and y with a real part of plus infinity."""

    def long(part: Array) -> Array:
        return xp.where(xp.equal(part, 0), part, xp.multiply(part, np.inf))

    real, imag = (xp.add(*(long(f(xp.imag(v))) for v in (x, y))) for f in (xp.cos, xp.sin))
    either = xp.logical_or(xp.isinf(real), xp.isinf(imag))
    size = xp.where(either, xp.full_like(real, np.inf), xp.full_like(real, np.nan))
    return xp.complex(size, xp.atan2(imag, real))
