"""Devices of arrays: each is a device of a backend."""

from __future__ import annotations

import functools
from typing import Any

from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend


class Device:
    """A device by its tensorgraft name: `"jax"`, `"numpy"`, `"jax:gpu:0"`. Equal to the same name as a string."""

    __slots__ = ("backend", "name")

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Device) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


_of_backend: dict[int, Device] = {}


@functools.cache
def _named(name: str) -> Device:
    kind, platform, index = registry.parse(name)
    if platform is None and index == 0 and name != kind:
        return _named(kind)
    found = Device(name, registry.get(name))
    _of_backend[id(found.backend)] = found
    return found


def default() -> Device:
    """The device of arrays that are made without `device=`."""
    return _named(registry.default())


def device_of(backend: Backend) -> Device:
    """The device whose arrays a backend makes."""
    found = _of_backend.get(id(backend))
    if found is None:
        name = backend.name if backend.platform is None else f"{backend.name}:{backend.platform}"
        found = _named(f"{name}:{backend.index}" if backend.index or backend.platform else name)
    return found


def resolve(device: Any) -> Device:
    """A device given as `device=`: a `Device`, a name, `tg.device(...)`, or None for the default.

    Raises BackendNotAvailableError, which lists what there is, for a name that is not known; TypeError for what is no
    device.
    """
    if device is None:
        return default()
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _named(device)
    if getattr(device, "type", None) == "graft":  # a torch.device that `tg.device` made
        from tensorgraft.frontends.torch import devices

        return _named(devices.slot_of(device).name)
    raise TypeError(f"device: expected a name such as 'jax', tg.device(...), or the device of an array, got {device!r}")
