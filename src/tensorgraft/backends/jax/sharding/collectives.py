"""Collectives between processes, computed by XLA (`hub.collectives`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from tensorgraft.backends.jax.operation import is_tracing
from tensorgraft.backends.jax.sharding import processes
from tensorgraft.backends.jax.sharding.collective_matching import agreed
from tensorgraft.backends.jax.sharding.process_programs import ProcessPrograms, at_home, computed
from tensorgraft.backends.jax.sharding.traced_collectives import in_trace
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.collectives import WHOLE, CollectiveCall, Group, in_words


class JaxCollectives:
    if TYPE_CHECKING:
        device: Any

    def joined_as(self) -> int | None:
        return self.device.id if processes.count() > 1 else None

    def collective(self, call: CollectiveCall, arrays: Sequence[Array], group: Group, /) -> tuple[Array, ...]:
        if group.size == 1 or not all(x.size for x in arrays):
            return tuple(
                at_home(call, x, group.size) if group.size == 1 or not x.size else self.collective(call, [x], group)[0]
                for x in arrays
            )
        if is_tracing():
            return in_trace(call, arrays, group)
        results = _eager(call, group.devices, group)(*arrays)
        return tuple(x if x.device == self.device else jax.device_put(x, self.device) for x in results)


@functools.lru_cache(maxsize=1024)
def _eager(call: CollectiveCall, devices: tuple[int, ...], group: Group) -> Callable[..., tuple[Array, ...]]:
    n = group.size

    def agreement(arrays: Sequence[Array]) -> Any:
        shapes = [(x.shape, x.dtype) for x in arrays]
        return agreed(devices, (call, *shapes), lambda: in_words(call, shapes, str(list(group.ranks))), group.seconds)

    return _across_devices(devices).compiled(lambda *xs: tuple(computed(call, x, (WHOLE,), n) for x in xs), agreement)


@functools.lru_cache(maxsize=256)
def _across_devices(devices: tuple[int, ...]) -> ProcessPrograms:
    by_id = {d.id: d for d in jax.devices()}
    return ProcessPrograms(Mesh(np.array([by_id[i] for i in devices]), (WHOLE,)))
