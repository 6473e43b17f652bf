"""Functions of PyTorch's that meet the device without its C++ knowing, or for which the front end has its own.

Each is replaced by one that hands on, to PyTorch's until the front end is there. Then PyTorch's are put back, and the
front end replaces what it has to; a program that has one of ours (`from torch import cond`) gets the front end's by it.
"""

from __future__ import annotations

import functools
import importlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device
import torch.utils.dlpack

from tensorgraft.frontends.torch_entry import loading

# Where the storages of a file were: a record in a zip archive of `torch.save`, and in the legacy format, which tensors
# are pickled in, too, an entry of the table that comes first.
RECORD = ".tensorgraft/locations"
ENTRY = "tensorgraft_locations"

Touches = Callable[..., bool]

_waiting: list[tuple[Any, str, Callable[..., Any], Callable[[], None]]] = []  # (owner, name, ours, what steps aside)
scripts: weakref.WeakSet[Any] = weakref.WeakSet()  # every `ScriptModule` that Python has


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def never(*args: Any, **kwargs: Any) -> bool:
    """Of functions of tensors: where there are tensors of the device, the front end is there."""
    return False


def named(*args: Any, **kwargs: Any) -> bool:
    """An argument names the device."""
    return any(map(loading.names_the_device, (*args, *kwargs.values())))


def _has_entry(file: Any, *args: Any, **kwargs: Any) -> bool:
    if not (hasattr(file, "seek") and hasattr(file, "tell")):
        return False
    start = file.tell()
    try:
        return ENTRY.encode() in file.read(1024)
    finally:
        file.seek(start)


def install() -> None:
    for owner, name, touches in _table():
        _wait(owner, name, touches)
    torch._C._accelerator_getAccelerator = _accelerator(torch._C._accelerator_getAccelerator)  # type: ignore[assignment]
    storage: Any = torch.UntypedStorage
    storage.__new__ = _storage_new(storage.__new__)
    script: Any = torch.jit.RecursiveScriptModule
    script.__init__ = _script_init(script.__init__)
    torch.serialization.register_package(5, lambda storage: None, _restored)


def step_aside() -> None:
    """The front end is about to take over."""
    for owner, name, ours, aside in reversed(_waiting):
        if vars(owner).get(name) is ours:  # else somebody has put theirs around it
            aside()


def _table() -> list[tuple[Any, str, Touches]]:
    serialization, forward_ad = torch.serialization, torch.autograd.forward_ad
    compilers = (torch._TorchCompileInductorWrapper, torch._TorchCompileWrapper)
    higher = importlib.import_module("torch._higher_order_ops")
    table: list[tuple[Any, str, Touches]] = [
        (torch.UntypedStorage, "to", named),
        (torch.Tensor, "pin_memory", always),
        (torch.utils._device.DeviceContext, "__init__", named),
        (serialization, "_load", lambda archive, *args, **kwargs: archive.has_record(RECORD)),
        (serialization, "_legacy_load", _has_entry),
        (torch.jit, "load", always),  # a file may name the device
        (torch.jit._serialization, "load", always),
        *((owner, name, named) for owner in (torch, torch.utils.dlpack) for name in ("to_dlpack", "from_dlpack")),
        *((owner, "_engine_run_backward", never) for owner in (torch.autograd.graph, torch.autograd)),
        *((forward_ad, name, never) for name in ("make_dual", "exit_dual_level")),
        *((compiler, "__init__", always) for compiler in compilers),  # Dynamo has to be told what is ours
        *((torch._C, name, always) for name in dir(torch._C) if name.startswith("_accelerator_")),
        (torch.cuda, "is_current_stream_capturing", never),
        (torch.cuda.graphs, "is_current_stream_capturing", never),
        (torch, "clear_autocast_cache", never),
    ]
    for name in ("cond", "while_loop", "scan", "associative_scan"):
        home = importlib.import_module(f"{higher.__name__}.{name}")
        owners = [owner for owner in (higher, torch) if getattr(owner, name, None) is getattr(home, name)]
        table += [(owner, name, never) for owner in (home, *owners)]
    return [row for row in table if row[1] != "_accelerator_getAccelerator"]


def _wait(owner: Any, name: str, touches: Touches) -> None:
    own = vars(owner).get(name)
    original: Callable[..., Any] = getattr(owner, name)
    gone = False

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not gone and touches(*args, **kwargs):
            loading.load()
        return (getattr(owner, name) if gone else original)(*args, **kwargs)

    def aside() -> None:
        nonlocal gone
        gone = True
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, call)
    _waiting.append((owner, name, call, aside))


# ---- those that stay -------------------------------------------------------------------------------------------------


def _accelerator(original: Callable[[], torch.device | None]) -> Callable[[], torch.device | None]:
    """PyTorch takes a registered device of Python's for the accelerator. A script that never asked for ours does not
    get it for being installed."""

    def get_accelerator() -> torch.device | None:
        if os.environ.get("TENSORGRAFT_BACKEND") or (loading.loaded() and loading.part("core.devices").in_use()):
            return original()
        others = (kind for kind in ("cuda", "xpu", "mps") if getattr(torch, kind).is_available())
        return next(map(torch.device, others), None)

    return get_accelerator


def _storage_new(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.UntypedStorage(..., device="graft")`, for which C++ has no allocator."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and loading.names_the_device(device):
            loading.load()
            return loading.part("device.storages").create(*args, **kwargs)
        return original(cls, *args, **kwargs)

    return new


def _script_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        scripts.add(self)

    return __init__


def _restored(storage: Any, location: Any) -> Any:
    """`torch.load`: the storage at a location of ours; None for others."""
    if not (loading.loaded() or loading.names_the_device(str(location))):
        return None
    loading.load()
    return loading.part("device.file_locations").restored(storage, location)
