"""The greatest value in windows, and where it is.

A window is a product of intervals, so every pooling goes axis by axis: a sum of extents in place of their product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.bounds import within
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Ints = tuple[int, ...]


def per_dimension(values: Sequence[int], n: int) -> Ints:
    return tuple(values) * n if len(values) == 1 else tuple(values)


def output_extent(n: int, k: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Return the number of windows; with `ceil_mode` one may hang over the end, but none begins in the padding."""
    span = n + 2 * padding - dilation * (k - 1) - 1
    out = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= n + padding:
        out -= 1
    return out


Candidate = Callable[[Array], Array]  # from an array to what the j-th place of each window along one axis sees


def _best_along(
    xp: Any, values: Array, at: Array, pieces: Sequence[tuple[Candidate, Array | None, Array | None]]
) -> Any:
    """Return (greatest value, its position) along one axis; the first of equals, but the last NaN, as on the CPU.

    `pieces`: for each place in the windows what it sees, whether it is inside the image (None: everywhere), and
    whether it is the first place inside.
    """
    greatest = best_at = None
    low = dtypes.lowest(xp.dtype_of(values))
    for take, is_element, first in pieces:
        value, where = take(values), take(at)
        if is_element is not None:
            value = xp.where(is_element, value, xp.full_like(value, low))
        if greatest is None:
            greatest, best_at = value, where
            continue
        better = xp.greater(value, greatest)
        if dtypes.is_floating(xp.dtype_of(value)):
            better = xp.logical_or(better, xp.isnan(value))
        if first is not None:
            better = xp.logical_or(better, first)
        greatest = xp.where(better, value, greatest)
        best_at = xp.where(better, where, best_at)
    return greatest, best_at


def _flat_positions(xp: Any, spatial: Ints, ndim: int) -> Array:
    """Return int64 row-major positions in an image, with leading axes of extent 1."""
    at = xp.reshape(xp.iota(math.prod(spatial), dtypes.int64), spatial)
    return xp.reshape(at, (1,) * (ndim - len(spatial)) + spatial)


def _strided(xp: Any, axis: int, start: int, out: int, stride: int) -> Candidate:
    """Return `out` positions from `start` in steps of `stride`; those out of range are clipped to the nearest edge (and
    masked)."""

    def take_strided(x: Array) -> Array:
        n = xp.shape(x)[axis]
        if start >= 0 and start + (out - 1) * stride < n:
            return xp.take_slice(x, axis, start, start + (out - 1) * stride + 1, stride)
        at = np.clip(start + np.arange(out) * stride, 0, n - 1)
        return xp.take(x, xp.asarray(at), axis)

    return take_strided


def _window_pieces(
    xp: Any, ndim: int, axis: int, n: int, k: int, stride: int, pad: int, interior: int, out: int
) -> list[Any]:
    broadcast_shape = tuple(out if a == axis else 1 for a in range(ndim))
    positions = np.arange(out) * stride - pad + np.arange(k)[:, None] * interior
    in_bounds = (positions >= 0) & (positions < n)
    pieces = []
    for j in range(k):
        if not in_bounds[j].any():
            continue
        first = in_bounds[j] & ~in_bounds[:j].any(axis=0)
        pieces.append(
            (
                _strided(xp, axis, j * interior - pad, out, stride),
                None if in_bounds[j].all() else xp.asarray(in_bounds[j].reshape(broadcast_shape)),
                xp.asarray(first.reshape(broadcast_shape)) if first.any() else None,
            )
        )
    return pieces


