"""The module `torch.cuda` of a program whose CUDA is a backend (see `accelerator`).

What the device module of `graft` has under the same name is taken from there; the rest is here: device numbers, the
questions that only CUDA answers, and what has no meaning here and does nothing. Other names refuse (`cuda_absent`).
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch.device import cuda_absent, cuda_legacy, module, streams
from tensorgraft.frontends.torch.device.cuda_translation import Patches, VisibleDevices
from tensorgraft.frontends.torch.device.runtime import nested_stats

# Functions of `torch.graft` that serve as those of `torch.cuda`: with a device among the arguments, and without.
ON_A_DEVICE = """
    can_device_access_peer current_stream default_stream get_device_name get_rng_state max_memory_allocated
    max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats memory_summary
    reset_accumulated_memory_stats reset_peak_memory_stats set_device set_rng_state synchronize
"""
SHARED = """
    Event Stream device_of empty_cache init initial_seed is_available is_bf16_supported is_current_stream_capturing
    is_initialized manual_seed manual_seed_all seed seed_all set_stream stream _is_in_bad_fork
"""
# No meaning here: nothing is done.
NOTHING = """
    caching_allocator_enable ipc_collect reset_accumulated_host_memory_stats reset_max_memory_allocated
    reset_max_memory_cached reset_peak_host_memory_stats set_per_process_memory_fraction set_sync_debug_mode
    _lazy_init nvtx.mark nvtx.range_pop nvtx.range_push nvtx.range_end nvtx.range_start profiler.start profiler.stop
"""
# The lowest compute capability with bfloat16, for which scripts check it.
CAPABILITY = (8, 0)


def submodules() -> dict[str, types.ModuleType]:
    """Return `torch.cuda` and its public submodules by name: "", "amp", "amp.common", ..."""
    names = [m.name for m in pkgutil.walk_packages(torch.cuda.__path__, "torch.cuda.") if "._" not in m.name]
    return {"": torch.cuda, **{n.removeprefix("torch.cuda."): importlib.import_module(n) for n in names}}


def current_ordinal(visible: VisibleDevices) -> int:
    """Return the ordinal of the current device among the visible ones; 0 where it is not visible."""
    current = devices.current_index()
    return next((i for i, name in enumerate(visible.names) if devices.slot_named(name).index == current), 0)


def install(patches: Patches, visible: VisibleDevices) -> None:
    """Make `torch.cuda` the backend's until the patches are undone."""
    replacements: dict[str, Any] = {name: _on_visible(getattr(module, name), visible) for name in ON_A_DEVICE.split()}
    replacements |= {name: getattr(module, name) for name in SHARED.split()}
    replacements |= dict.fromkeys(NOTHING.split(), lambda *args, **kwargs: None)
    replacements |= _functions(visible)
    modules = submodules()
    replacements |= cuda_absent.refusals(modules, visible.on, {*replacements, *cuda_legacy.NAMES})
    _replace(patches, modules, replacements)
    patches.set(torch.accelerator, "device_count", lambda: len(visible.names))
    _install_parallel(patches, visible)
    cuda_legacy.install(patches)


def _replace(patches: Patches, modules: dict[str, types.ModuleType], replacements: dict[str, Any]) -> None:
    """Put replacements, by "name" or "module.name", into `torch.cuda` and its modules: also where one of them has
    imported the original from another."""
    originals: dict[int, tuple[Any, Any]] = {}  # {id: (the original, its replacement)}
    for path, replacement in replacements.items():
        module_path, _, name = path.rpartition(".")
        if hasattr(modules[module_path], name):
            original = getattr(modules[module_path], name)
            if callable(original):
                originals[id(original)] = original, replacement
            patches.set(modules[module_path], name, replacement)
    private = [m for name, m in sys.modules.items() if name.startswith("torch.cuda._")]
    for owner in {id(m): m for m in (*modules.values(), *private)}.values():
        for name, value in list(vars(owner).items()):
            if id(value) in originals:
                patches.set(owner, name, originals[id(value)][1])


