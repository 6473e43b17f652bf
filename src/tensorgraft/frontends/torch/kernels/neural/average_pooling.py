"""Means over windows, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import gradients, wide
from tensorgraft.frontends.torch.kernels.neural.pooling import intervals, output_extent, per_dimension
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _divisors(n: int, k: int, s: int, p: int, out: int, count_include_pad: bool) -> np.ndarray:
    """Return the number of places that each window along an axis counts."""
    start = np.arange(out) * s - p
    end = np.minimum(start + k, n + p)
    return end - start if count_include_pad else np.minimum(end, n) - np.maximum(start, 0)


def _divided(
    xp: Any, x: Array, d: int, counts: list[np.ndarray], divisor_override: int | None, dtype: np.dtype
) -> Array:
    if divisor_override is not None:
        by = np.asarray(divisor_override)
    else:
        by = np.ones((), np.int64)
        for axis, count in enumerate(counts):
            by = by * count.reshape([len(count) if a == axis else 1 for a in range(d)])
    if dtypes.is_integer(dtype):
        size = xp.integer_floor_divide(xp.abs(x), xp.asarray(np.abs(by).astype(dtype)))  # truncated, as C divides
        return xp.where(xp.not_equal(xp.less(x, 0), xp.asarray(by < 0)), xp.negative(size), size)
    if by.size and (by == by.flat[0]).all():
        return xp.divide(x, float(by.flat[0]))
    return xp.divide(x, xp.asarray(by.astype(dtype)))


def _avg_pool(d: int) -> Any:
    def pool(
        xp: Any,
        x: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        ndim, shape = xp.ndim(x), xp.shape(x)
        stride = stride or kernel_size
        ks, ss, ps = (per_dimension(v, d) for v in (kernel_size, stride, padding))
        pads, counts = [], []
        for n, k, s, p in zip(shape[-d:], ks, ss, ps, strict=True):
            out = output_extent(n, k, s, p, 1, ceil_mode)
            pads.append((p, (out - 1) * s + k - n - p))
            counts.append(_divisors(n, k, s, p, out, count_include_pad))
        wide = xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))
        lead = (1,) * (ndim - d)
        wide = xp.pad(wide, 0, [*[(0, 0, 0)] * (ndim - d), *((lo, hi, 0) for lo, hi in pads)])
        sums = xp.reduce_window(wide, "sum", lead + ks, lead + ss, [(0, 0)] * ndim, (1,) * ndim)
        return _divided(xp, sums, d, counts, divisor_override, xp.dtype_of(wide))

    return pool


def _repeated(xp: Any, x: Array, factors: tuple[int, ...]) -> Array:
    """Every element of the last axes repeated."""
    shape, d = xp.shape(x), len(factors)
    lead, rest = shape[:-d], shape[-d:]
    x = xp.reshape(x, (*lead, *(m for n in rest for m in (n, 1))))
    x = xp.broadcast_to(x, (*lead, *(m for n, k in zip(rest, factors, strict=True) for m in (n, k))))
    return xp.reshape(x, (*lead, *(n * k for n, k in zip(rest, factors, strict=True))))


def _avg_backward(d: int) -> Any:
    def backward(
        xp: Any,
        grad: Array,
        x: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Array:
        ndim, shape = xp.ndim(x), xp.shape(x)
        stride = stride or kernel_size
        ks, ss, ps = (per_dimension(v, d) for v in (kernel_size, stride, padding))
        pads, counts = [], []
        for n, out, k, s, p in zip(shape[-d:], xp.shape(grad)[-d:], ks, ss, ps, strict=True):
            counts.append(_divisors(n, k, s, p, out, count_include_pad))
            low = k - 1 - p
            pads.append((low, n + k - 1 - low - (out - 1) * s - 1, s - 1))
        wide = xp.astype(grad, dtypes.accumulator(xp.dtype_of(grad)))
        wide = _divided(xp, wide, d, counts, divisor_override, xp.dtype_of(wide))
        if (
            ks == ss
            and not any(ps)
            and all(n == o * k for n, o, k in zip(shape[-d:], xp.shape(grad)[-d:], ks, strict=True))
        ):
            return _repeated(xp, wide, ks)  # tiles: every place is in one window
        wide = xp.pad(wide, 0, [*[(0, 0, 0)] * (ndim - d), *pads])
        lead = (1,) * (ndim - d)
        return xp.reduce_window(wide, "sum", lead + ks, (1,) * ndim, [(0, 0)] * ndim, (1,) * ndim)

    return backward


def _adaptive_means(xp: Any, x: Array, axis: int, out: int) -> Array:
    """Return the means of windows, each of its own elements alone: infinities and NaN of others have no part."""
    starts, ends = intervals(xp.shape(x)[axis], out)
    before, trailing = xp.shape(x)[:axis], xp.shape(x)[axis + 1 :]
    steps = np.arange(int((ends - starts).max(initial=1)))
    positions = np.minimum(starts[:, None] + steps, ends[:, None] - 1)
    windows = xp.reshape(xp.take(x, xp.asarray(positions.reshape(-1)), axis), (*before, *positions.shape, *trailing))
    mask_shape = (*positions.shape, *(1 for _ in trailing))
    in_window = xp.asarray((steps < (ends - starts)[:, None]).reshape(mask_shape))
    counts = xp.asarray((ends - starts).astype(xp.dtype_of(x)).reshape(out, *(1 for _ in trailing)))
    return xp.divide(xp.sum(xp.where(in_window, windows, xp.zeros_like(windows)), axis=axis + 1), counts)


def _adaptive_avg(d: int) -> Any:
    def pool(xp: Any, x: Array, output_size: Sequence[int]) -> Array:
        wide = xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))
        for axis, out in zip(range(xp.ndim(x) - d, xp.ndim(x)), per_dimension(output_size, d), strict=True):
            shape = xp.shape(wide)
            n = shape[axis]
            if out and n % out == 0:
                wide = xp.mean(xp.reshape(wide, (*shape[:axis], out, n // out, *shape[axis + 1 :])), axis=axis + 1)
            else:
                wide = _adaptive_means(xp, wide, axis, out)
        return wide

    return pool


def _adaptive_avg_backward(d: int) -> Any:
    def backward(xp: Any, grad: Array, x: Array) -> Array:
        pool = _adaptive_avg(d)
        return gradients(xp, lambda inner, v: pool(inner, v, xp.shape(grad)[-d:]), (wide(xp, x),), wide(xp, grad))[0]

    return backward


for _d in (2, 3):
    kernel(f"avg_pool{_d}d")(_avg_pool(_d))
    kernel(f"avg_pool{_d}d_backward")(_avg_backward(_d))
    kernel(f"_adaptive_avg_pool{_d}d")(_adaptive_avg(_d))
    kernel(f"_adaptive_avg_pool{_d}d_backward")(_adaptive_avg_backward(_d))
