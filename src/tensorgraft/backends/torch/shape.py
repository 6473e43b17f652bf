"""Creation and layouts. What can be a view is one; updates are functional, so that they go through `torch.func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.backends.torch.elementwise import convert
from tensorgraft.backends.torch.precision import (
    LIMITED,
    arange,
    as_bits,
    elementwise_move,
    filled,
    from_bits,
    torch_dtype,
)
from tensorgraft.hub.array import NativeArray as Array

Shape = tuple[int, ...]
Tensor = torch.Tensor

_flipped = elementwise_move(torch.flip)
_EXACT = frozenset((torch.int64, torch.int32, torch.float32, torch.float64))  # dtypes that `arange` supports


def _padded(x: Tensor, value: Any, config: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return `x` padded with a Python scalar."""
    for axis, (_, _, interior) in enumerate(config):
        n = x.shape[axis]
        if interior and n > 1:
            axes_after = x.ndim - axis - 1
            padded = torch.constant_pad_nd(x.unsqueeze(axis + 1), (0, 0) * axes_after + (0, interior), value)
            x = padded.flatten(axis, axis + 1).narrow(axis, 0, n * (interior + 1) - interior)
    ends = [max(n, 0) for low, high, _ in reversed(config) for n in (low, high)]
    if any(ends):
        x = torch.constant_pad_nd(x, ends, value)
    if any(min(low, high) < 0 for low, high, _ in config):
        x = x[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(x.shape, config, strict=True))]
    return x


def _put(x: Tensor, update: Tensor, start: Shape, step: Shape, axis: int = 0) -> Tensor:
    """Return `x` with `update` written into it, one axis after the other."""
    while axis < x.ndim and update.shape[axis] == x.shape[axis]:
        axis += 1
    if axis == x.ndim:
        return update
    n, low, by = update.shape[axis], start[axis], step[axis]
    stop = low + (n - 1) * by + 1 if n else low
    inner = x[(slice(None),) * axis + (slice(low, stop, by),)]
    return torch.slice_scatter(x, _put(inner, update, start, step, axis + 1), axis, low, stop, by)


def _window_positions(start: Tensor, size: int, n: int) -> Tensor:
    """Positions of a window of `size` on an axis of `n`, clamped."""
    low = torch.clamp(convert(start, torch.int64), 0, n - size)
    return low + arange(size, dtype=torch.int64, device=start.device)


@elementwise_move
def _take_window(x: Tensor, start: Sequence[Tensor], sizes: Shape) -> Tensor:
    for axis, (at, size) in enumerate(zip(start, sizes, strict=True)):
        if size != x.shape[axis]:
            x = torch.index_select(x, axis, _window_positions(at, size, x.shape[axis]))
    return x


def _put_at(x: Tensor, update: Tensor, start: Sequence[Tensor], axis: int = 0) -> Tensor:
    while axis < x.ndim and update.shape[axis] == x.shape[axis]:
        axis += 1
    if axis == x.ndim:
        return update
    at = _window_positions(start[axis], update.shape[axis], x.shape[axis])
    inner = _put_at(torch.index_select(x, axis, at), update, start, axis + 1)
    return torch.index_copy(x, axis, at, inner)


class TorchShape:
    device: torch.device

    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Array:
        kind = torch_dtype(dtype)
        if isinstance(value, Tensor):
            return convert(value, kind).expand(shape).contiguous()
        return filled(shape, value, kind, self.device)

    def iota(self, n: int, dtype: np.dtype) -> Array:
        kind = torch_dtype(dtype)
        if kind in _EXACT:
            return arange(n, dtype=kind, device=self.device)
        return convert(arange(n, dtype=torch.int64, device=self.device), kind)

    def reshape(self, x: Array, shape: Shape, /) -> Array:
        return x.reshape(shape)

    def permute_dims(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return x.permute(axes)

    def broadcast_to(self, x: Array, shape: Shape, /) -> Array:
        return x.expand(shape)

    def concat(self, arrays: Sequence[Array], /, axis: int) -> Array:
        return torch.cat(list(arrays), axis)

    def pad(self, x: Array, value: Any, config: Sequence[tuple[int, int, int]], /) -> Array:
        dtype = x.dtype
        if not isinstance(value, Tensor) and dtype not in LIMITED:
            return _padded(x, value, config)
        if not isinstance(value, Tensor):
            value = filled((), value, dtype, x.device)
        is_operand = _padded(torch.ones_like(x, dtype=torch.bool), False, config)
        # `view` as a dtype has no derivative, also if it is that of the array
        return from_bits(torch.where(is_operand, _padded(as_bits(x), 0, config), as_bits(value)), dtype)

    def slice(self, x: Array, start: Shape, stop: Shape, step: Shape, /) -> Array:
        return x[tuple(map(slice, start, stop, step))]

    def slice_update(self, x: Array, update: Array, start: Shape, step: Shape, /) -> Array:
        return _put(x, update, start, step)

    def flip(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return _flipped(x, axes)

    def dynamic_slice(self, x: Array, start: Sequence[Array], sizes: Shape, /) -> Array:
        return _take_window(x, start, sizes)

    def dynamic_update_slice(self, x: Array, update: Array, start: Sequence[Array], /) -> Array:
        if x.dtype in LIMITED:
            return _put_at(as_bits(x), as_bits(update), start).view(x.dtype)
        return _put_at(x, update, start)

    # ---- composites ------------------------------------------------------------------------------------------------

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        return torch.stack(list(arrays), axis)

    def unstack(self, x: Array, axis: int = 0) -> list[Array]:
        return list(torch.unbind(x, axis))

    def expand_dims(self, x: Array, axis: int) -> Array:
        return x.unsqueeze(axis)

    def moveaxis(self, x: Array, source: int, target: int) -> Array:
        return x.movedim(source, target)

    def swapaxes(self, x: Array, a: int, b: int) -> Array:
        return x.transpose(a, b)

    def diagonal(self, x: Array, offset: int = 0) -> Array:
        return x.diagonal(offset, -2, -1)
