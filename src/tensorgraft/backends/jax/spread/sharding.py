"""Arrays spread over a mesh of devices: `jax.sharding`, and GSPMD does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding

from tensorgraft.backends.jax.operation import Tracer, is_tracing
from tensorgraft.backends.jax.spread.meshes import placement_of, sharding_of
from tensorgraft.hub.placement import Placement

Array = Any


class JaxSharding:
    if TYPE_CHECKING:
        device: Any
        name: str

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        if not isinstance(x, jax.Array):  # a transform of ours has lent the storage its variable
            return x
        if not isinstance(x, Tracer):
            placement = placement.settled(self.placement(x))
        sharding = sharding_of(placement, self.device.platform)
        if isinstance(x, Tracer):
            return lax.with_sharding_constraint(x, sharding)
        here = x.sharding
        if here is sharding or (
            isinstance(here, NamedSharding)
            and here.mesh == sharding.mesh
            and (here.spec == sharding.spec or here.is_equivalent_to(sharding, x.ndim))
        ):
            return x
        return lax.with_sharding_constraint(x, sharding) if is_tracing() else jax.device_put(x, sharding)

    def abstract(self, shape: tuple[int, ...], dtype: np.dtype, placement: Placement | None = None, /) -> Array:
        sharding = None if placement is None else sharding_of(placement, self.device.platform)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

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

    def pieces(self, x: Array, /) -> dict[tuple[int, ...], Array]:
        found: dict[tuple[int, ...], Array] = {}
        for shard in x.addressable_shards:
            found.setdefault(_offset(shard), shard.data)
        return found

    def with_piece(self, x: Array, offset: tuple[int, ...], piece: np.ndarray, /) -> Array:
        parts = [
            jax.device_put(piece, shard.device) if _offset(shard) == offset else shard.data
            for shard in x.addressable_shards
        ]
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)


def _offset(shard: jax.Shard) -> tuple[int, ...]:
    return tuple(along.start or 0 for along in shard.index)
