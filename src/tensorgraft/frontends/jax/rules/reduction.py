"""Reductions and scans along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any


@rule("reduce_sum")
def reduce_sum(xp: Backend, x: Array, *, axes: Sequence[int], **_: Any) -> Array:
    return xp.sum(x, axis=tuple(axes))
