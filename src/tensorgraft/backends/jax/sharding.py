"""Arrays spread over a mesh of devices: `jax.sharding`, and GSPMD does the rest."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding, PartitionSpec

from tensorgraft.backends.jax.operation import Tracer, is_tracing
from tensorgraft.hub.placement import Mesh, Placement

Array = Any


@functools.lru_cache(maxsize=256)
def mesh_of(mesh: Mesh, platform: str) -> jax.sharding.Mesh:
    by_id = {d.id: d for d in jax.devices(platform)}
    return jax.sharding.Mesh(np.array([by_id[i] for i in mesh.ids]).reshape(mesh.shape), mesh.names)


@functools.lru_cache(maxsize=4096)
def sharding_of(placement: Placement, platform: str) -> NamedSharding:
    entries = [names[0] if len(names) == 1 else names or None for names in placement.spec]
    return NamedSharding(mesh_of(placement.mesh, platform), PartitionSpec(*entries))


@functools.lru_cache(maxsize=4096)
def placement_of(sharding: NamedSharding, ndim: int, backend: str) -> Placement:
    there = sharding.mesh
    ids = tuple(d.id for d in there.devices.flat)
    mesh = Mesh(tuple(there.devices.shape), tuple(map(str, there.axis_names)), backend, ids)
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in sharding.spec]
    return Placement(mesh, tuple([*entries, *[()] * (ndim - len(entries))]))


class JaxSharding:
    if TYPE_CHECKING:
        device: Any
        name: str

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        if not isinstance(x, jax.Array):  # a transform of ours has lent the storage its variable
            return x
        sharding = sharding_of(placement, self.device.platform)
        if isinstance(x, Tracer):
            return lax.with_sharding_constraint(x, sharding)
        if x.sharding == sharding or x.sharding.is_equivalent_to(sharding, x.ndim):
            return x
        return lax.with_sharding_constraint(x, sharding) if is_tracing() else jax.device_put(x, sharding)

    def mesh_ids(self, count: int, /) -> tuple[int, ...] | None:
        devices = jax.devices(self.device.platform)
        if count > len(devices):
            return None
        return tuple(d.id for d in mesh_utils.create_device_mesh((count,), devices[:count]).flat)

    def placement(self, x: Array, /) -> Placement | None:
        if isinstance(x, Tracer) or not isinstance(getattr(x, "sharding", None), NamedSharding):
            return None
        return placement_of(x.sharding, x.ndim, self.name)

    def bytes_by_device(self, x: Array, /) -> dict[int, int]:
        return {shard.device.id: shard.data.nbytes for shard in x.addressable_shards}
