"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.backends.torch.precision import as_bits, from_bits, from_ordered, ordered, widen

Array = Any
Tensor = torch.Tensor


def _order(key: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """(sorted, positions)."""
    values, at = torch.sort(ordered(key), dim=axis, stable=True)
    return from_ordered(values, key.dtype), at


def _along(x: Tensor, at: Tensor, axis: int) -> Tensor:
    return from_bits(torch.gather(as_bits(x), axis, at), x.dtype)


class TorchSorting:
    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        first, *others = operands
        if num_keys == 1:
            values, at = _order(first, axis)
            return (values, *(_along(x, at, axis) for x in others))
        at = _order(operands[num_keys - 1], axis)[1]  # stable sorts by one key after the other, the last key first
        for key in reversed(operands[: num_keys - 1]):
            at = torch.gather(at, axis, _order(_along(key, at, axis), axis)[1])
        return tuple(_along(x, at, axis) for x in operands)

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        boundaries, values = (widen(ordered(x)).contiguous() for x in (boundaries, values))
        return torch.searchsorted(boundaries, values, right=right)

    # ---- composites ------------------------------------------------------------------------------------------------

    def sort_with_indices(self, x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
        if not descending:
            return _order(x, axis)
        values, at = torch.sort(ordered(x), dim=axis, stable=True, descending=True)
        return from_ordered(values, x.dtype), at
