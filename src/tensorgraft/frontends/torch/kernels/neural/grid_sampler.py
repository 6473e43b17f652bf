"""Values of images at the points of a grid (`F.grid_sample`), and the gradients of images and grids.

Along each axis a value is a weighted sum of one (nearest), two (linear) or four (cubic) pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import gradients, wide
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


class Tap(NamedTuple):
    position: Value  # int64, inside the image
    weight: Value
    in_bounds: Value  # False where the pixel is outside of the image, and so counts as 0


@with_operators
def _clipped(xp: Any, x: Value, n: int) -> Value:
    """Return `x` within the image, with no derivative at its edges."""
    edge = xp.where(x > 0, xp.full_like(x, n - 1), xp.zeros_like(x))
    return xp.where((x > 0) & (x < n - 1), x, edge)


def _reflected(xp: Any, x: AnyArray, n: int, align_corners: bool) -> AnyArray:
    """Return `x` reflected at the edges until it is inside."""
    low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
    if span <= 0:
        return xp.zeros_like(x)
    offset = xp.subtract(x, low)
    offset = xp.where(xp.less(offset, 0), xp.negative(offset), offset)
    extra = xp.fmod(offset, xp.full_like(offset, span))
    odd = xp.not_equal(xp.fmod(xp.floor(xp.divide(offset, span)), xp.full_like(offset, 2.0)), 0)
    return xp.add(xp.where(odd, xp.subtract(span, extra), extra), low)


def _padded(xp: Any, x: AnyArray, n: int, padding: int, align_corners: bool) -> AnyArray:
    if padding == REFLECTION:
        x = _reflected(xp, x, n, align_corners)
    return x if padding == ZEROS else _clipped(xp, x, n)


def _tap(xp: Any, at: Value, weight: Value, n: int) -> Tap:
    """Return the tap at an integral position."""
    in_bounds = (at >= 0) & (at <= n - 1)
    position = xp.astype(xp.where(in_bounds, at, xp.zeros_like(at)), dtypes.int64)
    return Tap(position, weight, in_bounds)


def _cubic(xp: Any, t: Value, offset: int) -> Value:
    """Return the weight of the pixel at `offset` from the one below the point (Keys 1981, a = -0.75)."""
    a, d = -0.75, abs(t - offset)
    if offset in (0, 1):
        return (d * (a + 2) - (a + 3)) * d * d + 1
    inner = (d - 5) * d + 8
    return (inner * d - 4) * a


_NOWHERE = -100.0  # outside of every image: PyTorch's CPU kernels replace NaN coordinates in volumes by this
_MOST = 2.0**31 - 2  # the largest coordinate that is not replaced


def _pixel_coordinates(xp: Any, x: Value, n: int, padding: int, align_corners: bool, nan_position: float) -> Value:
    """Return positions in a volume; NaN becomes `nan_position`, and so do far positions without padding."""
    padded = _padded(xp, x, n, padding, align_corners)
    if padding == ZEROS:
        return xp.where(abs(x) <= _MOST, padded, xp.full_like(x, _NOWHERE))
    unplaced = xp.isnan(x) if padding == BORDER else ~xp.isfinite(x)
    return xp.where(unplaced, xp.full_like(x, nan_position), padded)


def _taps(
    xp: Any, g: Value, n: int, mode: int, pad: int, align_corners: bool, nan_at: float | None = None
) -> list[Tap]:
    """Return the taps that grid coordinates `g` (-1 ... 1) read along an axis of extent n. `nan_at`: the position for
    NaN in a volume."""
    by = (n - 1) / 2 if align_corners else n / 2
    x = (g + 1) * by if align_corners else (g + 1) * by - 0.5
    if mode == CUBIC:
        floor = xp.floor(x)
        t = x - floor
        rounded = {k: xp.round(_padded(xp, floor + k, n, pad, align_corners)) for k in range(-1, 3)}
        return [_tap(xp, at, _cubic(xp, t, k), n) for k, at in rounded.items()]
    x = (
        _padded(xp, x, n, pad, align_corners)
        if nan_at is None
        else _pixel_coordinates(xp, x, n, pad, align_corners, nan_at)
    )
    if mode == NEAREST:
        return [_tap(xp, xp.round(x), xp.ones_like(x), n)]
    floor = xp.floor(x)
    t = x - floor
    return [_tap(xp, floor, 1 - t, n), _tap(xp, floor + 1, t, n)]


@kernel("grid_sampler_2d", "grid_sampler_3d")
@with_operators
def _grid_sampler(
    xp: Any, x: Value, grid: Value, mode: int, padding: int, align_corners: bool, backward: bool = False
) -> Value:
    """Compute `F.grid_sample`. NaN and infinite coordinates are treated as by PyTorch's CPU kernels: in images they
    make the weight NaN (times 0 outside of the image), in volumes they are replaced by fixed positions, which differ
    in the backward pass."""
    n, c, *spatial = x.shape
    d, out = len(spatial), grid.shape[1:-1]
    coordinates = xp.reshape(wide(xp, grid), (n, math.prod(out), d))
    axes = []
    for k, extent in enumerate(spatial):  # the last coordinate is the first axis
        g = xp.squeeze(xp.take_slice(coordinates, 2, d - 1 - k, d - k), 2)
        nan_position = None if d == 2 else _NOWHERE if backward else extent - 1.0
        axes.append(_taps(xp, g, extent, mode, padding, align_corners, nan_position))
    pixels = xp.permute_dims(xp.reshape(wide(xp, x), (n, c, math.prod(spatial))), (0, 2, 1))
    rows, total = xp.reshape(xp.iota(n, dtypes.int64), (n, 1)), None
    for taps in itertools.product(*axes):
        position, weight, in_bounds = taps[0]
        for extent, tap in zip(spatial[1:], taps[1:], strict=True):
            position, weight = position * extent + tap.position, weight * tap.weight
            in_bounds = in_bounds & tap.in_bounds
        part = xp.gather(pixels, (rows, position))
        part = xp.where(xp.expand_dims(in_bounds, 2), part, xp.zeros_like(part))
        part = part * xp.expand_dims(weight, 2)
        total = part if total is None else total + part
    return xp.reshape(xp.permute_dims(total, (0, 2, 1)), (n, c, *out))


def _grid_sampler_backward(
    xp: Any, grad: Array, x: Array, grid: Array, mode: int, padding: int, align_corners: bool, mask: Sequence[bool]
) -> tuple[Array | None, ...]:
    operands = wide(xp, x), wide(xp, grid)
    wanted = [k for k in (0, 1) if mask[k]]

    def sampled(inner: Any, *values: Array) -> Array:
        pair = [values[wanted.index(k)] if k in wanted else inner.lifted(operands[k]) for k in (0, 1)]
        return _grid_sampler(inner, *pair, mode, padding, align_corners, True)

    slopes = gradients(xp, sampled, [operands[k] for k in wanted], wide(xp, grad)) if wanted else ()
    return tuple(slopes[wanted.index(k)] if k in wanted else None for k in (0, 1))


for _d in (2, 3):
    _op = getattr(torch.ops.aten, f"grid_sampler_{_d}d_backward").default
    kernel(f"grid_sampler_{_d}d_backward", meta=masked(_op))(_grid_sampler_backward)
