"""The device module `torch.graft`, with the functions that `torch.cuda` has under the same names.

An argument `device` is a `torch.device`, a string or an index; None means the current device. Memory figures are the
backend's (`Backend.memory_stats`) and 0 where it has none.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.frontends.torch.core import devices, state
from tensorgraft.frontends.torch.device import fork_guard
from tensorgraft.frontends.torch.device.streams import StreamContext
from tensorgraft.frontends.torch_entry.classes import Event, Generator, Stream

Device = torch.device | str | int | None

_initialized = True  # `torch.utils.checkpoint` saves random states only if this is True

__all__ = [
    "DeviceProperties",
    "Event",
    "Generator",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


# ---- devices ---------------------------------------------------------------------------------------------------------


def _slot(device: Device) -> devices.Slot:
    """Raises ValueError for a device of another type, RuntimeError for an index that does not exist."""
    if isinstance(device, str | torch.device) and torch.device(device).type != devices.TYPE:
        raise ValueError(f"Expected a {devices.TYPE} device, but got: {device}")
    return devices.slot_of(device)


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    """Return whether the program has chosen or used a device. Until then a `DeviceMesh` chooses, as with CUDA."""
    return _is_chosen or devices.started()


def init() -> None:
    """Nothing to do: a backend starts when its device is first used."""


def device_count() -> int:
    """Return the number n of the default backend's devices, indices 0 to n - 1. Other backends have later indices."""
    return devices.count()


def current_device() -> int:
    return devices.current_index()


_is_chosen = False


def set_device(device: Device) -> None:
    """Make a device the one that `"graft"` without an index means; nothing for a negative index, as with CUDA."""
    global _is_chosen
    if not (isinstance(device, int) and device < 0):
        _is_chosen = True
        devices.start_together()
        devices.set_current_index(_slot(device).index)


def exchange_device(index: int) -> int:
    """Set the current device and return the one before; nothing for a negative index."""
    before = devices.current_index()
    set_device(index)
    return before


class device:
    """`with torch.graft.device(1):` the current device inside; None or a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        none = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if none else _slot(device).index
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = exchange_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        set_device(self.prev_idx)


class device_of(device):
    """The device of a tensor or storage as the current one; no change for one that is not on the device type."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == devices.TYPE else None)


@dataclass(frozen=True)
class DeviceProperties:
    name: str  # a readable name
    backend: str  # the name in `tensorgraft.device(name)`
    total_memory: int  # bytes


def get_device_name(device: Device = None) -> str:
    """Return the backend and its device, for example "jax (CPU)"."""
    slot = _slot(device)
    return f"{slot.name} ({slot.backend.device_name()})"


def get_device_properties(device: Device = None) -> DeviceProperties:
    return DeviceProperties(get_device_name(device), _slot(device).name, mem_get_info(device)[1])


def get_device_capability(device: Device = None) -> None:
    """Return None: no number describes the capabilities of a backend."""
    _slot(device)


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Return False: values go from backend to backend through the host."""
    return _slot(device) is _slot(peer_device)


def synchronize(device: Device = None) -> None:
    """Wait until all operations on a device have finished."""
    _slot(device).backend.synchronize()


def _is_in_bad_fork() -> bool:
    return fork_guard.in_bad_fork()


def _is_compiled() -> bool:
    return True


# ---- random numbers --------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    state.random_state(current_device()).reseed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device, those included that have no index yet."""
    state.seed_all(int(seed))


def seed() -> int:
    """Seed the current device with a random number; returns it."""
    manual_seed(number := state.unknown_seed())
    return number


def seed_all() -> int:
    manual_seed_all(number := state.unknown_seed())
    return number


def initial_seed() -> int:
    """Return the seed of the current device."""
    return state.random_state(current_device()).seed & 0xFFFFFFFFFFFFFFFF


def get_rng_state(device: Device = devices.TYPE) -> torch.Tensor:
    """Return uint8 (16,), on the CPU: the seed and the number of draws since."""
    return torch.frombuffer(bytearray(state.random_state(_slot(device).index).get_state()), dtype=torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: Device = devices.TYPE) -> None:
    """Set the random state of a device. Raises TypeError for anything but a uint8 tensor on the CPU, RuntimeError for
    another size."""
    if not isinstance(new_state, torch.Tensor) or new_state.device.type != "cpu" or new_state.dtype != torch.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    if new_state.numel() != 16:
        raise RuntimeError("RNG state is wrong size")
    state.random_state(_slot(device).index).set_state(bytes(new_state.tolist()))


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random state of every device that has an index, those of other backends included."""
    device_count()
    return [get_rng_state(slot.index) for slot in devices.slots()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for i, new_state in enumerate(new_states):
        set_rng_state(new_state, i)


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory_allocated(device: Device = None) -> int:
    """Bytes in use now."""
    return _slot(device).backend.memory_stats().get("allocated", 0)


def max_memory_allocated(device: Device = None) -> int:
    """Return the most bytes in use at a time since the program began."""
    return _slot(device).backend.memory_stats().get("peak", 0)


def memory_reserved(device: Device = None) -> int:
    """Return `memory_allocated`: backends do not report memory that they keep beyond that."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    return max_memory_allocated(device)


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
    """Return the figures under the names that `torch.cuda.memory_stats` gives them; empty where the backend has
    none."""
    stats: OrderedDict[str, int] = OrderedDict()
    for name, figure in _slot(device).backend.memory_stats().items():
        kind = {"allocated": "current", "peak": "peak"}.get(name)
        if kind is not None:
            stats[f"allocated_bytes.all.{kind}"] = stats[f"reserved_bytes.all.{kind}"] = figure
    return stats


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return (free, total) bytes: the backend's limit, or the memory of the machine where it has none."""
    stats = _slot(device).backend.memory_stats()
    if "limit" in stats:
        return stats["limit"] - stats.get("allocated", 0), stats["limit"]
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    lines = [f"{name}: {figure:,}" for name, figure in memory_stats(device).items()]
    return "\n".join([get_device_name(device), *(lines or ["the backend has no figures"])])


def empty_cache() -> None:
    """Nothing to do: the backend keeps its memory itself."""


def reset_peak_memory_stats(device: Device = None) -> None:
    """Nothing happens: backends keep one peak, from the beginning of the program."""


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Nothing to do: nothing is accumulated."""


# ---- mixed precision, streams ----------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def current_stream(device: Device = None) -> Stream:
    return Stream(devices.TYPE)


default_stream = current_stream


def set_stream(stream: Stream) -> None:
    """Nothing to do: there is one stream."""


def is_current_stream_capturing() -> bool:
    """Return whether `tg.jit` is tracing: operations are recorded, and no tensor has a value to ask for."""
    return state.now.capture is not None


def stream(stream: Stream | None = None) -> StreamContext:
    """Implement `with torch.graft.stream(s):`."""
    return StreamContext(stream)
