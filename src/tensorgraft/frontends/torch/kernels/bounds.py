"""Indices. PyTorch takes negative ones in some operators and refuses those out of range; the hub does neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators

Refusal = Callable[[int], Exception]  # the error about one index


def out_of_bounds(kind: type[Exception], dim: int, n: int, prefix: str = "") -> Refusal:
    """ATen's words about an index that is out of range for an axis of extent `n`."""
    return lambda value: kind(f"{prefix}index {value} is out of bounds for dimension {dim} with size {n}")


@with_operators
def within(xp: Any, index: Value, n: int, refuse: Refusal, wrap: bool = False) -> Value:
    """Return `index` as int64 in [0, n); negative ones count from the end where `wrap`. Raises the error that `refuse`
    returns."""
    index = xp.astype(index, dtypes.int64)
    if not xp.size(index):
        return index
    low, size = -n if wrap else 0, xp.size(index)
    flat = xp.reshape(index, (size,))
    is_invalid = (flat < low) | (flat >= n)
    # the first bad one, as the CPU reports it; the last of all where there is none
    first = xp.min(xp.where(is_invalid, xp.iota(size, dtypes.int64), xp.full((), size - 1, dtypes.int64)))

    def verify(first_index: np.ndarray) -> None:
        if not low <= int(first_index) < n:
            raise refuse(int(first_index))

    check(xp, xp.gather(flat, (first,)), verify)
    return xp.where(index < 0, index + n, index) if wrap else index
