"""A backend whose framework is imported when the first operation needs it.

With a cold tier (`hub.tiers`), many programs end before they need it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tensorgraft import warning_filters
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.primitive import composites, primitives
from tensorgraft.importing import random_numbers_kept
from tensorgraft.interrupts import held_back

_starting = threading.RLock()


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(start(self), name)(*args, **kwargs)

    method.__name__ = name
    return method


class _Forwarding(Backend):
    for _name in {**primitives(Backend), **composites(Backend)}:
        if _name not in ("dtype_of", "device_count"):
            locals()[_name] = _forwarded(_name)
    del _name


class Deferred(_Forwarding):
    """Device 0 of a backend that is not imported yet. When an operation is called, or an attribute is read that is
    missing here, the object's class becomes the backend's; a derived class has the attributes known before that."""

    def load(self) -> type[Backend]:
        """Return the backend's class."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(start(self), name)


def start(backend: Backend) -> Backend:
    """Import the framework of a deferred backend and return the same object. A function, not a method: bound methods
    that were looked up before are called afterwards."""
    with _starting, held_back():
        if isinstance(backend, Deferred):
            with warning_filters.remembered(), random_numbers_kept():
                cls = backend.load()
                started = cls.__new__(cls)
                started.__dict__ = vars(backend)  # other threads see the new class when all is there
                started.__init__(0)  # type: ignore[misc]
                backend.__class__ = cls  # type: ignore[assignment]
    return backend
