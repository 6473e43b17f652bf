"""`safetensors.safe_open(..., device=...)`, and therefore `safetensors.torch.load_file`, for the device.

safetensors has its own list of devices, in Rust. A file is opened for the CPU, and tensors are moved to the device when
they are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import safetensors
import torch

from tensorgraft.frontends.torch_entry import loading

_open: Any = safetensors.safe_open
_PYTORCH = ("pt", "torch", "pytorch")


def device_for(device: Any) -> Any:
    """Return the device that a program means. `tensorgraft run` replaces this function."""
    return torch.device(device) if isinstance(device, int) else device


def _device_if_ours(device: Any) -> torch.device | None:
    device = device_for(device)
    kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    return loading.part("core.devices").slot_of(device).device if kind == loading.TYPE else None


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Context in which errors of safetensors, and errors about extents from PyTorch or the device, begin with the
    file's name."""
    try:
        yield
    except (safetensors.SafetensorError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = safetensors.SafetensorError if isinstance(error, UnicodeError) else type(error)
        raise kind(f"{name}: {str(error).partition(chr(10))[0]}") from error


class _ReaderType(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, _open) or type.__instancecheck__(cls, x)


class Reader(metaclass=_ReaderType):
    """`safetensors.safe_open`; tensors for a device of ours are copied there as they are read."""

    _file: Any
    _name: str
    _device: torch.device

    def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        slot = _device_if_ours(device) if framework in _PYTORCH else None
        if slot is None:
            return _open(filename, framework, device, **options)
        self = object.__new__(cls)
        self._name, self._device = os.fspath(filename), slot
        with _naming(self._name):
            self._file = _open(filename, framework, "cpu", **options)
        return self

    def get_tensor(self, name: str) -> torch.Tensor:
        with _naming(self._name):
            return self._file.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._file.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Reader:
        self._file.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._file.__exit__(*exception)


class _Slice:
    """A tensor of a file that is read in parts."""

    def __init__(self, parts: Any, device: torch.device) -> None:
        self._parts, self._device = parts, device

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._parts[index].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)


Reader.__name__ = Reader.__qualname__ = "safe_open"
