"""Regions of `torch.autocast("cpu")` in a program whose tensors are recorded on a device of another name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.precision.state import autocast


@contextlib.contextmanager
def autocast_of_the_cpu() -> Iterator[None]:
    """Context in which regions of the CPU's autocast, and regions that the program enters for the device of its
    tensors, apply to the recorded tensors, by the CPU's table."""
    originals = {name: getattr(torch, name) for name in ("set_autocast_enabled", "set_autocast_dtype")}
    regions = {"cpu", TYPE}

    def told_to_both(original: Any) -> Any:
        def set_autocast(*args: Any) -> None:
            if args and args[0] in regions:
                for device in regions:
                    original(device, *args[1:])
            else:
                original(*args)

        return set_autocast

    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
    with autocast(dtype, policy="cpu", enabled=enabled):
        for name, original in originals.items():
            setattr(torch, name, told_to_both(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(torch, name, original)
