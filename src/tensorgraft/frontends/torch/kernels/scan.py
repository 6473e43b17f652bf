"""Scans: running sums, products and extremes. A 0-d tensor is one of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import at_least_1d, wide
from tensorgraft.frontends.torch.kernels.math.logarithms import complex_logaddexp
from tensorgraft.frontends.torch.kernels.reduction import summable
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _scan(method: str) -> Callable[..., Array]:
    def scan(xp: Any, x: Array, dim: int, dtype: np.dtype | None = None) -> Array:
        shape = xp.shape(x)
        x = at_least_1d(xp, summable(xp, x, dtype))
        return xp.reshape(getattr(xp, method)(x, axis=dim % xp.ndim(x)), shape)

    return scan


kernel("cumsum")(_scan("cumsum"))
kernel("cumprod")(_scan("cumprod"))


def _running(largest: bool) -> Callable[..., tuple[Array, Array]]:
    def scan(xp: Any, x: Array, dim: int) -> tuple[Array, Array]:
        shape, dtype = xp.shape(x), xp.dtype_of(x)
        x = at_least_1d(xp, x)
        if dtypes.is_bool(dtype):
            x = xp.astype(x, dtypes.uint8)
        extreme, indices = xp.running_extreme(x, dim % xp.ndim(x), largest)
        return xp.reshape(xp.astype(extreme, dtype), shape), xp.reshape(indices, shape)

    return scan


kernel("cummax")(_running(True))
kernel("cummin")(_running(False))


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
    """Compute logcumsumexp of complex numbers, one after the other."""

    def add(total: Array, x: Array) -> tuple[Array, Array]:
        out = complex_logaddexp(xp, x, total)  # for equal magnitudes the CPU takes the new one as the greater
        return out, out

    moved = xp.moveaxis(x, axis, 0)
    start = xp.full(xp.shape(moved)[1:], complex(-np.inf, 0.0), xp.dtype_of(x))
    return xp.moveaxis(xp.scan(add, start, moved, length=xp.shape(moved)[0])[1], 0, axis)
