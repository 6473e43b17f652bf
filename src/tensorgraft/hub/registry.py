"""Backends by name: those of this package, and those that others register (entry points `tensorgraft.backends`).

A device is written `"jax"`, `"numpy"`, `"jax:1"` (an index), or `"jax:gpu:0"` (a platform of the backend and an index).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorgraft import warning_filters
from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.importing import entry_points, random_numbers_kept, uncollected
from tensorgraft.interrupts import held_back

if TYPE_CHECKING:
    from tensorgraft.hub.backend import Backend

GROUP = "tensorgraft.backends"
# name -> (class, the package whose presence says that it can be used)
BUILT_IN = {
    "jax": ("tensorgraft.backends.jax:JaxBackend", "jax"),
    "numpy": ("tensorgraft.backends.numpy:NumpyBackend", "numpy"),
    "torch": ("tensorgraft.backends.torch:TorchBackend", "torch"),
    "tensorflow": ("tensorgraft.backends.tensorflow:TensorFlowBackend", "tensorflow"),
}
# {name: a function that returns its device 0 without importing the framework, or None if that is not possible}
DEFERRED = {"jax": "tensorgraft.backends.jax.deferred:deferred"}


@dataclass(frozen=True)
class BackendInfo:
    """Properties of a backend that are known without importing its framework."""

    name: str
    entry: str  # "module:Class"
    requires: str
    installed: bool

    @property
    def install_command(self) -> str:
        return f'pip install "tensorgraft[{self.name}]"'


@functools.cache
def known() -> dict[str, BackendInfo]:
    """Every backend that is registered, installed or not, by name."""
    entries = {name: value for name, (value, _) in BUILT_IN.items()}
    entries.update({point.name: point.value for point in entry_points(GROUP)})
    names = {}
    for name, entry in entries.items():
        requires = BUILT_IN.get(name, ("", entry.partition(":")[0].partition(".")[0]))[1]
        names[name] = BackendInfo(name, entry, requires, importlib.util.find_spec(requires) is not None)
    return names


def backends() -> list[str]:
    """Return the names of the backends that can be used here."""
    return [name for name, info in known().items() if info.installed]


def lookup(name: str) -> BackendInfo:
    """Return the `BackendInfo` of a backend. Raises BackendNotAvailableError, with the available ones, for an unknown
    or missing backend."""
    info = known().get(name)
    names = ", ".join(backends())
    if info is None:
        raise BackendNotAvailableError(
            f"there is no backend {name!r}. Installed: {names}."
            f" Known: {', '.join(known())}. `tensorgraft doctor` says how to install each."
        )
    if not info.installed:
        raise BackendNotAvailableError(
            f"the backend {name!r} needs {info.requires}, which is not installed: {info.install_command}"
            f"\nInstalled: {names}."
        )
    return info


@functools.cache
def backend_class(name: str) -> type[Backend]:
    return _from_entry_point(lookup(name).entry)


def _from_entry_point(entry: str) -> Any:
    module, _, attribute = entry.partition(":")
    # an interrupt waits: a framework of which a half is imported cannot be imported again
    with uncollected(), random_numbers_kept(), held_back():
        return getattr(importlib.import_module(module), attribute)


@functools.cache
def _deferred(name: str) -> Backend | None:
    lookup(name)
    return _from_entry_point(DEFERRED[name])() if name in DEFERRED else None


def device_count(name: str) -> int:
    """Return the number of devices of a backend."""
    return (_deferred(name) or backend_class(name)).device_count()


def parse(device: str) -> tuple[str, str | None, int]:
    """Return the parts of a name: ("jax", "gpu", 1) for "jax:gpu:1"."""
    name, *rest = device.split(":")
    platform = rest.pop(0) if rest and not rest[0].isdigit() else None
    if len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise ValueError(f"{device!r} is not a device: expected a backend, backend:index or backend:platform:index")
    return name, platform, int(rest[0]) if rest else 0


@functools.cache
def get(device: str) -> Backend:
    """Return the one `Backend` object of a device."""
    name, platform, index = parse(device)
    with warning_filters.remembered(), held_back():
        if device == name and (deferred := _deferred(name)) is not None:
            return deferred
        cls = backend_class(name)
        return cls(index) if platform is None else cls(index, platform)


_chosen: str | None = None


def default_or_none() -> str | None:
    """Return the backend that `set_default` was given last."""
    return _chosen


def set_default(device: str) -> None:
    """Set the default device. Raises BackendNotAvailableError for an unknown or missing backend, ValueError for a name
    that is no device."""
    global _chosen
    lookup(parse(device)[0])
    _chosen = device


def default() -> str:
    """Return the device of arrays for which the program names none."""
    return _chosen or initial()


@functools.cache
def initial() -> str:
    """Return the default of a program that sets none: `$TENSORGRAFT_BACKEND`, else JAX where it is installed, else
    NumPy."""
    name = os.environ.get("TENSORGRAFT_BACKEND")
    if name:
        lookup(parse(name)[0])
        return name
    names = backends()
    return "jax" if "jax" in names else names[0]
