"""Process groups whose members have devices that compute collectives together.

A process says in the store of the program which of all devices is its own, when it has its first collective on it;
others read it there when they have one with it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.collectives import Group, World

_APART = "-"  # of a process whose device has joined no others


class _Members:
    """The processes of the program, as read from the store."""

    def __init__(self, store: Any, own_rank: int | None) -> None:
        self._store = store
        self._known: dict[int, int | None] = {}
        rank = dist.get_rank()
        store.set(_key(rank), _APART if own_rank is None else str(own_rank))
        self.world = World(dist.get_world_size(), rank, self.device_of)
        self._groups = 0  # of those that there are, noted in `world`
        self._joint: dict[str, Group | None] = {}  # by name

    def joined(self, rank: int) -> bool:
        if rank not in self._known:
            value = self._store.get(_key(rank)).decode()
            self._known[rank] = None if value == _APART else int(value)
        return self._known[rank] is not None

    def device_of(self, rank: int) -> int:
        if not self.joined(rank):
            raise RuntimeError(
                f"process {rank} is not connected to the others by a device of JAX, and cannot compute their"
                " collectives"
            )
        device = self._known[rank]
        assert device is not None
        return device

    def group(self, own_group: Any) -> Group | None:
        """Return the group for a process group of PyTorch, or None if one of its processes has not joined the
        others."""
        process_groups = c10d._world.pg_group_ranks
        if len(process_groups) != self._groups:  # a compiled program has to know all that there are
            self._groups = len(process_groups)
            for pg in process_groups:
                if isinstance(pg, dist.ProcessGroup) and f"{TYPE}:" in dist.get_backend_config(pg):
                    self._of(pg)
        name = own_group.group_name
        if name not in self._joint:
            group = self._of(own_group)
            self._joint[name] = group if all(map(self.joined, group.ranks)) else None
        return self._joint[name]

    def _of(self, pg: Any) -> Group:
        return self.world.group(tuple(dist.get_process_group_ranks(pg)), _seconds(pg))


def _key(rank: int) -> str:
    return f"tensorgraft/device of {rank}"


def _seconds(pg: Any) -> float:
    """Return the timeout of a group: how many seconds a process waits for the others."""
    backend = pg._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL
    return float(backend.options._timeout.total_seconds())


_members: weakref.WeakKeyDictionary[Any, _Members] = weakref.WeakKeyDictionary()  # {default group: its members}


def joint(process_group: Any, backend: Backend) -> Group | None:
    """Return the processes of a group whose devices compute together; None where they do not, and their hosts do."""
    if not dist.is_initialized():
        return None
    default = dist.group.WORLD
    known = _members.get(default)
    if known is None:
        known = _members[default] = _Members(c10d._get_default_store(), backend.joined_as())
    return None if backend.joined_as() is None else known.group(process_group)
