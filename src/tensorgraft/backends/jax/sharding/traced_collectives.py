"""Collectives between processes inside a program that is being traced.

A program of a process is traced as usual; at a collective, `lax` receives the mesh axes of the group's processes. After
the trace, the program runs on the devices of a mesh with all axes that occurred.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.core import extend_axis_env_nd
from jax.sharding import Mesh

from tensorgraft.backends.jax.operation import Tracer
from tensorgraft.backends.jax.sharding.collective_matching import agreed
from tensorgraft.backends.jax.sharding.process_programs import ProcessPrograms, computed
from tensorgraft.errors import TracedValueError
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.collectives import CollectiveCall, Group, World, in_words


class Meeting:
    """The collectives of one program."""

    def __init__(self) -> None:
        self.words: list[str] = []  # each collective, in order
        self._world: World | None = None
        self._axes: dict[str, int] = {}  # {axis of the mesh of all processes: size}
        self._axis_groups: dict[str, Group] = {}  # {axis of that mesh: a group whose processes are along it}
        self._other_groups: dict[str, Group] = {}  # groups that are no axes of it

    @property
    def across(self) -> ProcessPrograms | None:
        """The devices that the program runs on: those with which this process has a group. None without collectives.

        Raises TracedValueError for groups that are no axes of one mesh."""
        if self._world is None:
            return None
        if len(self._other_groups) > 1 or (self._other_groups and self._axis_groups):
            groups = sorted({str(list(g.ranks)) for g in (*self._other_groups.values(), *self._axis_groups.values())})
            raise TracedValueError(
                f"collectives among processes {' and '.join(groups)} in one compiled function: its program runs on"
                " one mesh of processes, and these groups are not axes of one mesh. Compile the parts separately,"
                " or create the groups with init_device_mesh"
            )
        for name, group in self._other_groups.items():
            return ProcessPrograms(_mesh(group.devices, (group.size,), (name,)))
        sizes = list(self._axes.values())
        coordinates = np.unravel_index(self._world.rank, sizes)
        index = tuple(
            slice(None) if name in self._axis_groups else int(at)
            for name, at in zip(self._axes, coordinates, strict=True)
        )
        ranks = np.arange(len(self._world)).reshape(sizes)[index]
        devices = tuple(self._world.device_of(int(r)) for r in ranks.flat)
        return ProcessPrograms(
            _mesh(devices, ranks.shape, tuple(name for name in self._axes if name in self._axis_groups))
        )

    def collective(self, call: CollectiveCall, arrays: Sequence[Array], group: Group) -> tuple[Array, ...]:
        if self._world is None:
            self._world, self._axes = group.world, group.world.axes()
        names = group.world.axes_of(group)
        if names and all(name in self._axes for name in names):
            self._axis_groups |= dict.fromkeys(names, group)
            sizes = [self._axes[name] for name in names]
            where = f"{group.size} processes, {group.ranks[1] - group.ranks[0]} apart"  # so say all on the mesh
        else:
            names, sizes = (str(group.ranks),), [group.size]
            self._other_groups[names[0]] = group
            where = f"{list(group.ranks)}"
        self.words.append(in_words(call, [(x.shape, x.dtype) for x in arrays], where))
        with extend_axis_env_nd(list(zip(names, sizes, strict=True))):
            # `lax.psum` takes for granted that a value which is no tracer is the same everywhere
            traced = [x if isinstance(x, Tracer) else lax.optimization_barrier(x) for x in arrays]
            return tuple(computed(call, x, names, group.size) for x in traced)

    def agreement(self, across: ProcessPrograms) -> Callable[[Sequence[Array]], contextlib.AbstractContextManager[Any]]:
        """Return the context of a run: before the first one, the processes compare their collectives in the program."""
        seconds = max(group.seconds for group in (*self._axis_groups.values(), *self._other_groups.values()))
        words = f"a compiled function with {len(self.words)} collectives: {'; '.join(self.words)}"
        return lambda _: agreed(across.devices, words, lambda: words, seconds)


def _mesh(devices: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    by_id = {d.id: d for d in jax.devices()}
    return Mesh(np.array([by_id[i] for i in devices]).reshape(shape), names)


class _Thread(threading.local):
    meetings: tuple[Meeting, ...] = ()


_now = _Thread()


@contextlib.contextmanager
def collecting() -> Iterator[Meeting]:
    """Collect the collectives of the program that is traced inside, in a `Meeting`."""
    before = _now.meetings
    _now.meetings = (*before, Meeting())
    try:
        yield _now.meetings[-1]
    finally:
        _now.meetings = before


def in_trace(call: CollectiveCall, arrays: Sequence[Array], group: Group) -> tuple[Array, ...]:
    """Call a collective in the program that is traced. Raises TracedValueError in other traces."""
    if not _now.meetings:
        raise TracedValueError(
            f"{call} between processes works in compiled functions (tg.jit), not inside other transforms"
        )
    return _now.meetings[-1].collective(call, arrays, group)
