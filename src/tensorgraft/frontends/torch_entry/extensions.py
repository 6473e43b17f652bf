"""Other packages that register a device with PyTorch, and the choice of the one that may.

PyTorch supports one device type of an extension (`PrivateUse1`), and imports all packages of the entry point group
`torch.backends` in the order of `sys.path`. The second one to register a device raises an error, which ends PyTorch's
import. If other packages are installed, tensorgraft therefore does not register its device at import, but when a
program first uses it, if none is registered by then.
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
AUTOLOAD = "TENSORGRAFT_AUTOLOAD"  # in the environment: "1" registers the device at import, "0" does not
_FREE = "privateuseone"  # the name of the device type until an extension renames it


def holder() -> str | None:
    """Return the name of another package's device, if one is registered; None if there is none, or tensorgraft's."""
    name = torch.device(_FREE).type
    if name == _FREE:  # a device may have kernels before it has a name
        empty: Any = torch.ops.aten.empty.memory_format
        has_kernels = empty.has_kernel_for_dispatch_key("PrivateUse1")
        return _FREE if has_kernels else None
    return None if name == TYPE else name


def require_free() -> None:
    """Raise RuntimeError if another package has registered its device."""
    name = holder()
    if name is not None:
        raise RuntimeError(
            "tensorgraft cannot register its device, which it needs to run and trace PyTorch programs: the only"
            f" device type that PyTorch has for extensions (PrivateUse1) is taken by {name!r} of another package."
            " Start the program with `tensorgraft run --on jax program.py`, or with"
            " TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment, which keeps PyTorch from loading such packages."
        )


def may_register(wanted: bool) -> bool:
    """Return True if the device is to be registered at PyTorch's import. Called by PyTorch's function that imports all
    packages. `wanted`: register it even if other packages follow; these are then not imported, with a warning."""
    if holder() is not None or os.environ.get(AUTOLOAD) == "0":
        return False
    other_points = _unloaded_entry_points()
    if not other_points:
        return True
    if wanted or os.environ.get(AUTOLOAD) == "1":
        _skip(other_points)
        return True
    return False


def _unloaded_entry_points() -> list[Any]:
    """Return the entry points of other packages that PyTorch has not loaded yet."""
    points = sys._getframe(3).f_locals.get("backend_extensions")  # a local of PyTorch's loop: listing them is slow
    points = list(importlib.metadata.entry_points(group=GROUP) if points is None else points)
    own_index = next((k for k, point in enumerate(points) if is_ours(point)), len(points))
    return points[own_index + 1 :]


def _skip(points: list[Any]) -> None:
    """Make PyTorch's import skip these packages."""
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
    warn_of_skipped(points)


def warn_of_skipped(points: list[Any]) -> None:
    """Warn of the packages that PyTorch does not import."""
    names = ", ".join(f"{point.name} ({point.value})" for point in points)
    warning_filters.show_warning(
        f"tensorgraft has PyTorch's device of an extension in this process: it does not load {names}."
    )
