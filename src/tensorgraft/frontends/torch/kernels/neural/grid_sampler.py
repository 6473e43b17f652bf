"""Images read at the places of a grid (`F.grid_sample`), and the gradients in both.

Along each axis a place reads a few pixels: one (nearest), two (linear) or four (cubic), each with a weight and the
weight's derivative in the place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.hub import dtypes

Array = Any
LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


class Tap(NamedTuple):
    place: Array  # int64, inside the image
    weight: Array
    slope: Array


def _clipped(xp: Any, x: Array, n: int) -> tuple[Array, Array]:
    """(x within the image, the derivative)."""
    inside = xp.logical_and(xp.greater(x, 0), xp.less(x, n - 1))
    return xp.clip(xp.where(xp.isnan(x), xp.zeros_like(x), x), 0, n - 1), xp.astype(inside, xp.dtype_of(x))


def _reflected(xp: Any, x: Array, n: int, align_corners: bool) -> tuple[Array, Array]:
    """(x reflected at the edges until it is inside, the derivative)."""
    low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
    if span <= 0:
        return xp.zeros_like(x), xp.zeros_like(x)
    off = xp.subtract(x, low)
    negative = xp.less(off, 0)
    off = xp.abs(off)
    extra = xp.fmod(off, xp.full_like(off, span))
    odd = xp.not_equal(xp.fmod(xp.floor(xp.divide(off, span)), xp.full_like(off, 2.0)), 0)
    one = xp.ones_like(x)
    slope = xp.where(xp.not_equal(negative, odd), xp.negative(one), one)
    return xp.add(xp.where(odd, xp.subtract(span, extra), extra), low), slope


def _padded(xp: Any, x: Array, n: int, padding: int, align_corners: bool) -> tuple[Array, Array]:
    if padding == BORDER:
        return _clipped(xp, x, n)
    if padding == REFLECTION:
        x, first = _reflected(xp, x, n, align_corners)
        x, second = _clipped(xp, x, n)
        return x, xp.multiply(first, second)
    return x, xp.ones_like(x)


def _tap(xp: Any, at: Array, weight: Array, slope: Array, n: int) -> Tap:
    """A pixel at an integral place; outside of the image it weighs nothing."""
    inside = xp.logical_and(xp.greater_equal(at, 0), xp.less_equal(at, n - 1))
    place = xp.astype(xp.where(inside, at, xp.zeros_like(at)), dtypes.int64)
    zero = xp.zeros_like(weight)
    return Tap(place, xp.where(inside, weight, zero), xp.where(inside, slope, zero))


def _cubic(xp: Any, t: Array, offset: int) -> tuple[Array, Array]:
    """(weight, its derivative in t) of the pixel `offset` away (Keys 1981, a = -0.75)."""
    a, d = -0.75, xp.abs(xp.subtract(t, offset))
    sign = xp.where(xp.less(t, offset), xp.full_like(t, -1.0), xp.ones_like(t))
    if offset in (0, 1):
        weight = xp.add(xp.multiply(xp.multiply(xp.subtract(xp.multiply(d, a + 2), a + 3), d), d), 1)
        slope = xp.multiply(xp.subtract(xp.multiply(d, 3 * (a + 2)), 2 * (a + 3)), d)
    else:
        inner = xp.add(xp.multiply(xp.subtract(d, 5), d), 8)
        weight = xp.multiply(xp.subtract(xp.multiply(inner, d), 4), a)
        slope = xp.multiply(xp.add(xp.multiply(xp.subtract(xp.multiply(d, 3), 10), d), 8), a)
    return weight, xp.multiply(slope, sign)


def _taps(xp: Any, g: Array, n: int, mode: int, padding: int, align_corners: bool) -> list[Tap]:
    """What the grid coordinates `g` (-1 ... 1) read along an axis of extent n; slopes are in `g`."""
    by = (n - 1) / 2 if align_corners else n / 2
    x = xp.multiply(xp.add(g, 1), by) if align_corners else xp.subtract(xp.multiply(xp.add(g, 1), by), 0.5)
    if mode == CUBIC:
        floor = xp.floor(x)
        found = []
        for offset in range(-1, 3):
            weight, slope = _cubic(xp, xp.subtract(x, floor), offset)
            at = _padded(xp, xp.add(floor, offset), n, padding, align_corners)[0]
            found.append(_tap(xp, xp.round(at), weight, xp.multiply(slope, by), n))
        return found
    x, slope = _padded(xp, x, n, padding, align_corners)
    slope = xp.multiply(slope, by)
    if mode == NEAREST:
        return [_tap(xp, xp.round(x), xp.ones_like(x), xp.zeros_like(x), n)]
    floor = xp.floor(x)
    t = xp.subtract(x, floor)
    return [
        _tap(xp, floor, xp.subtract(1, t), xp.negative(slope), n),
        _tap(xp, xp.add(floor, 1), t, slope, n),
    ]


class Sampling(NamedTuple):
    """The taps of every axis, (N, Q) for Q places, and the image as (N, P, C)."""

    axes: list[list[Tap]]
    pixels: Array
    rows: Array  # (N, 1)
    spatial: tuple[int, ...]

    def corners(self, xp: Any) -> list[tuple[tuple[Tap, ...], Array]]:
        """Every combination of taps, and its flat place (N, Q)."""
        found = []
        for taps in itertools.product(*self.axes):
            place = taps[0].place
            for n, tap in zip(self.spatial[1:], taps[1:], strict=True):
                place = xp.add(xp.multiply(place, n), tap.place)
            found.append((taps, place))
        return found


def _sampling(xp: Any, x: Array, grid: Array, mode: int, padding: int, align_corners: bool) -> Sampling:
    n, c, *spatial = xp.shape(x)
    d = len(spatial)
    q = math.prod(xp.shape(grid)[1:-1])
    places = xp.reshape(xp.astype(grid, dtypes.accumulator(xp.dtype_of(grid))), (n, q, d))
    axes = []
    for k, extent in enumerate(spatial):  # the last coordinate is the first axis
        g = xp.squeeze(xp.take_slice(places, 2, d - 1 - k, d - k), 2)
        axes.append(_taps(xp, g, extent, mode, padding, align_corners))
    wide = xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))
    pixels = xp.permute_dims(xp.reshape(wide, (n, c, math.prod(spatial))), (0, 2, 1))
    return Sampling(axes, pixels, xp.reshape(xp.iota(n, dtypes.int64), (n, 1)), tuple(spatial))


def _product(xp: Any, factors: Sequence[Array]) -> Array:
    total = factors[0]
    for factor in factors[1:]:
        total = xp.multiply(total, factor)
    return xp.expand_dims(total, 2)


@kernel("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    xp: Any, x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    of = _sampling(xp, x, grid, interpolation_mode, padding_mode, align_corners)
    total = None
    for taps, place in of.corners(xp):
        part = xp.multiply(xp.gather(of.pixels, (of.rows, place)), _product(xp, [tap.weight for tap in taps]))
        total = part if total is None else xp.add(total, part)
    n, c = xp.shape(x)[:2]
    return xp.reshape(xp.permute_dims(total, (0, 2, 1)), (n, c, *xp.shape(grid)[1:-1]))


def _grid_sampler_backward(
    xp: Any,
    grad: Array,
    x: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    mask: Sequence[bool],
) -> tuple[Array | None, Array | None]:
    of = _sampling(xp, x, grid, interpolation_mode, padding_mode, align_corners)
    n, c = xp.shape(x)[:2]
    d = len(of.spatial)
    q = xp.shape(of.axes[0][0].place)[1]
    grads = xp.permute_dims(xp.reshape(xp.astype(grad, xp.dtype_of(of.pixels)), (n, c, q)), (0, 2, 1))
    grad_pixels, slopes = xp.zeros_like(of.pixels), [xp.zeros((n, q), xp.dtype_of(grads)) for _ in range(d)]
    for taps, place in of.corners(xp):
        weights = [tap.weight for tap in taps]
        if mask[0]:
            part = xp.multiply(grads, _product(xp, weights))
            grad_pixels = xp.scatter(grad_pixels, (of.rows, place), part, mode="add")
        if mask[1] and interpolation_mode != NEAREST:
            value = xp.sum(xp.multiply(xp.gather(of.pixels, (of.rows, place)), grads), axis=2, keepdims=True)
            for k in range(d):
                factor = _product(
                    xp, [tap.slope if j == k else w for j, (tap, w) in enumerate(zip(taps, weights, strict=True))]
                )
                slopes[k] = xp.add(slopes[k], xp.squeeze(xp.multiply(value, factor), 2))
    grad_x = xp.reshape(xp.permute_dims(grad_pixels, (0, 2, 1)), xp.shape(x))
    grad_grid = xp.reshape(xp.stack(slopes[::-1], axis=2), xp.shape(grid))
    return grad_x if mask[0] else None, grad_grid if mask[1] else None


for _d in (2, 3):
    _op = getattr(torch.ops.aten, f"grid_sampler_{_d}d_backward").default
    kernel(f"grid_sampler_{_d}d_backward", meta=masked(_op))(_grid_sampler_backward)
