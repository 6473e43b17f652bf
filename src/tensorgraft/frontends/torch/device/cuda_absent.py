"""Functions of `torch.cuda` that a backend has no equivalent of: calls raise an error that says so."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import ModuleType
from typing import Any

# Correct without changes: they return values without a device, or call functions that are replaced.
KEPT = """
    Device DeferredCudaCallError cudaStatus max_memory_cached memory_cached OutOfMemoryError AcceleratorError
    has_half has_magma nvtx.range
    BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage
    FloatStorage HalfStorage IntStorage LongStorage ShortStorage
"""
KEPT_MODULES = ("amp",)
# Private, and in PyTorch's documentation.
DOCUMENTED = """
    _compile_kernel _sleep jiterator._create_jit_fn jiterator._create_multi_output_jit_fn memory._dump_snapshot
    memory._record_memory_history memory._save_memory_usage memory._save_segment_usage memory._set_allocator_settings
    memory._snapshot
"""
# {module or name: advice for the error message}
INSTEAD = {
    "comm": "tensor.to(device) copies between devices",
    "nccl": "tensor.to(device) copies between devices",
    "graphs": "torch.compile(function), which is tg.jit, compiles a whole step",
    "memory": "the backend's framework keeps its memory itself",
    "jiterator": "write the function in PyTorch and compile it with torch.compile",
    "_compile_kernel": "write the function in PyTorch and compile it with torch.compile",
}


def refusals(modules: dict[str, ModuleType], on: str, answered: Collection[str]) -> dict[str, Any]:
    """Return, for each public name without an answer ("name", "module.name"), the function or class in its place."""
    functions: dict[str, Any] = {}
    refusal_of: dict[int, Any] = {}  # {id of a function that several modules have: its replacement}
    spared = {id(_member_at(modules, path)) for path in (*KEPT.split(), *answered)}
    for module_path, owner in modules.items():
        if module_path.partition(".")[0] in KEPT_MODULES:
            continue
        for name, value in vars(owner).items():
            defined_in = getattr(value, "__module__", None) or ""
            is_of_cuda = callable(value) and defined_in.startswith(("torch.cuda", "torch.nn.parallel.comm"))
            if is_of_cuda and not name.startswith("_") and id(value) not in spared:
                path = f"{module_path}.{name}" if module_path else name
                if id(value) not in refusal_of:
                    refusal_of[id(value)] = _refusal(value, path, defined_in, on)
                functions[path] = refusal_of[id(value)]
    for path in DOCUMENTED.split():
        value = _member_at(modules, path)
        if value is not None:
            functions[path] = _refusal(value, path, value.__module__, on)
    return functions


def _member_at(modules: dict[str, ModuleType], path: str) -> Any:
    module_path, _, name = path.rpartition(".")
    return getattr(modules[module_path], name, None)


def _refusal(value: Any, path: str, defined_in: str, on: str) -> Any:
    area = defined_in.removeprefix("torch.cuda").removeprefix("torch.nn.parallel").lstrip(".")
    advice = INSTEAD.get(path) or INSTEAD.get(area)
    message = f"torch.cuda.{path}: there is no such thing on {on!r}, which is this program's CUDA (tensorgraft run)"
    message += f"; {advice}" if advice else ""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(message)

    if inspect.isclass(value):
        return type(value.__name__, (), {"__new__": refuse, "__module__": "torch.cuda", "__doc__": message})
    refuse.__name__ = refuse.__qualname__ = value.__name__
    if hasattr(value, "__wrapped__"):  # Dynamo lists functions inside of context managers (PyTorch 2.14)
        refuse.__wrapped__ = value.__wrapped__  # type: ignore[attr-defined]
    return refuse
