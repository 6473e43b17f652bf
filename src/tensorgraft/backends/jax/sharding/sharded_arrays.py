"""Arrays spread over a mesh of devices: `jax.sharding`, and GSPMD does the rest."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding

from tensorgraft.backends.jax.operation import Tracer, is_tracing
from tensorgraft.backends.jax.sharding import global_programs, processes
from tensorgraft.backends.jax.sharding.agreement import agree
from tensorgraft.backends.jax.sharding.meshes import lies_so, placement_of, sharding_of
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.placement import Placement


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
        if is_tracing():
            return lax.with_sharding_constraint(x, sharding)
        return jax.device_put(x, sharding) if sharding.is_fully_addressable else global_programs.placed(x, sharding)

    def parts_fed(self, placement: Placement, /) -> tuple[int, int]:
        if placement.mesh.abstract or not placement.spec:
            return 0, 1
        sharding = sharding_of(placement, self.device.platform)
        starts: dict[int, set[int]] = {}  # {axis: starts of this process's pieces}
        for device, index in sharding.devices_indices_map((sharding.num_devices,) * len(placement.spec)).items():
            starts.setdefault(device.process_index, set()).add(index[0].start or 0)  # type: ignore[attr-defined]
        parts = sorted({frozenset(of_one) for of_one in starts.values()}, key=min)
        if sum(map(len, parts)) != placement.parts(0) or len({*map(len, parts)}) > 1:
            raise ValueError(f"{placement} does not split the first dimension into equal parts, one for each process")
        return parts.index(frozenset(starts[processes.index()])), len(parts)

    def assembled(self, part: Array, placement: Placement, /) -> Array:
        _, count = self.parts_fed(placement)
        shape = (part.shape[0] * count, *part.shape[1:]) if part.ndim else ()
        return global_programs.assembled(part, sharding_of(placement, self.device.platform), shape)

    def same_everywhere(self, label: str, arrays: Mapping[str, Array], /) -> None:
        addressable = {name: x for name, x in arrays.items() if isinstance(x, jax.Array) and x.is_fully_addressable}
        sums = {
            name: f"{x.dtype}{x.shape}{zlib.crc32(np.ascontiguousarray(x).data.cast('B'))}"
            for name, x in addressable.items()
        }
        agree(label, sums, "What each of them has whole is to be the same (by one seed, or from one file)")

    def processes(self) -> tuple[int, int]:
        return processes.index(), processes.count()

    def abstract(self, shape: tuple[int, ...], dtype: np.dtype, placement: Placement | None = None, /) -> Array:
        sharding = None if placement is None else sharding_of(placement, self.device.platform)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def mesh_ids(self, count: int, /) -> tuple[int, ...] | None:
        devices = global_programs.even(jax.devices(self.device.platform), count)
        return None if devices is None else tuple(d.id for d in mesh_utils.create_device_mesh((count,), devices).flat)

    def placement(self, x: Array, /) -> Placement | None:
        if isinstance(x, Tracer) or not isinstance(getattr(x, "sharding", None), NamedSharding):
            return None
        return placement_of(x.sharding, x.ndim, self.name)

    def bytes_by_device(self, x: Array, /) -> dict[int, int]:
        return {shard.device.id: shard.data.nbytes for shard in x.addressable_shards}

    def pieces(self, x: Array, /) -> dict[tuple[int, ...], Array]:
        shards: dict[tuple[int, ...], Array] = {}
        for shard in x.addressable_shards:
            shards.setdefault(_offset(shard), shard.data)
        return shards

    def with_piece(self, x: Array, offset: tuple[int, ...], piece: np.ndarray, /) -> Array:
        parts = [
            jax.device_put(piece, shard.device) if _offset(shard) == offset else shard.data
            for shard in x.addressable_shards
        ]
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)


def _offset(shard: jax.Shard) -> tuple[int, ...]:
    return tuple(index.start or 0 for index in shard.index)
