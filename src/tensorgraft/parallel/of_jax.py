"""Arrays of JAX programs on a mesh."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub import registry
from tensorgraft.hub.array import Array
from tensorgraft.hub.placement import Mesh, Placement


def shard(x: Array, mesh: Mesh, placement: Placement) -> Array:
    return constrain(x, placement)


def own(x: Array, mesh: Mesh) -> Any:
    """Return an array that this process has for itself; None for one that is spread already, or being traced."""
    xp = registry.get("jax")
    return None if xp.is_traced(x) or xp.placement(x) is not None else x


def assembled(x: Array, mesh: Mesh, placement: Placement) -> Array:
    return registry.get("jax").assembled(x, placement)


def constrain(x: Array, placement: Placement) -> Array:
    if placement.mesh.backend != "jax":
        raise ValueError(f"constrain: a jax.Array cannot be placed on the {placement.mesh}")
    return registry.get("jax").constrain(x, placement)


def mesh_of(x: Array) -> Mesh | None:
    where = placement(x)
    return None if where is None else where.mesh


def placement(x: Array) -> Placement | None:
    return registry.get("jax").placement(x)


def bytes_by_device(x: Array) -> tuple[int, dict[int, int]]:
    return id(x), registry.get("jax").bytes_by_device(x)
