"""The module `torch.cuda` of a program whose CUDA is a backend (see `accelerator`).

What the device module of `graft` has under the same name is taken from there; the rest is here: device numbers, the
questions that only CUDA answers, legacy tensor types, and what has no meaning here and does nothing.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from tensorgraft.frontends.torch import devices, module

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.accelerator import Patches, Visible

# Taken from the device module: those that take a device, and the others.
ON_A_DEVICE = """
    current_stream default_stream get_device_name get_rng_state max_memory_allocated max_memory_reserved mem_get_info
    memory_allocated memory_reserved memory_stats memory_summary reset_accumulated_memory_stats
    reset_peak_memory_stats set_device set_rng_state synchronize
"""
SHARED = """
    Event Stream device_of empty_cache get_rng_state_all init initial_seed is_available is_bf16_supported
    is_current_stream_capturing is_initialized manual_seed manual_seed_all seed seed_all set_rng_state_all set_stream
    stream
"""
# No meaning here: nothing is done.
NOTHING = """
    ipc_collect reset_max_memory_allocated reset_max_memory_cached set_per_process_memory_fraction set_sync_debug_mode
"""
# The compute capability that scripts read to find out whether there is bfloat16: the first that has it.
CAPABILITY = (8, 0)
LEGACY = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def current_ordinal(visible: Visible) -> int:
    """Which visible device is the current one."""
    current = devices.current_index()
    return next((i for i, name in enumerate(visible.names) if devices.slot_named(name).index == current), 0)


def install(patches: Patches, visible: Visible) -> None:
    """Make `torch.cuda` the backend's until the patches are undone."""
    for name in ON_A_DEVICE.split():
        patches.set(torch.cuda, name, _on_visible(getattr(module, name), visible))
    for name in SHARED.split():
        patches.set(torch.cuda, name, getattr(module, name))
    for name in NOTHING.split():
        patches.set(torch.cuda, name, lambda *args, **kwargs: None)
    for name in ("range_push", "range_pop", "mark"):
        patches.set(torch.cuda.nvtx, name, lambda *args, **kwargs: None)
    for name, value in _functions(visible).items():
        patches.set(torch.cuda, name, value)
    patches.set(torch.accelerator, "device_count", lambda: len(visible.names))
    _install_parallel(patches, visible)
    _install_legacy_types(patches)


def _on_visible(function: Callable[..., Any], visible: Visible) -> Callable[..., Any]:
    """`function` of the device module, given CUDA's devices."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(visible.translate(a) if isinstance(a, (str, torch.device, int)) else a for a in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = visible.translate(kwargs["device"])
        return function(*args, **kwargs)

    return call


def _functions(visible: Visible) -> dict[str, Any]:
    class Device(module.device):
        """`with torch.cuda.device(index):`; a negative index or None changes nothing."""

        def __init__(self, device: Any) -> None:
            super().__init__(device if isinstance(device, int) and device < 0 else visible.translate(device))

    def get_device_properties(device: Any = None) -> types.SimpleNamespace:
        found = module.get_device_properties(visible.translate(device))
        major, minor = CAPABILITY
        return types.SimpleNamespace(
            name=found.name, total_memory=found.total_memory, major=major, minor=minor, multi_processor_count=1
        )

    return {
        "device": Device,
        "device_count": lambda: len(visible.names),
        "current_device": lambda: current_ordinal(visible),
        "get_device_properties": get_device_properties,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_arch_list": list,
        "is_tf32_supported": lambda: False,
    }


def _install_parallel(patches: Patches, visible: Visible) -> None:
    """What PyTorch's own code asks about all devices. `DataParallel` keeps to the first: its results are the same."""

    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        def move(x: Any) -> Any:
            return x.to(self.src_device_obj) if isinstance(x, torch.Tensor) else x

        return (tree_map(move, inputs),), (tree_map(move, kwargs or {}),)

    # not the function of the same name, which hides it
    parallel = importlib.import_module("torch.nn.parallel.data_parallel")
    for name, value in {
        "_get_available_device_type": lambda: devices.TYPE,
        "_get_all_device_indices": lambda: visible.indices[:1],
        "_check_balance": lambda ids: None,
    }.items():
        patches.set(parallel, name, value)
    patches.set(torch.nn.DataParallel, "scatter", scatter)

    def fork_rng(original: Callable[..., Any]) -> Callable[..., Any]:
        def fork_rng(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(visible.indices if devices is None else devices, *args, **kwargs)

        return fork_rng

    patches.wrap(torch.random, "fork_rng", fork_rng)


class _LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and the others: a dtype on the device, as PyTorch before 0.4 wrote it."""

    dtype: torch.dtype
    make: Callable[..., torch.Tensor]

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cls.make(*args, **kwargs).to("cuda")

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, torch.Tensor) and x.device.type == devices.TYPE and x.dtype == cls.dtype


def _install_legacy_types(patches: Patches) -> None:
    classes: dict[str, _LegacyType] = {}
    for name, dtype in LEGACY.items():
        fields = {"dtype": dtype, "make": staticmethod(getattr(torch, name))}
        classes[name] = _LegacyType(name, (), fields)
        patches.set(torch.cuda, name, classes[name])

    def type_(original: Callable[..., Any]) -> Callable[..., Any]:
        def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                dtype = classes.get(dtype.rpartition(".")[2], dtype)
            if isinstance(dtype, _LegacyType):
                return self.to("cuda", dtype.dtype)
            if dtype is None and self.device.type == devices.TYPE:
                return original(self).replace(f"torch.{devices.TYPE}.", "torch.cuda.")
            return original(self, dtype, non_blocking, **kwargs)

        return type

    def set_default(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_default_tensor_type(t: Any) -> None:
            legacy = classes.get(t.rpartition(".")[2]) if isinstance(t, str) and t.startswith("torch.cuda.") else t
            if not isinstance(legacy, _LegacyType):
                original(t)
                return
            torch.set_default_dtype(legacy.dtype)
            torch.set_default_device("cuda")

        return set_default_tensor_type

    patches.wrap(torch.Tensor, "type", type_)
    patches.wrap(torch, "set_default_tensor_type", set_default)
