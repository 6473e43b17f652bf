"""Meshes and placements in JAX's words and in the hub's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tensorgraft.hub.placement import Mesh, Placement


@functools.lru_cache(maxsize=256)
def mesh_of(mesh: Mesh, platform: str) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
    if mesh.abstract:
        return jax.sharding.AbstractMesh(mesh.shape, mesh.names)
    by_id = {d.id: d for d in jax.devices(platform)}
    return jax.sharding.Mesh(np.array([by_id[i] for i in mesh.ids]).reshape(mesh.shape), mesh.names)


@functools.lru_cache(maxsize=4096)
def sharding_of(placement: Placement, platform: str) -> NamedSharding:
    entries: list[Any] = [names[0] if len(names) == 1 else names or None for names in placement.spec]
    for d in placement.free:
        entries[d] = PartitionSpec.UNCONSTRAINED
    return NamedSharding(mesh_of(placement.mesh, platform), PartitionSpec(*entries))


@functools.lru_cache(maxsize=4096)
def lies_so(current: Any, placement: Placement, platform: str) -> bool:
    """Return True if a sharding is the one of a placement. Called for every array that a step writes."""
    wanted_sharding = sharding_of(placement, platform)
    if not isinstance(current, NamedSharding) or current.mesh != wanted_sharding.mesh:
        return False
    return current.spec == wanted_sharding.spec or bool(current.is_equivalent_to(wanted_sharding, len(placement.spec)))


@functools.lru_cache(maxsize=4096)
def placement_of(sharding: NamedSharding, ndim: int, backend: str) -> Placement:
    jax_mesh = sharding.mesh
    ids = tuple(d.id for d in jax_mesh.devices.flat)
    mesh = Mesh(tuple(jax_mesh.devices.shape), tuple(map(str, jax_mesh.axis_names)), backend, ids)
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in sharding.spec]
    return Placement(mesh, (*entries, *[()] * (ndim - len(entries))))


def on_several_meshes(error: Exception, args: Sequence[Any]) -> ValueError | None:
    """Return the error to raise in place of JAX's for arrays that lie on different devices, or on meshes whose axes do
    not go together; None for other errors."""
    if "incompatible devices" not in str(error) and type(error).__name__ != "IndivisibleError":
        return None
    meshes: dict[str, str] = {}
    for x in jax.tree.leaves(list(args)):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding):
            where = str(placement_of(sharding, x.ndim, "jax"))
        else:
            where = "on one device" if sharding is not None else ""
        if where:
            meshes.setdefault(where, f"{x.dtype}{list(x.shape)} {where}")
    if len(meshes) < 2 and "sharding_constraint" not in str(error):
        return None
    constraint_hint = "; a value on the way is constrained to another one" if len(meshes) < 2 else ""
    return ValueError(
        f"operands lie on different meshes: {'; '.join(meshes.values())}{constraint_hint}. Place them on one:"
        " tg.parallel.shard(x, mesh, spec), or tg.parallel.replicate(x, mesh)"
    )
