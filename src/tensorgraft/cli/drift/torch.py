"""A snapshot of PyTorch: schemas of operators, decompositions, meta functions, kernels of autocast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch._decomp

from tensorgraft.cli.drift import Kinds, hashed

_AUTOCAST = ("AutocastCPU", "AutocastCUDA")


def kinds() -> Kinds:
    schemas = {_name(s): str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}
    return {
        "operators": {name: hashed(text) for name, text in schemas.items()},
        "decompositions": _functions(torch._decomp.decomposition_table),
        "meta functions": _functions(torch._decomp.global_decomposition_table["meta"]),
        "autocast": {f"{key} {name}": "" for name in schemas for key in _AUTOCAST if _registered(name, key)},
    }


def _name(schema: Any) -> str:
    name = schema.name.removeprefix("aten::")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _registered(name: str, key: str) -> bool:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    try:
        return op is not None and op.has_kernel_for_dispatch_key(key)
    except RuntimeError:  # TorchScript's own, which the dispatcher does not know
        return False


def _functions(table: dict[Any, Callable[..., Any]]) -> dict[str, str]:
    """Return a hash of the text of each operator's function."""
    return {str(op): hashed(_text(function)) for op, function in table.items() if str(op).startswith("aten")}


def _text(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):  # made by another function
        return getattr(function, "__qualname__", type(function).__qualname__)
