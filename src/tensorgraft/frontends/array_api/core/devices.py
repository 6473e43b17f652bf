"""Devices of arrays: each is a device of a backend."""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from typing import Any, NoReturn

from tensorgraft.errors import TracedValueError
from tensorgraft.hub import foreign, registry
from tensorgraft.hub.backend import Backend


class Device:
    """A device by its tensorgraft name: `"jax"`, `"numpy"`, `"jax:gpu:0"`. Equal to the same name as a string."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend of the device, whose framework is imported here."""
        loaded = registry.get(self.name)
        _of_backend.setdefault(loaded, self)
        return loaded

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Device) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return device_named, (self.name,)


# weak: backends of transforms come and go, and others may get their `id`
_of_backend: weakref.WeakKeyDictionary[Backend, Device] = weakref.WeakKeyDictionary()


@functools.cache
def device_named(name: str) -> Device:
    """Return the one `Device` of a name. Raises BackendNotAvailableError for a backend unknown or not installed."""
    kind, platform, index = registry.parse(name)
    registry.lookup(kind)
    if platform is None and index == 0 and name != kind:
        return device_named(kind)
    return Device(name)


def known() -> tuple[Device, ...]:
    """Return the first device of every installed backend, and the others of frameworks that are imported already: none
    is imported only to count its devices."""
    devices = []
    for name in registry.backends():
        devices.append(device_named(name))
        if registry.lookup(name).requires in sys.modules:
            devices += [device_named(f"{name}:{i}") for i in range(1, registry.device_count(name))]
    return tuple(devices)


def default() -> Device:
    """Return the device of arrays that are made without `device=`."""
    return device_named(registry.default())


def device_of(backend: Backend) -> Device:
    """Return the device whose arrays a backend makes."""
    device = _of_backend.get(backend)
    if device is None:
        name = backend.name if backend.platform is None else f"{backend.name}:{backend.platform}"
        device = device_named(f"{name}:{backend.index}" if backend.index or backend.platform else name)
        _of_backend[backend] = device
    return device


def resolve(device: Any) -> Device:
    """Return the device of an argument `device=`: a `Device`, a name, `tg.device(...)`, or None for the default.

    Raises BackendNotAvailableError, which lists the available backends, for an unknown name; TypeError for an argument
    that is no device.
    """
    if device is None:
        return default()
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return device_named("numpy" if device == "cpu" else device)  # the name that other libraries use for the host
    if (name := foreign.name_of(device)) is not None:  # a torch.device that `tg.device` made
        return device_named(name)
    raise TypeError(f"device: expected a name such as 'jax', tg.device(...), or the device of an array, got {device!r}")


def alias_device(backend: Backend, other: Backend) -> None:
    """Let arrays of `backend` have the device of those of `other`."""
    _of_backend[backend] = device_of(other)


# ---- arrays that a program moves inside of a transform ---------------------------------------------------------------


def alias(backend: Backend, device: Device) -> Backend:
    """Return the backend of a transform under the name of another device.

    A derivative, a batch or a compiled program is computed by one backend. An array that the program moves to another
    device inside of a transform belongs to an alias: it reports that device, is computed by the transform's backend,
    and is moved when the transform returns it.
    """
    if device_of(backend) == device:
        return backend
    return _alias_of_device(backend, device) if is_device(backend) else _alias(backend, device)


def _alias(backend: Backend, device: Device) -> Backend:
    other: Any = copy.copy(backend)
    for twin in ("immutable", "ruled"):  # PyTorch's variants of itself, cached: the copy makes its own
        vars(other).pop(twin, None)
    if inner := getattr(backend, "inner", None):
        other.inner = alias(inner, device)
    # wrappers of it have its name
    other.name, other.platform, other.index = registry.parse(device.name)
    other.alias_of, other.materialize = unaliased(backend), functools.partial(_no_native, device_of(backend), device)
    _of_backend[other] = device
    return other


_alias_of_device = functools.cache(_alias)  # these backends live as long as the process


def unaliased(backend: Any) -> Any:
    """Return the backend that this is an alias of, or itself. An alias has arrays of the same type."""
    return getattr(backend, "alias_of", backend)


def is_device(backend: Backend) -> bool:
    """Return True if the backend is that of a device, False for one of a transform."""
    return device_of(backend).backend is backend


def _no_native(source: Device, device: Device, x: Any) -> NoReturn:
    """Refuse a native array of an alias (`materialize` of the alias)."""
    raise TracedValueError(
        f"the native array of one that was moved to {device} inside of a transform (tg.grad, tg.jit, ...) on"
        f" {source} was requested, but it is moved to {device} only when the transform has ended. Use functions of"
        " tensorgraft.array_api until then"
    )
