"""The translation of CUDA devices in scripts: the changes that `tensorgraft run` makes in PyTorch while it runs a
program.

Only device arguments are translated: `"cuda"`, `torch.device("cuda:0")`, an index, `.cuda()`. Every Python function of
PyTorch that takes a device is replaced by one that translates it and calls the original; operators are unchanged, so
calls without a device have no overhead. A `torch.device("cuda")` of the script remains one, as the script may compare
its `type` with `"cuda"`; tensors are on `graft`.

`torch.accelerator` needs no translation: it offers `graft` to a program that runs with `$TENSORGRAFT_BACKEND`.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._device

from tensorgraft.frontends.torch.core import devices, state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.device import cuda_api, file_locations, script_files
from tensorgraft.frontends.torch.device.cuda_translation import Patches, VisibleDevices
from tensorgraft.frontends.torch_entry import safetensors_files
from tensorgraft.hub import registry
from tensorgraft.importing import when_imported

# Functions that take `device=` by keyword. Those of `torch` first.
FACTORIES = {
    torch: """
        arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized
        empty_strided eye from_file full full_like hamming_window hann_window kaiser_window linspace logspace normal
        ones ones_like rand rand_like randint randint_like randn randn_like randperm range scalar_tensor
        sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor
        sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like
    """,
    torch.fft: "fftfreq rfftfreq",
    torch.nested: "as_nested_tensor nested_tensor",
    torch.Tensor: "new_empty new_empty_strided new_full new_ones new_tensor new_zeros",
    torch.nn.Module: "to_empty",
}
# Functions whose first argument, or the keyword after the name, is a device type.
DEVICE_TYPES = {
    torch: dict.fromkeys(["is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"], "device_type"),
    torch.amp: {"is_autocast_available": "device_type"},
}

_OF_CUDA = re.compile(r"\b(nccl|cuda)\b")


@contextlib.contextmanager
def as_accelerator(on: str, jit: Callable[..., Any]) -> Iterator[None]:
    """A context in which the backend `on` (as in `tg.device(on)`) takes the place of CUDA, and `torch.compile` of a
    function is `jit`.

    Raises BackendNotAvailableError for a backend that is unknown or not installed.
    """
    registry.lookup(registry.parse(on)[0])
    visible = VisibleDevices(on)
    # PyTorch fills this table on first use with what `torch.empty` and the others are then; it needs the originals.
    torch.utils._device._device_constructors()
    with Patches() as patches:
        patches.callback(_forget_functions)
        patches.callback(devices.set_current_index, devices.current_index())
        devices.set_current_index(visible.index(0))
        _translate_factories(patches, visible)
        _translate_moves(patches, visible)
        _translate_contexts(patches, visible)
        _translate_autocast(patches)
        _translate_groups(patches, visible)
        patches.set(torch, "compile", _compile(jit))
        patches.set(torch.nn.Module, "compile", lambda self, *args, **kwargs: None)
        cuda_api.install(patches, visible)
        yield


def _forget_functions() -> None:
    """Dynamo's tables of PyTorch's functions may have been made while ours stood in their places."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()


def _translate_factories(patches: Patches, visible: VisibleDevices) -> None:
    translate = visible.translate

    def keyword(original: Callable[..., Any]) -> Callable[..., Any]:
        def factory(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = translate(kwargs["device"])
            kwargs.pop("pin_memory", None)  # a backend needs no pinned memory
            return original(*args, **kwargs)

        return factory

    for owner, names in FACTORIES.items():
        for name in names.split():
            patches.wrap(owner, name, keyword)


def _translate_moves(patches: Patches, visible: VisibleDevices) -> None:
    translate = visible.translate

    def to(original: Callable[..., Any]) -> Callable[..., Any]:
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], (str, torch.device, int)):
                args = (translate(args[0]), *args[1:])
            elif "device" in kwargs:
                kwargs["device"] = translate(kwargs["device"])
            return original(self, *args, **kwargs)

        return to

    def tensor_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
        def cuda(
            self: torch.Tensor,
            device: Any = None,
            non_blocking: bool = False,
            memory_format: torch.memory_format = torch.preserve_format,
        ) -> torch.Tensor:
            if self.device.type == TYPE and device is None:
                return self
            return self.to(translate("cuda" if device is None else device), memory_format=memory_format)

        return cuda

    def module_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, device=None: self.to(translate("cuda" if device is None else device))

    def storage_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
        def cuda(self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False) -> torch.UntypedStorage:
            return self.to(device=translate("cuda" if device is None else device), non_blocking=non_blocking)

        return cuda

    def storage_new(original: Callable[..., Any]) -> Callable[..., Any]:
        def __new__(cls: Any, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
            if "device" in kwargs:
                kwargs["device"] = translate(kwargs["device"])
            return original(cls, *args, **kwargs)

        return __new__

    for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
        patches.wrap(owner, "to", to)
    patches.wrap(torch.UntypedStorage, "cuda", storage_cuda)
    patches.wrap(torch.UntypedStorage, "__new__", storage_new)
    patches.wrap(torch.Tensor, "cuda", tensor_cuda)
    patches.wrap(torch.nn.Module, "cuda", module_cuda)
    for kind in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage):
        patches.set(kind, "is_cuda", _is_cuda(kind.is_cuda))


def _is_cuda(original: Any) -> property:
    """The attribute, which is true on the device; not in PyTorch's decompositions, whose results are to be those of
    its meta functions (`log_sigmoid_forward` of CUDA tensors has no buffer)."""

    def is_cuda(self: Any) -> bool:
        return (self.device.type == TYPE and not state.now.decomposing) or original.__get__(self)

    return property(is_cuda, doc=original.__doc__)


