"""The module `torch.cuda` of a program whose CUDA is a backend (see `accelerator`).

What the device module of `graft` has under the same name is taken from there; the rest is here: device numbers, streams
and events (work on a backend is in order: one stream), legacy tensor types, and what has no meaning here and does
nothing.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tensorgraft.frontends.torch import devices

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.accelerator import Patches, Visible

# Taken from the device module of `graft`, where it has them.
SHARED = """
    empty_cache get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all max_memory_allocated
    max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats memory_summary
    reset_peak_memory_stats seed seed_all set_rng_state set_rng_state_all synchronize
"""
# No meaning here: nothing is done.
NOTHING = """
    init ipc_collect reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached
    set_per_process_memory_fraction set_stream set_sync_debug_mode
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
    module = torch.get_device_module(devices.TYPE)
    for name in SHARED.split():
        if hasattr(module, name):
            patches.set(torch.cuda, name, _on_visible(getattr(module, name), visible))
    for name in NOTHING.split():
        patches.set(torch.cuda, name, lambda *args, **kwargs: None)
    for name, value in _functions(visible).items():
        patches.set(torch.cuda, name, value)
    # PyTorch's own code (DataParallel, fork_rng) asks the device module: it is to see the same devices.
    patches.set(module, "device_count", lambda: len(visible.names))
    for owner in (torch._utils, torch.nn.parallel.data_parallel):
        patches.set(owner, "_get_available_device_type", lambda: devices.TYPE)
    for name in ("range_push", "range_pop", "mark"):
        patches.set(torch.cuda.nvtx, name, lambda *args, **kwargs: None)
    _install_legacy_types(patches, visible)
    _install_generator(patches)


def _on_visible(function: Callable[..., Any], visible: Visible) -> Callable[..., Any]:
    """`function` of the device module, given CUDA's devices."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(visible.translate(a) if isinstance(a, (str, torch.device)) else a for a in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = visible.translate(kwargs["device"])
        return function(*args, **kwargs)

    return call


def _functions(visible: Visible) -> dict[str, Any]:
    def slot(device: Any = None) -> devices.Slot:
        return devices.slot_at(visible.index(visible.ordinal(device)))

    def set_device(device: Any) -> None:
        devices.set_current_index(slot(device).index)

    class Device:
        """`with torch.cuda.device(index):`; a negative index or None changes nothing."""

        def __init__(self, device: Any) -> None:
            self.device = None if device is None or device == -1 else device

        def __enter__(self) -> None:
            self.previous = devices.current_index()
            if self.device is not None:
                set_device(self.device)

        def __exit__(self, *exception: object) -> None:
            devices.set_current_index(self.previous)

    def get_device_properties(device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name=get_device_name(device),
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=slot(device).backend.memory_stats().get("limit", 0),
            multi_processor_count=1,
        )

    def get_device_name(device: Any = None) -> str:
        return slot(device).backend.device_name()

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: len(visible.names),
        "current_device": lambda: current_ordinal(visible),
        "set_device": set_device,
        "device": Device,
        "device_of": lambda tensor: Device(tensor.device if tensor.device.type == devices.TYPE else None),
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_arch_list": list,
        "Event": lambda *args, **kwargs: Event(torch.get_device_module(devices.TYPE).synchronize),
        "Stream": Stream,
        "ExternalStream": Stream,
        "current_stream": Stream,
        "default_stream": Stream,
        "stream": stream,
    }


# ---- streams and events ----------------------------------------------------------------------------------------------


class Stream:
    """The one stream: what is asked for on it is done in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def synchronize(self) -> None:
        torch.get_device_module(devices.TYPE).synchronize()

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Stream) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(self.synchronize) if event is None else event
        event.record()
        return event


@contextlib.contextmanager
def stream(which: Stream | None = None) -> Iterator[None]:
    """`with torch.cuda.stream(s):`."""
    yield


class Event:
    """A moment in the work of the device: recording it waits until what was asked for so far is done."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._time: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._synchronize()
        self._time = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if self._time is None or end._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1e3

    def synchronize(self) -> None:
        self._synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True


# ---- classes ---------------------------------------------------------------------------------------------------------


class _LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and the others: a dtype on the device, as PyTorch before 0.4 wrote it."""

    dtype: torch.dtype
    make: Callable[..., torch.Tensor]

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cls.make(*args, **kwargs).to("cuda")

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, torch.Tensor) and x.device.type == devices.TYPE and x.dtype == cls.dtype


def _install_legacy_types(patches: Patches, visible: Visible) -> None:
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


def _install_generator(patches: Patches) -> None:
    original = torch.Generator

    class GeneratorType(type):
        def __instancecheck__(cls, x: object) -> bool:
            return isinstance(x, original)

    class Generator(metaclass=GeneratorType):
        """`torch.Generator`; one for CUDA is a generator of the CPU, which the kernels of `graft` accept."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return original("cpu" if torch.device(device).type == "cuda" else device)

    patches.set(torch, "Generator", Generator)
