"""Devices that a front end has of its own (PyTorch's `graft:0`), and their names here (`registry`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_readers: dict[str, Callable[[Any], str]] = {}


def reads(kind: str, name: Callable[[Any], str]) -> None:
    """Register `name`, which gives the name of devices whose `.type` is `kind`."""
    _readers[kind] = name


def name_of(device: Any) -> str | None:
    """Return the name of a front end's device; None of anything else."""
    read = _readers.get(getattr(device, "type", None) or "")
    return None if read is None else read(device)