def _translate_contexts(patches: Patches, visible: VisibleDevices) -> None:
    """Translate the device wherever else one is taken: `with torch.device("cuda"):`, default devices, `torch.load`,
    generators and events."""

    translate = visible.translate

    def device_context(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, device: original(self, translate(device))

    def restore(original: Callable[..., Any]) -> Callable[..., Any]:
        def default_restore_location(storage: Any, location: str) -> Any:
            try:
                new_location = translate(location)
            except RuntimeError as error:
                raise RuntimeError(
                    f"Attempting to deserialize object on {location}: {error}. Please use torch.load with map_location"
                    " to map your storages to an existing device."
                ) from None
            return original(storage, str(new_location))

        return default_restore_location

    def fake_location(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda location: translate(original(location))

    def new(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda cls, device=None, **options: original(cls, translate(device), **options)

    def generator(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda cls, device="cpu": original(cls, translate(device))

    patches.wrap(torch.Event, "__new__", new)
    patches.wrap(torch.Stream, "__new__", new)
    patches.wrap(torch.Generator, "__new__", generator)
    patches.wrap(torch.utils._device.DeviceContext, "__init__", device_context)
    patches.wrap(torch.serialization, "default_restore_location", restore)
    patches.wrap(torch._utils, "_get_restore_location", fake_location)
    patches.replace(file_locations, "location_name", visible.in_files)
    patches.replace(safetensors_files, "device_for", translate)
    patches.replace(script_files, "translate", visible.translate)


def _translate_autocast(patches: Patches) -> None:
    def typed(keyword: str, absent: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Translate the device type: the first argument after `self`, or `keyword`; CUDA where none is given."""

        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                bound, rest = (args[:absent], args[absent:])
                if rest:
                    rest = (TYPE if rest[0] == "cuda" else rest[0], *rest[1:])
                elif kwargs.get(keyword, "cuda") == "cuda":
                    kwargs[keyword] = TYPE
                return original(*bound, *rest, **kwargs)

            return call

        return wrapper

    def named(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device_type") == "cuda":
                kwargs["device_type"] = TYPE
            return original(*args, **kwargs)

        return call

    def set_enabled(original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a setter called as `(enabled)`, for CUDA, or as `(device_type, enabled)`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs and len(args) == 1:
                args = ("cuda", *args)
            return typed("device_type", 0)(original)(*args, **kwargs)

        return call

    patches.wrap(torch, "set_autocast_enabled", set_enabled)
    patches.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(TYPE))
    patches.set(torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(TYPE, dtype))
    for name in ("custom_fwd", "custom_bwd"):
        patches.wrap(torch.amp, name, named)
    patches.wrap(torch.amp.autocast, "__init__", typed("device_type", 1))
    patches.wrap(torch.amp.GradScaler, "__init__", typed("device", 1))
    for owner, names in DEVICE_TYPES.items():
        for name, keyword in names.items():
            patches.wrap(owner, name, typed(keyword, 0))


def _translate_groups(patches: Patches, visible: VisibleDevices) -> None:
    """Process groups of NCCL, which programs ask for by its name, and meshes of CUDA devices."""
    if not dist.is_available():
        return

    def backend(original: Callable[..., Any]) -> Callable[..., Any]:
        """ "nccl", "cpu:gloo,cuda:nccl" """
        return lambda cls, name: original(cls, _OF_CUDA.sub(TYPE, name.lower()) if isinstance(name, str) else name)

    def init(original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if "device_id" in kwargs:
                kwargs["device_id"] = visible.translate(kwargs["device_id"])
            backend_name = args[0] if args else kwargs.get("backend")
            if backend_name is None or TYPE in dist.Backend(backend_name):
                devices.start_together()
            original(*args, **kwargs)

        return init_process_group

    def mesh(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, device_type, *args, **kwargs: original(
            self, TYPE if device_type == "cuda" else device_type, *args, **kwargs
        )

    def hook_checked(original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients compressed to bfloat16 are asked for by who has NCCL 2.10."""

        def _check_comm_hook(self: Any, hook: Any) -> None:
            if not getattr(hook, "__name__", "").startswith("bf16_compress"):
                original(self, hook)

        return _check_comm_hook

    def fsdp() -> None:
        """`FullyShardedDataParallel` compares its `device_id` with where parameters are."""
        fsdp_utils = sys.modules["torch.distributed.fsdp._init_utils"]
        patches.wrap(fsdp_utils, "_get_device_from_device_id", device_id)

    def device_id(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda device, *args, **kwargs: original(
            visible.translate(device) if isinstance(device, torch.device) else device, *args, **kwargs
        )

    patches.callback(when_imported("torch.distributed.fsdp._init_utils", fsdp))
    patches.wrap(torch.nn.parallel.DistributedDataParallel, "_check_comm_hook", hook_checked)
    patches.set(torch._utils, "_get_available_device_type", lambda: TYPE)  # from which checkpoints copy
    patches.wrap(dist.Backend, "__new__", backend)
    patches.wrap(dist.device_mesh.DeviceMesh, "__init__", mesh)
    for owner in (dist, dist.distributed_c10d):
        patches.set(owner, "is_nccl_available", lambda: True)
        patches.wrap(owner, "init_process_group", init)


def _compile(jit: Callable[..., Any]) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:
        """Replace `torch.compile` while a script runs on a backend: functions are compiled by `tg.jit`.

        A module, or a method of one, is returned unchanged: its gradients are computed later, outside of the compiled
        function. Compiling is optional and changes no result.
        """
        if model is None:
            return functools.partial(compile, **options)
        if isinstance(getattr(model, "__self__", model), torch.nn.Module):
            return model
        return jit(model)

    return compile
