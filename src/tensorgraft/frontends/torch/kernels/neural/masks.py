"""Gradients that are not asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def masked(op: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Return the meta function of a backward operator that leaves out the results that its `output_mask` leaves out, as
    the CPU does."""

    def meta(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        mask = next(a for a in reversed((*args, *kwargs.values())) if isinstance(a, list | tuple) and _flags(a))
        return tuple(out if keep else None for out, keep in zip(op(*args, **kwargs), mask, strict=True))

    return meta


def _flags(a: Any) -> bool:
    return len(a) > 0 and all(isinstance(x, bool) for x in a)
