"""What is installed, and what makes many objects at once: imports and traces."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
from collections.abc import Iterator
from typing import Any

_freezes = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The collector of cyclic garbage is off inside. While much is imported or traced it goes through all that lives,
    again and again, and finds next to nothing: a quarter of the time of `import torch`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not _program_freezes():  # what is new counts as old, else it would all be gone through at once
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _program_freezes() -> bool:
    """The program keeps objects from the collector, which `unfreeze` would give back. Asked until it does: the count
    goes through all of them."""
    global _freezes
    _freezes = _freezes or gc.get_freeze_count() > 0
    return _freezes


@functools.cache
def _every_entry_point() -> Any:
    return importlib.metadata.entry_points()


def entry_points(group: str) -> importlib.metadata.EntryPoints:
    """Those of all that is installed, which is looked through once."""
    return _every_entry_point().select(group=group)
