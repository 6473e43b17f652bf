"""Arrays spread over a mesh of devices: `jax.sharding`, and GSPMD does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding

from tensorgraft.backends.jax.operation import Tracer, is_tracing
from tensorgraft.backends.jax.spread.meshes import lies_so, placement_of, sharding_of
from tensorgraft.hub.placement import Placement

Array = Any


class JaxSharding:
    if TYPE_CHECKING:
        device: Any
        name: str

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        if not isinstance(x, jax.Array):  # a transform of ours has lent the storage its variable
            return x
        if isinstance(x, Tracer):
            return lax.with_sharding_constraint(x, sharding_of(placement, self.device.platform))
        if not placement.free and lies_so(x.sharding, placement, self.device.platform):
            return x
        placement = placement.settled(self.placement(x))
        sharding = sharding_of(placement, self.device.platform)
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
