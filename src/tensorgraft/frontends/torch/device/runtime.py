"""`torch.accelerator` on the device: calls of C++ functions are answered by the device module.

PyTorch's C++ part of a Python device supports one index, and no allocator, streams or events. A process has one
accelerator, which is this device, so the functions of `torch._C` that `torch.accelerator` calls are replaced.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from tensorgraft.frontends.torch.core import devices, pytrees
from tensorgraft.frontends.torch.core.modes import function_modes
from tensorgraft.frontends.torch.core.tensors import TO_NUMPY
from tensorgraft.frontends.torch.device import module, scripted
from tensorgraft.frontends.torch_entry import patches


def nested_stats(device: Any = None) -> dict[str, Any]:
    """Return memory statistics as `torch.accelerator` nests them: {"allocated_bytes": {"all": {"current": ...}}}."""
    nested: dict[str, Any] = {}
    for name, figure in module.memory_stats(device).items():
        kind, pool, metric = name.split(".")
        nested.setdefault(kind, {}).setdefault(pool, {})[metric] = figure
    return nested


_ANSWERS: dict[str, Callable[..., Any]] = {
    "getDeviceIndex": module.current_device,
    "setDeviceIndex": module.set_device,
    "exchangeDevice": module.exchange_device,
    "maybeExchangeDevice": module.exchange_device,
    "synchronizeDevice": module.synchronize,
    "getStream": module.current_stream,
    "setStream": module.set_stream,
    "getDeviceCapability": lambda index: {"supported_dtypes": set(TO_NUMPY)},
    "isAllocatorInitialized": lambda: True,
    "emptyCache": module.empty_cache,
    "emptyHostCache": lambda: None,
    "getDeviceStats": nested_stats,
    "resetPeakStats": module.reset_peak_memory_stats,
    "resetAccumulatedStats": module.reset_accumulated_memory_stats,
    "getMemoryInfo": module.mem_get_info,
}


def _replaced_by(replacement: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda original: replacement


ACCELERATOR = {f"_accelerator_{name}": _replaced_by(ours) for name, ours in _ANSWERS.items()}


def install() -> None:
    devices.on_change.append(_follow_current)


def capturing(original: Callable[[], bool]) -> Callable[[], bool]:
    """Return True while `tg.jit` traces, which for libraries is like the capture of a CUDA graph: they check it before
    they read a tensor's value (transformers, for masks)."""
    return functools.wraps(original)(lambda: module.is_current_stream_capturing() or original())


def pin_memory(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the tensor itself if PyTorch would pin it for the device: a backend needs no pinned memory."""

    def call(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if device is not None and torch.device(device).type != devices.TYPE:
            return original(self, device)
        return self

    return functools.wraps(original)(call)


def on_one_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `DataParallel.forward`: the module runs on its first device without copies, with the same results."""

    def forward(self: torch.nn.DataParallel, *inputs: Any, **kwargs: Any) -> Any:
        where = getattr(self, "src_device_obj", None)
        if where is None or where.type != devices.TYPE:
            return original(self, *inputs, **kwargs)

        def move(x: Any) -> Any:
            return x.to(where) if isinstance(x, torch.Tensor) else x

        return self.module(*pytrees.mapped(move, inputs), **pytrees.mapped(move, kwargs))

    return functools.wraps(original)(forward)


# ---- the current device ----------------------------------------------------------------------------------------------

_following: weakref.WeakSet[DeviceContext] = weakref.WeakSet()  # default devices without an index
_WITHOUT_INDEX = torch.device("privateuseone")  # the device type is renamed only when the device is registered


def _follow_current(index: int) -> None:
    """Resolve devices without an index to the current device while that is not index 0, which C++ would take."""
    for context in _following:
        _update_device(context)
    if not index:
        patches.undo("index")
        return
    # PyTorch gives the default device to calls of functions in this set. It is filled at its first use, with the
    # current `torch.tensor`, and has to contain the originals.
    _device_constructors()
    patches.apply("index")


@functools.cache  # wrappers are kept: callers may hold them, and TorchScript's table does
def resolving(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _resolved(kwargs["device"])
        return original(*(_resolved(a) if isinstance(a, str | torch.device) else a for a in args), **kwargs)

    replacement = functools.wraps(original)(call)
    scripted.stand_for(replacement, original)
    return replacement


def _resolved(device: Any) -> Any:
    if isinstance(device, str | torch.device) and str(device) == devices.TYPE:
        return devices.slot_at(None).device
    return device


def context(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `DeviceContext.__init__`: a default device without an index means the device that is current when a
    tensor is made. (It is no property because Dynamo reads the attribute.)"""
    _following.update(
        mode for mode in function_modes() if isinstance(mode, DeviceContext) and mode.device == _WITHOUT_INDEX
    )

    def __init__(self: DeviceContext, device: Any) -> None:
        original(self, device)
        if self.device == _WITHOUT_INDEX:
            _following.add(self)
            _update_device(self)

    return functools.wraps(original)(__init__)


def _update_device(context: DeviceContext) -> None:
    context.device = devices.slot_at(None).device if devices.current_index() else _WITHOUT_INDEX
