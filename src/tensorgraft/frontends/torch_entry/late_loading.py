"""Functions of PyTorch that can receive the device before the front end is loaded, and load it.

The table `patches` lists them. Each calls PyTorch's function until the front end is loaded; then PyTorch's functions
are restored, and the front end applies its own changes.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch_entry import loading

# The devices of the storages in a file of `torch.save`: the name of a record in the zip archive, and of an entry in the
# first table of the legacy format and of pickled tensors.
RECORD = ".tensorgraft/locations"
ENTRY = "tensorgraft_locations"

Touches = Callable[..., bool]

scripts: weakref.WeakSet[Any] = weakref.WeakSet()  # every `ScriptModule` that Python has


def loading_first(original: Callable[..., Any], touches: Touches, replacement: Callable[[], Callable[..., Any]]) -> Any:
    """Wrap `original` so that a call which involves the device loads the front end; from then on it calls
    `replacement()`. A program that has imported the function by name (`from torch.jit import load`) gets the front
    end's in this way."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if replacement() is original and touches(*args, **kwargs):
            loading.load()
        return replacement()(*args, **kwargs)

    return call


# ---- calls that touch the device -------------------------------------------------------------------------------------


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def names_device(*args: Any, **kwargs: Any) -> bool:
    """Return True if an argument names the device."""
    return any(map(loading.names_the_device, (*args, *kwargs.values())))


def has_record(archive: Any, *args: Any, **kwargs: Any) -> bool:
    return archive.has_record(RECORD)


def has_entry(file: Any, *args: Any, **kwargs: Any) -> bool:
    if not (hasattr(file, "seek") and hasattr(file, "tell")):
        return False
    start = file.tell()
    try:
        return ENTRY.encode() in file.read(1024)
    finally:
        file.seek(start)


def compiles_here(wrapper: Any, backend: Any, *args: Any, **kwargs: Any) -> bool:
    return backend == "tensorgraft"


# ---- those that stay -------------------------------------------------------------------------------------------------


def accelerator(original: Callable[[], torch.device | None]) -> Callable[[], torch.device | None]:
    """PyTorch takes a registered device of Python's for the accelerator. A script that never asked for ours does not
    get it for being installed."""

    def get_accelerator() -> torch.device | None:
        if os.environ.get("TENSORGRAFT_BACKEND") or (loading.loaded() and loading.part("core.devices").in_use()):
            return original()
        other_kinds = (kind for kind in ("cuda", "xpu", "mps") if getattr(torch, kind).is_available())
        return next(map(torch.device, other_kinds), None)

    return get_accelerator


def accelerator_or_cpu(original: Callable[..., torch.device]) -> Callable[..., torch.device]:
    """Return the result of `torch._C._get_accelerator`, which FSDP and process groups call, or the CPU if there is
    none."""
    first = accelerator(torch._C._accelerator_getAccelerator)

    def get_accelerator(check: bool | None = None) -> torch.device:
        device = first()
        return original(check) if device is not None else torch.device("cpu")

    return get_accelerator


def storage_new(original: Callable[..., Any]) -> Callable[..., Any]:
    """Implement `torch.UntypedStorage(..., device="graft")`, for which C++ has no allocator."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and loading.names_the_device(device):
            loading.load()
            return loading.part("device.storages").create(*args, **kwargs)
        return original(cls, *args, **kwargs)

    return new


def script_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        scripts.add(self)

    return __init__


def register_locations() -> None:
    torch.serialization.register_package(5, lambda storage: None, _restored)


def _restored(storage: Any, location: Any) -> Any:
    """`torch.load`: the storage at a location of ours; None for others."""
    if not (loading.loaded() or loading.names_the_device(str(location))):
        return None
    loading.load()
    return loading.part("device.file_locations").restored(storage, location)