def _max_pool(d: int) -> Any:
    def pool(
        xp: Any,
        x: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        ndim, shape = xp.ndim(x), xp.shape(x)
        stride = stride or kernel_size
        sizes = zip(*(per_dimension(v, d) for v in (kernel_size, stride, padding, dilation)), strict=True)
        at, axes = _flat_positions(xp, shape[-d:], ndim), range(ndim - d, ndim)
        for axis, (k, s, p, g) in reversed(list(zip(axes, sizes, strict=True))):
            n = shape[axis]
            out = output_extent(n, k, s, p, g, ceil_mode)
            x, at = _best_along(xp, x, at, _window_pieces(xp, ndim, axis, n, k, s, p, g, out))
        return x, xp.broadcast_to(at, xp.shape(x))

    return pool


kernel("max_pool2d_with_indices")(_max_pool(2))
kernel("max_pool3d_with_indices")(_max_pool(3))


def _scattered(xp: Any, grad: Array, indices: Array, shape: Ints, d: int) -> Array:
    """Return `grad` summed into zeros of `shape` at the flat positions in its last `d` axes."""
    batch, inner = math.prod(shape[: len(shape) - d]), math.prod(shape[len(shape) - d :])
    if not batch or not xp.size(grad):
        return xp.zeros(shape, xp.dtype_of(grad))
    wide = xp.reshape(xp.astype(grad, dtypes.accumulator(xp.dtype_of(grad))), (batch, xp.size(grad) // batch))
    at = xp.reshape(xp.astype(indices, dtypes.int64), xp.shape(wide))
    rows = xp.reshape(xp.iota(batch, dtypes.int64), (batch, 1))
    out = xp.scatter(xp.zeros((batch, inner), xp.dtype_of(wide)), (rows, at), wide, mode="add")
    return xp.reshape(out, shape)


def _max_backward(d: int) -> Any:
    """`rest`: the window, and last the indices."""
    return lambda xp, grad, x, *rest: _scattered(xp, grad, rest[-1], xp.shape(x), d)


kernel("max_pool2d_with_indices_backward")(_max_backward(2))
kernel("max_pool3d_with_indices_backward")(_max_backward(3))
kernel("adaptive_max_pool2d_backward", "fractional_max_pool2d_backward")(_max_backward(2))
kernel("adaptive_max_pool3d_backward")(_max_backward(3))
kernel("fractional_max_pool3d_backward", meta=lambda grad, x, *rest: torch.empty_like(x))(_max_backward(3))


def intervals(n: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, ends) of the windows of an adaptive pooling."""
    i = np.arange(out)
    return i * n // max(out, 1), -((-(i + 1) * n) // max(out, 1))


def _adaptive_max(d: int) -> Any:
    def pool(xp: Any, x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
        ndim, shape = xp.ndim(x), xp.shape(x)
        at = _flat_positions(xp, shape[-d:], ndim)
        for axis, out in reversed(list(zip(range(ndim - d, ndim), per_dimension(output_size, d), strict=True))):
            n = shape[axis]
            if out and n % out == 0:
                pieces = _window_pieces(xp, ndim, axis, n, n // out, n // out, 0, 1, out)
            else:
                starts, ends = intervals(n, out)
                positions = [np.minimum(starts + j, ends - 1) for j in range(int((ends - starts).max(initial=1)))]
                pieces = [
                    ((lambda v, p=p, axis=axis: xp.take(v, xp.asarray(p), axis)), None, None) for p in positions
                ]  # the last place again does not win against itself
            x, at = _best_along(xp, x, at, pieces)
        return x, xp.broadcast_to(at, xp.shape(x))

    return pool


kernel("adaptive_max_pool2d")(_adaptive_max(2))
kernel("adaptive_max_pool3d")(_adaptive_max(3))


def _fractional_max(d: int) -> Any:
    """Graham 2014. `samples` (N, C, d) in [0, 1) shift the windows; in two dimensions the last axis takes the first."""

    def pool(
        xp: Any, x: Array, kernel_size: Sequence[int], output_size: Sequence[int], samples: Array
    ) -> tuple[Array, Array]:
        ndim, shape = xp.ndim(x), xp.shape(x)
        lead = shape[: ndim - d]
        if ndim == d + 1:  # one image: the first samples, whatever there is
            samples = xp.take_slice(samples, 0, 0, 1)
        at = xp.broadcast_to(_flat_positions(xp, shape[-d:], ndim), shape)
        for i in reversed(range(d)):
            axis, n, k, out = ndim - d + i, shape[ndim - d + i], kernel_size[i], output_size[i]
            t = d - 1 - i if d == 2 else i
            u = xp.reshape(xp.take_slice(samples, -1, t, t + 1), (*lead, *(1,) * d))
            u = xp.astype(u, dtypes.accumulator(xp.dtype_of(u)))
            starts = _fractional_starts(xp, u, n, k, out, tuple(out if a == axis else 1 for a in range(ndim)))
            pieces = [(_shifted(xp, axis, starts, j), None, None) for j in range(k)]
            x, at = _best_along(xp, x, at, pieces)
        return x, at

    return pool


def _shifted(xp: Any, axis: int, starts: Array, j: int) -> Candidate:
    """Return a function that takes the elements at place `j` of the windows that begin at `starts`."""

    def take_shifted(x: Array) -> Array:
        shape = list(xp.shape(x))
        shape[axis] = xp.shape(starts)[axis]
        return xp.take_along_axis(x, xp.broadcast_to(xp.add(starts, j), tuple(shape)), axis)

    return take_shifted


def _fractional_starts(xp: Any, u: Array, n: int, k: int, out: int, broadcast_shape: Ints) -> Array:
    """Return int64 first places of the windows; the last window ends with the image."""
    dtype = xp.dtype_of(u)
    i = xp.reshape(xp.astype(xp.iota(out, dtypes.int64), dtype), broadcast_shape)
    alpha = xp.full((), (n - k) / (out - 1) if out > 1 else 0.0, dtype)
    first, shift = (xp.astype(xp.multiply(v, alpha), dtypes.int64) for v in (xp.add(i, u), u))
    last = xp.reshape(xp.equal(xp.iota(out, dtypes.int64), out - 1), broadcast_shape)
    return xp.where(last, xp.full((), n - k, dtypes.int64), xp.subtract(first, shift))


kernel("fractional_max_pool2d")(_fractional_max(2))
kernel("fractional_max_pool3d")(_fractional_max(3))


@kernel("max_unpool2d", "max_unpool3d")
def _max_unpool(xp: Any, x: Array, indices: Array, output_size: list[int], *_: Any) -> Array:
    """Put each value at the position of its maximum, with zeros elsewhere (`output_size` already includes stride and
    padding)."""
    lead, n = xp.shape(x)[: -len(output_size)], math.prod(output_size)
    volumes = "x".join(map(str, output_size))
    at = within(xp, indices, n, lambda value: RuntimeError(
        f"Found an invalid max index: {value} (output volumes are of size {volumes})"
    ))  # fmt: skip
    rows, columns = math.prod(lead), math.prod(xp.shape(x)[-len(output_size) :])
    flat = xp.zeros((rows, n), xp.dtype_of(x))
    if rows and columns and n:
        flat = xp.put_along_axis(flat, xp.reshape(at, (rows, columns)), xp.reshape(x, (rows, columns)), 1)
    return xp.reshape(flat, (*lead, *output_size))
