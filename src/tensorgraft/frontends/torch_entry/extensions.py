"""The other packages that give PyTorch a device, and which of them gets the one that there is.

PyTorch has one place for a device of an extension (`PrivateUse1`), and imports all packages of the entry point group
`torch.backends` in the order of its path. Whoever registers second raises, and PyTorch's import ends with that. Where
others are installed, tensorgraft leaves the place to them, and takes what is left when a program asks for its device.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.frontends.torch_entry.loading import TYPE
from tensorgraft.importing import is_ours

GROUP = "torch.backends"
AUTOLOAD = "TENSORGRAFT_AUTOLOAD"  # in the environment: "1" takes the place, "0" leaves it
_FREE = "privateuseone"  # says its name of now


def holder() -> str | None:
    """Return the name of another package's device that has the place; None where it is free, or ours."""
    name = torch.device(_FREE).type
    if name == _FREE:  # a device may have kernels before it has a name
        empty: Any = torch.ops.aten.empty.memory_format
        has_kernels = empty.has_kernel_for_dispatch_key("PrivateUse1")
        return _FREE if has_kernels else None
    return None if name == TYPE else name


def require_the_place() -> None:
    """Raise a RuntimeError where another package has it."""
    name = holder()
    if name is not None:
        raise RuntimeError(
            "tensorgraft cannot register its device, which it needs to run and trace PyTorch programs: the only"
            f" device type that PyTorch has for extensions (PrivateUse1) is taken by {name!r} of another package."
            " Start the program with `tensorgraft run --on jax program.py`, or with"
            " TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment, which keeps PyTorch from loading such packages."
        )


def may_take_the_place(wanted: bool) -> bool:
    """Say whether the device is to be registered while PyTorch is imported, by its function that imports all packages.
    `wanted`: even where others come later, which are not imported then, and are told so."""
    if holder() is not None or os.environ.get(AUTOLOAD) == "0":
        return False
    other_points = _unloaded_entry_points()
    if not other_points:
        return True
    if wanted or os.environ.get(AUTOLOAD) == "1":
        _leave_out(other_points)
        return True
    return False


def _unloaded_entry_points() -> list[Any]:
    """Return the entry points of other packages that PyTorch has not come to yet."""
    points = sys._getframe(3).f_locals.get("backend_extensions")  # of PyTorch's loop: asking again takes a while
    points = list(importlib.metadata.entry_points(group=GROUP) if points is None else points)
    own_index = next((k for k, point in enumerate(points) if is_ours(point)), len(points))
    return points[own_index + 1 :]


def _leave_out(points: list[Any]) -> None:
    """Make PyTorch's import pass over these packages."""
    names = {point.name for point in points}
    original = importlib.metadata.EntryPoint.load

    def load(self: Any) -> Any:
        if self.group != GROUP or self.name not in names:
            return original(self)
        names.discard(self.name)
        if not names:
            importlib.metadata.EntryPoint.load = original  # type: ignore[method-assign]
        return lambda: None

    importlib.metadata.EntryPoint.load = load  # type: ignore[method-assign]
    told_left_out(points)


def told_left_out(points: list[Any]) -> None:
    """Say which packages PyTorch does not import."""
    names = ", ".join(f"{point.name} ({point.value})" for point in points)
    warning_filters.show_warning(
        f"tensorgraft has PyTorch's device of an extension in this process: it does not load {names}."
    )
