"""What `import torch` has of the PyTorch front end (entry point group `torch.backends`): the device's name, and what
loads the rest when a program first touches the device.

Loading takes some hundred milliseconds, and most programs on a machine where tensorgraft is installed never ask for it.
PyTorch itself says where its Python meets a device for the first time: it calls `_lazy_init` of the device module. What
comes by other ways is waited for: attributes of the device module (`device`), operators that C++ calls (`fallback`),
functions that take a device without telling C++ (`waiting`) and PyTorch's classes that we derive from (`classes`).

This package imports PyTorch and nothing of ours but `warned`, and `frontends.torch` is loaded whenever anything in it
is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tensorgraft import warned

TYPE = "graft"
FRONT_END = "tensorgraft.frontends.torch"

_registered = False
_loaded = False
_afterwards: list[Callable[[], object]] = []


def autoload() -> None:
    """What PyTorch calls when it is imported: `device="graft"` works in any script."""
    register()


def register() -> None:
    """Give PyTorch the device, which loads the front end when it is used. Does nothing the second time."""
    global _registered
    if _registered:
        return
    _registered = True
    from tensorgraft.frontends.torch_entry import fallback, patches

    patches.apply("import")
    fallback.install()


def loaded() -> bool:
    return _loaded


def load() -> None:
    """Import the front end, which installs itself; once. (While that happens, in the same thread, nothing.)"""
    if not _loaded:
        with warned.remembered():  # what is imported changes filters: Python would show the program's again
            importlib.import_module(FRONT_END)


def part(name: str) -> Any:
    """A module of the front end."""
    return importlib.import_module(f"{FRONT_END}.{name}")


def when_loaded(function: Callable[[], object]) -> None:
    """Call `function` once the front end is there."""
    if _loaded:
        function()
    else:
        _afterwards.append(function)


def finish() -> None:
    """The front end is there: it says so at the end of its import."""
    global _loaded
    _loaded = True
    while _afterwards:
        _afterwards.pop(0)()


def names_the_device(x: object) -> bool:
    """A `torch.device` of ours, or the name of one."""
    return (x if isinstance(x, str) else str(getattr(x, "type", ""))).partition(":")[0] == TYPE
