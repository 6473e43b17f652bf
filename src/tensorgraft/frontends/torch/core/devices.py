"""The torch devices `graft:0`, `graft:1`, ...: one index for each device of a backend.

Index 0 is the default backend: `$TENSORGRAFT_BACKEND`, else JAX where it is installed, else NumPy. Its further devices
follow (`count`), then the other installed backends; further devices of those ("torch:cuda:1") get an index when they
are asked for. How many devices the default backend has is known once its framework is loaded, which naming
another backend does not do: a backend that is named before the default one is used or counted has the next index.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tensorgraft.hub import processes, registry
from tensorgraft.hub.backend import Backend

TYPE = "graft"


@dataclass(eq=False)
class Slot:
    """One device index."""

    index: int
    name: str  # the name in `tg.device(name)`

    @functools.cached_property
    def device(self) -> torch.device:
        return torch.device(TYPE, self.index)

    @functools.cached_property
    def backend(self) -> Backend:
        return registry.get(self.name)


@functools.cache
def slots() -> list[Slot]:
    """Return all device indices so far."""
    return [Slot(0, registry.initial())]


def start_together() -> None:
    """Create the devices of all processes of the program, if it is one of several. A process waits here for the others,
    which must not wait for it elsewhere meanwhile."""
    if processes.may_be_distributed():
        registry.device_count(registry.parse(slots()[0].name)[0])


def count() -> int:
    """Return the number of indices, from 0 on, of the default backend's devices: all that it has, or the one that
    `$TENSORGRAFT_BACKEND` names ("jax:1"). Libraries take devices of one type for devices of one kind."""
    _number_default()
    first, *other_names = [slot.name for slot in slots()]
    if ":" in first:
        return 1
    return 1 + next((i for i, name in enumerate(other_names) if registry.parse(name)[0] != first), len(other_names))


def _number_default() -> None:
    """Give every device of the default backend its index."""
    name = slots()[0].name
    if ":" not in name:
        for i in range(1, registry.device_count(name)):
            _numbered(f"{name}:{i}")


def _number_others() -> None:
    """Give every installed backend its index, those after the default one in the order in which they are listed."""
    if "backend" in vars(slots()[0]):
        _number_default()
    for name in registry.backends():
        _numbered(name)


def numbered() -> list[Slot]:
    """Return all device indices: each installed backend has one."""
    _number_others()
    return slots()


def slot_named(name: str) -> Slot:
    """Return the slot of a device by its tensorgraft name; made if it has none yet."""
    for slot in slots():
        if slot.name == name:
            return slot
    kind, platform, index = registry.parse(name)
    registry.lookup(kind)
    if platform is None and index == 0 and name != kind:
        return slot_named(kind)
    if kind == slots()[0].name:
        _number_default()
    else:
        _number_others()
    if platform is None and index:
        count = registry.device_count(kind)
        if index >= count:
            raise ValueError(f"{name!r}: the backend {kind} has {count} device{'s' * (count != 1)} here")
    return _numbered(name)


def _numbered(name: str) -> Slot:
    """Return the slot with this name, after creating it if needed."""
    return next((slot for slot in slots() if slot.name == name), None) or _append(name)


def _append(name: str) -> Slot:
    slot = Slot(len(slots()), name)
    slots().append(slot)
    return slot


def in_use() -> bool:
    """Return True if the program has named the device, directly or by `$TENSORGRAFT_BACKEND`. PyTorch loads the front
    end by an entry point, so being imported proves nothing."""
    return bool(os.environ.get("TENSORGRAFT_BACKEND")) or slots.cache_info().currsize > 0


_current = 0
on_change: list[Callable[[int], None]] = []  # called with the new current index


def started() -> bool:
    """Return True if a device has been named (`tg.device`), or if something has been computed on it."""
    return any(vars(slot).keys() & {"device", "backend"} for slot in slots())


def current_index() -> int:
    """Return the index of the current device, for which `torch.device("graft")` stands."""
    return _current


def set_current_index(index: int) -> None:
    global _current
    slot_at(index)
    _current = index
    for listener in on_change:
        listener(index)


def follow_default() -> None:
    """Make the device current that `tg.set_default_device` chose before this front end was loaded."""
    name = registry.default_or_none()
    if name is not None:
        set_current_index(slot_named(name).index)


def slot_at(index: int | None) -> Slot:
    """Raises RuntimeError, as PyTorch does for CUDA, where there is no such device."""
    table = slots()
    index = _current if index is None or index < 0 else index
    if index in _recording:
        return _recording[index]
    if index >= len(table):  # a number, whose meaning depends on how many devices precede it
        _number_default()
        _number_others()
    if index >= len(table):
        raise RuntimeError(
            f"graft error: invalid device ordinal {index}: there are {len(table)} devices,"
            f" {', '.join(f'{TYPE}:{s.index} = {s.name}' for s in table)}"
        )
    return table[index]


def slot_of(device: torch.device | str | int | None) -> Slot:
    """Return the slot that a torch device means."""
    if device.__class__ is torch.device:
        return slot_at(device.index)
    if device is None:
        return slot_at(None)
    if isinstance(device, int):
        return slot_at(device)
    return slot_at(torch.device(device).index)


def slot_of_backend(backend: Backend) -> Slot:
    """Return the slot whose arrays a backend object makes."""
    known = _by_backend.get(backend)
    if known is None:
        known = next(slot for slot in numbered() if registry.get(slot.name) is backend)
        _by_backend[backend] = known
    return known


_recording: dict[int, Slot] = {}  # {index: slot}: PyTorch's last indices, from 127 down


def recording_slot(backend: Backend) -> Slot:
    """Return a device on which modules are recorded: it is not counted, and has no name."""
    if backend not in _by_backend:
        slot = Slot(127 - len(_recording), "a recorded program")
        slot.backend = backend
        register(backend, slot)
        _recording[slot.index] = slot
    return _by_backend[backend]


def register(backend: Backend, slot: Slot) -> None:
    """`backend` makes arrays for the slot, too."""
    _by_backend[backend] = slot


_by_backend: weakref.WeakKeyDictionary[Backend, Slot] = weakref.WeakKeyDictionary()
