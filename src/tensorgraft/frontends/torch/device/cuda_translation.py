"""The devices that a script sees as CUDA's, and attributes that are replaced while it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch.core.devices import TYPE, slot_named
from tensorgraft.frontends.torch.device import scripted
from tensorgraft.frontends.torch_entry import patching
from tensorgraft.hub import registry

CURRENT = object()  # "cuda" without an index: the device that is the current one at the call


class VisibleDevices:
    """The devices of one backend that a program sees as `cuda:0`, `cuda:1`, ...: all of them for `on="jax"`, only the
    named one for `"jax:1"` or `"jax:gpu:0"`.
    """

    def __init__(self, on: str) -> None:
        self.on = on
        self._translated: dict[Any, Any] = {}

    @functools.cached_property
    def names(self) -> list[str]:
        if ":" in self.on:
            return [self.on]
        count = registry.device_count(self.on)
        return [self.on, *(f"{self.on}:{i}" for i in range(1, count))]

    def index(self, ordinal: int) -> int:
        """Return the index of the `graft` device that stands for `cuda:ordinal`. Raises RuntimeError as CUDA does if
        there is none."""
        devices.start_together()
        if ordinal == 0:  # the number of devices is known once the backend's framework is loaded
            return slot_named(self.on).index
        if not 0 <= ordinal < len(self.names):
            raise RuntimeError(
                f"CUDA error: invalid device ordinal\n(`tensorgraft run` shows {len(self.names)} device"
                f"{'s' * (len(self.names) != 1)} of {self.on!r} as cuda; asked for number {ordinal})"
            )
        return slot_named(self.names[ordinal]).index

    def in_files(self, device: torch.device) -> str:
        """Return the name of a device in files, where it has the program's name for it."""
        return f"cuda:{self.indices.index(device.index)}" if device.index in self.indices else str(device)

    @property
    def indices(self) -> list[int]:
        return [self.index(i) for i in range(len(self.names))]

    def translate(self, device: Any) -> Any:
        """Return the `graft` device that stands for `device` if that is one of CUDA, otherwise `device` itself."""
        if device is None:
            return None
        try:
            real = self._translated[device]
        except KeyError:
            real = self._translated[device] = self._translation(device)
        except TypeError:  # unhashable, so not a device: PyTorch raises the error
            return device
        return devices.slot_at(None).device if real is CURRENT else real

    def _translation(self, device: Any) -> Any:
        if isinstance(device, int):
            return torch.device(TYPE, self.index(device))
        if isinstance(device, torch.device) or (isinstance(device, str) and device.partition(":")[0] == "cuda"):
            requested = torch.device(device)
            if requested.type == "cuda":
                return CURRENT if requested.index is None else torch.device(TYPE, self.index(requested.index))
        return device


class Patches(contextlib.ExitStack):
    """Attributes replaced until the end of the `with` statement."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an existing attribute of `owner`. Raises AttributeError if it does not exist."""
        getattr(owner, name)
        self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name` by `wrapper(original)`."""
        original = getattr(owner, name)
        replacement = functools.wraps(original)(wrapper(original))
        self.set(owner, name, replacement)
        patching.allow_for_uninitialized(original, replacement)
        self.callback(scripted.stand_for(replacement, original))
