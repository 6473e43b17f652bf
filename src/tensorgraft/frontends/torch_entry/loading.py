"""Loading of the PyTorch front end, by the package name given to `set_front_end`, and whether it is loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tensorgraft import warning_filters
from tensorgraft.importing import load_triton, uncollected
from tensorgraft.interrupts import held_back

TYPE = "graft"

_package = ""
_loaded = False
_afterwards: list[Callable[[], object]] = []


def set_front_end(package: str) -> None:
    """Set the package of the front end, which installs itself when it is imported."""
    global _package
    _package = package


def loaded() -> bool:
    return _loaded


def load() -> None:
    """Import the front end, which installs itself; once. (While that happens, in the same thread, nothing.)"""
    if not _loaded:
        # imports change filters, so that Python would show the program's warnings again
        with uncollected(), warning_filters.remembered(), held_back():  # it cannot be installed twice
            if "tensorflow" in sys.modules:
                load_triton()
            importlib.import_module(_package)


def part(name: str) -> Any:
    """Return a module of the front end."""
    return importlib.import_module(module(name))


def module(name: str) -> str:
    """Return the whole name of a module of the front end."""
    return f"{_package}.{name}"


def when_loaded(function: Callable[[], object]) -> None:
    """Call `function` when the front end is loaded, or at once if it is."""
    if _loaded:
        function()
    else:
        _afterwards.append(function)


def finish() -> None:
    """Called at the end of the front end's import."""
    global _loaded
    _loaded = True
    while _afterwards:
        _afterwards.pop(0)()


def names_the_device(x: object) -> bool:
    """Return True for a `torch.device` of tensorgraft's, or the name of one."""
    return (x if isinstance(x, str) else str(getattr(x, "type", ""))).partition(":")[0] == TYPE