def _on_visible(function: Callable[..., Any], visible: VisibleDevices) -> Callable[..., Any]:
    """Wrap a function of the device module, so that it takes devices by the numbers that CUDA gives them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(visible.translate(a) if isinstance(a, (str, torch.device, int)) else a for a in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = visible.translate(kwargs["device"])
        return function(*args, **kwargs)

    return call


def _functions(visible: VisibleDevices) -> dict[str, Any]:
    """Return the definitions of this module for `torch.cuda`, by name."""

    class Device(module.device):
        """`with torch.cuda.device(index):`; a negative index or None changes nothing."""

        def __init__(self, device: Any) -> None:
            super().__init__(device if isinstance(device, int) and device < 0 else visible.translate(device))

    def get_device_properties(device: Any = None) -> types.SimpleNamespace:
        properties = module.get_device_properties(visible.translate(device))
        major, minor = CAPABILITY
        return types.SimpleNamespace(
            name=properties.name,
            total_memory=properties.total_memory,
            major=major,
            minor=minor,
            multi_processor_count=1,
        )

    def device_memory_used(device: Any = None) -> int:
        free, total = module.mem_get_info(visible.translate(device))
        return total - free

    def get_rng_state_all() -> list[torch.Tensor]:
        return [module.get_rng_state(i) for i in visible.indices]

    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        for ordinal, new_state in enumerate(new_states):
            module.set_rng_state(new_state, visible.index(ordinal))

    def check_error(res: int) -> None:
        if res:
            raise CudaError(res)

    return {
        **_CONSTANT,
        "check_error": check_error,
        "current_device": lambda: current_ordinal(visible),
        "default_generators": Generators(visible),
        "device": Device,
        "device_count": lambda: len(visible.names),
        "device_memory_used": device_memory_used,
        "get_device_properties": get_device_properties,
        "get_rng_state_all": get_rng_state_all,
        "memory_stats_as_nested_dict": _on_visible(nested_stats, visible),
        "set_rng_state_all": set_rng_state_all,
    }


class CudaError(RuntimeError):
    """`torch.cuda.CudaError`, of a number that no library of CUDA can put into words."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")


# functions that do not depend on the visible devices
_CONSTANT: dict[str, Any] = {
    "CudaError": CudaError,
    "StreamContext": streams.StreamContext,
    "caching_allocator_disabled": contextlib.nullcontext,
    "get_allocator_backend": lambda: "native",
    "get_arch_list": list,
    "get_device_capability": lambda device=None: CAPABILITY,
    "get_gencode_flags": str,
    "get_per_process_memory_fraction": lambda device=None: 1.0,
    "get_sync_debug_mode": int,
    "host_memory_stats": dict,
    "host_memory_stats_as_nested_dict": dict,
    "is_tf32_supported": lambda: False,
    "_lazy_call": lambda function, **options: function(),
    "nccl.is_available": lambda tensors: False,
    "profiler.profile": contextlib.nullcontext,
    "tunable.is_enabled": lambda: False,
    "tunable.record_untuned_is_enabled": lambda: False,
    "tunable.tuning_is_enabled": lambda: False,
}


class Generators(Sequence[Any]):
    """`torch.cuda.default_generators`: the random state of each device that the program sees."""

    def __init__(self, visible: VisibleDevices) -> None:
        self._visible = visible

    def __len__(self) -> int:
        return len(self._visible.names)

    def __getitem__(self, ordinal: Any) -> Any:
        return DefaultGenerator(self._visible.index(range(len(self))[ordinal]))


class DefaultGenerator:
    """The random state of a device, with a generator's methods. PyTorch's C++ knows no such generator: `generator=`
    takes a `torch.Generator`."""

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def device(self) -> torch.device:
        return devices.slot_at(self._index).device

    def get_state(self) -> torch.Tensor:
        return module.get_rng_state(self._index)

    def set_state(self, new_state: torch.Tensor) -> None:
        module.set_rng_state(new_state, self._index)

    def manual_seed(self, seed: int) -> DefaultGenerator:
        with module.device(self._index):
            module.manual_seed(seed)
        return self

    def seed(self) -> int:
        with module.device(self._index):
            return module.seed()

    def initial_seed(self) -> int:
        with module.device(self._index):
            return module.initial_seed()


def _install_parallel(patches: Patches, visible: VisibleDevices) -> None:
    """Replace PyTorch's own queries of all devices. `DataParallel` keeps to the first (`runtime.on_one_device`)."""
    # by its full name: the attribute `torch.nn.parallel.data_parallel` is a function, not the module
    parallel = importlib.import_module("torch.nn.parallel.data_parallel")
    for name, value in {
        "_get_available_device_type": lambda: devices.TYPE,
        "_get_all_device_indices": lambda: visible.indices[:1],
        "_check_balance": lambda ids: None,
    }.items():
        patches.set(parallel, name, value)

    def fork_rng(original: Callable[..., Any]) -> Callable[..., Any]:
        def fork_rng(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
            return original(visible.indices if devices is None else devices, *args, **kwargs)

        return fork_rng

    patches.wrap(torch.random, "fork_rng", fork_rng)
