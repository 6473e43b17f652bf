"""`torch.Generator`, `torch.Event` and `torch.Stream`, which PyTorch does not let a Python device implement.

They are replaced when PyTorch is imported, since programs subclass them, use them in `isinstance` and import them by
name; the front end is loaded when one is created for the device.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from tensorgraft.frontends.torch_entry import loading
from tensorgraft.frontends.torch_entry.loading import TYPE

_Generator: Any = torch.Generator
_Event: Any = torch.Event
_Stream: Any = torch.Stream


def _devices() -> Any:
    return loading.part("core.devices")


def _including(base: Any) -> Any:
    """Return a metaclass whose classes have for instances, and for subclasses, all that are PyTorch's own, too."""

    class Including(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, x: object) -> bool:
            return isinstance(x, base)

        def __subclasscheck__(cls, sub: type) -> bool:
            return type.__subclasscheck__(base, sub)

    return Including


class Generator(_Generator, metaclass=_including(_Generator)):  # type: ignore[metaclass]
    """`torch.Generator`. One for the device is a generator of the CPU underneath. It has the CPU generator's state, and
    kernels of the device draw their keys from it."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != TYPE:
            return _Generator(device)
        self = _Generator.__new__(cls, "cpu")
        self._index = _devices().slot_of(device).index
        return self

    @property
    def device(self) -> torch.device:
        return _devices().slot_at(self._index).device

    def clone_state(self) -> Generator:
        copy = Generator(self.device)
        copy.set_state(self.get_state())
        return copy

    def __reduce__(self) -> Any:
        return loading.part("core.generator").rebuild, (self.device, self.get_state())


# ---- streams and events: a backend does what it is asked for in order, so there is one stream ------------------------


def _loads_device(device: Any) -> bool:
    """Return whether a device is ours, and load the front end if so. `torch.Event()` and `torch.Stream()` without a
    device are the accelerator's, which is ours."""
    if device is None or isinstance(device, int) or torch.device(device).type == TYPE:
        loading.load()
        return True
    return False


class Event(_Event, metaclass=_including(_Event)):  # type: ignore[metaclass]
    """`torch.Event`. On the device, `record` waits until all operations so far have finished."""

    _time: float | None = None

    def __new__(cls, device: Any = None, **options: Any) -> Any:
        if cls is Event and not _loads_device(device):
            return _Event(device, **options)
        self = _Event.__new__(cls, TYPE if _loads_device(device) else device, **options)
        self._timing = options.get("enable_timing", False)
        return self

    def record(self, stream: Any = None) -> None:
        self.synchronize()
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1e3

    def synchronize(self) -> None:
        _devices().slot_at(None).backend.synchronize()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True


class Stream(_Stream, metaclass=_including(_Stream)):  # type: ignore[metaclass]
    """`torch.Stream`; on the device there is one, and work on it is in order."""

    def __new__(cls, device: Any = None, **options: Any) -> Any:
        if cls is Stream and not _loads_device(device):
            return _Stream(device, **options)
        return _Stream.__new__(cls, TYPE) if _loads_device(device) else _Stream.__new__(cls, device, **options)

    def synchronize(self) -> None:
        _devices().slot_at(None).backend.synchronize()

    def query(self) -> bool:
        return True

    def wait_stream(self, other: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = Event(TYPE) if event is None else event
        event.record(self)
        return event


CLASSES = {"Generator": Generator, "Event": Event, "Stream": Stream}  # replacements of PyTorch's classes
