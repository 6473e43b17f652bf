"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorgraft.backends.torch.elementwise import convert
from tensorgraft.backends.torch.precision import arange, as_bits, from_bits, from_ordered, ordered, widen
from tensorgraft.hub.array import NativeArray as Array

Tensor = torch.Tensor


def _order(key: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return (sorted, positions)."""
    values, at = torch.sort(ordered(key), dim=axis, stable=True)
    return from_ordered(values, key.dtype), at


def _integers(x: Tensor) -> Tensor | None:
    """Return int64 of 32 bits in the order of `x` (NaN greatest, zeros equal); None where it has more bits."""
    if x.dtype.itemsize > 4 or x.dtype.is_complex:
        return None
    if not x.dtype.is_floating_point:
        return convert(x, torch.int64) - (2**31 if x.dtype == torch.uint32 else 0)
    wide = x.to(torch.float32) + 0.0  # -0.0 becomes 0.0
    bits = wide.view(torch.int32).to(torch.int64)
    order = torch.where(bits < 0, bits ^ (2**31 - 1), bits)
    return torch.where(torch.isnan(wide), 2**31 - 1, order)


def _ranks(x: Tensor) -> Tensor:
    """Integers in the order of floats: to `torch.searchsorted` NaN is in no order, and less than everything."""
    if not x.dtype.is_floating_point:
        return x
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    bits, greatest = (x + 0.0).view(integers), torch.iinfo(integers).max  # -0.0 becomes 0.0
    return torch.where(torch.isnan(x), greatest, torch.where(bits < 0, bits ^ greatest, bits))


def _take_along_axis(x: Tensor, at: Tensor, axis: int) -> Tensor:
    return from_bits(torch.gather(as_bits(x), axis, at), x.dtype)


class TorchSorting:
    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        first, *rest = operands
        if num_keys == 1:
            values, at = _order(first, axis)
            return (values, *(_take_along_axis(x, at, axis) for x in rest))
        at = _order(operands[num_keys - 1], axis)[1]  # stable sorts by one key after the other, the last key first
        for key in reversed(operands[: num_keys - 1]):
            at = torch.gather(at, axis, _order(_take_along_axis(key, at, axis), axis)[1])
        return tuple(_take_along_axis(x, at, axis) for x in operands)

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        boundaries, values = (_ranks(widen(ordered(x))).contiguous() for x in (boundaries, values))
        return torch.searchsorted(boundaries, values, right=right)

    # ---- composites ------------------------------------------------------------------------------------------------

    def sort_with_indices(self, x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
        if not descending:
            return _order(x, axis)
        values, at = torch.sort(ordered(x), dim=axis, stable=True, descending=True)
        return from_ordered(values, x.dtype), at

    def top_k(self, x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
        n = x.shape[axis]
        key = _integers(x) if k < n < 1 << 31 else None
        if key is None:
            values, at = self.sort_with_indices(x, axis, descending=largest)
            return values.narrow(axis, 0, k), at.narrow(axis, 0, k)
        # `torch.topk` takes any of equal elements: the position, below the key, makes them different
        axes_after = [1] * (x.ndim - axis % x.ndim - 1)
        axis_positions = arange(n, dtype=torch.int64, device=x.device).reshape(n, *axes_after)
        rank = (key << 32) | ((n - 1 - axis_positions) if largest else axis_positions)
        picked = torch.topk(rank, k, dim=axis, largest=largest)[0] & (2**32 - 1)
        at = n - 1 - picked if largest else picked
        return _take_along_axis(x, at, axis), at
