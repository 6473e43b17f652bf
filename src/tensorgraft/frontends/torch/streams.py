"""Streams and events: a backend does what it is asked for in order, so there is one stream."""

from __future__ import annotations

import time
from typing import Any

import torch

from tensorgraft.frontends.torch import devices
from tensorgraft.frontends.torch.transfer import direct

_Event: Any = torch.Event
_Stream: Any = torch.Stream


def _ours(device: Any) -> bool:
    """What `torch.Event()` and `torch.Stream()` mean without a device is the accelerator, which is ours."""
    return device is None or isinstance(device, int) or torch.device(device).type == devices.TYPE


class EventType(type(_Event)):  # type: ignore[misc]
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _Event)

    def __subclasscheck__(cls, sub: type) -> bool:
        return type.__subclasscheck__(_Event, sub)


class Event(_Event, metaclass=EventType):
    """`torch.Event`; on the device, recording one waits until what was asked for so far is done."""

    _time: float | None = None

    def __new__(cls, device: Any = None, **options: Any) -> Any:
        if cls is Event and not _ours(device):
            return _Event(device, **options)
        self = _Event.__new__(cls, devices.TYPE if _ours(device) else device, **options)
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
        devices.slot_at(None).backend.synchronize()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True


class StreamType(type(_Stream)):  # type: ignore[misc]
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _Stream)

    def __subclasscheck__(cls, sub: type) -> bool:
        return type.__subclasscheck__(_Stream, sub)


class Stream(_Stream, metaclass=StreamType):
    """`torch.Stream`; on the device there is one, and work on it is in order."""

    def __new__(cls, device: Any = None, **options: Any) -> Any:
        if cls is Stream and not _ours(device):
            return _Stream(device, **options)
        return _Stream.__new__(cls, devices.TYPE) if _ours(device) else _Stream.__new__(cls, device, **options)

    def synchronize(self) -> None:
        devices.slot_at(None).backend.synchronize()

    def query(self) -> bool:
        return True

    def wait_stream(self, other: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = Event(devices.TYPE) if event is None else event
        event.record(self)
        return event


class StreamContext:
    """`with torch.cuda.stream(s):`. There is one stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


@direct("record_stream")
def record_stream(x: torch.Tensor, stream: Any) -> None:
    """The backend keeps what it still reads."""


def install() -> None:
    """`torch.Event` and `torch.Stream` make ours where they are asked for the device."""
    torch.Event, torch.Stream = Event, Stream  # type: ignore[misc, assignment]
