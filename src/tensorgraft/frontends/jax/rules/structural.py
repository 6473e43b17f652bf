"""Primitives that move elements: shapes, slices, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any


@rule("broadcast_in_dim")
def broadcast_in_dim(
    xp: Backend, x: Array, *dynamic_shape: Array, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any
) -> Array:
    wide = [1] * len(shape)
    for axis, extent in zip(broadcast_dimensions, xp.shape(x), strict=True):
        wide[axis] = extent
    return xp.broadcast_to(xp.reshape(x, tuple(wide)), tuple(shape))


@rule("transpose")
def transpose(xp: Backend, x: Array, *, permutation: Sequence[int], **_: Any) -> Array:
    return xp.permute_dims(x, tuple(permutation))
