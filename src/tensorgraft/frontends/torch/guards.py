"""What a trace takes for granted: the key under which it is found again, and guards that are asked before each use."""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.devices import TYPE
from tensorgraft.frontends.torch.optimizers import Stepped
from tensorgraft.frontends.torch.plan import sharing
from tensorgraft.frontends.torch.tensors import cell_of
from tensorgraft.precision import policy

Tensor = torch.Tensor


def leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        geometry = (leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.requires_grad, leaf.is_leaf)
        if leaf.device.type != TYPE:
            return leaf.device.type, *geometry
        array = cell_of(leaf).array
        return TYPE, *geometry, array.shape, array.dtype
    if isinstance(leaf, int | float | complex | str | bytes | type(None) | torch.dtype | torch.device):
        return type(leaf), leaf
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"an argument of a compiled function is a {type(leaf).__qualname__}, which is neither a tensor nor"
            " hashable, so that calls cannot be told apart by it: pass tensors, numbers, strings, or containers of them"
        ) from None
    return type(leaf), leaf


def shared_arguments(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments share a storage."""
    return sharing([cell_of(t) for t in leaves if isinstance(t, Tensor) and t.device.type == TYPE])


def captured_objects(fn: Callable[..., Any]) -> list[Any]:
    """What a function reaches by its closure, its globals and the object it is a method of."""
    found = []
    if isinstance(fn, torch.nn.Module):
        return [fn]
    if isinstance(fn, types.MethodType):
        found.append(fn.__self__)
        fn = fn.__func__
    if isinstance(fn, functools.partial):
        return [*captured_objects(fn.func), *fn.args, *fn.keywords.values()]
    code = getattr(fn, "__code__", None)
    if code is None:
        return [fn]
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # a variable that is not bound yet
            found.append(cell.cell_contents)
    for name in code.co_names:
        if name in fn.__globals__:
            found.append(fn.__globals__[name])
    return found


def surroundings(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """Modes of PyTorch, and the Python values that the function reaches: others trace again."""
    values = tuple(
        (type(v), v) if isinstance(v, int | float | str | bool | type(None)) else id(v) for v in captured_objects(fn)
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled(TYPE),
        torch.get_autocast_dtype(TYPE),
        torch.is_autocast_cache_enabled(),
        policy(),
        torch.are_deterministic_algorithms_enabled(),
        values,
    )


def getter_of(leaf: Tensor, place: dict[int, int]) -> Callable[[Sequence[Any]], Tensor]:
    at = place.get(id(leaf))
    return (lambda leaves: leaf) if at is None else (lambda leaves: leaves[at])


def gradient_guard(get: Callable[[Sequence[Any]], Tensor], before: Tensor | None) -> Callable[[Sequence[Any]], bool]:
    """A leaf has no gradient before the call, or one that looks the same."""
    if before is None:
        return lambda leaves: get(leaves).grad is None
    key = leaf_key(before)
    return lambda leaves: (g := get(leaves).grad) is not None and leaf_key(g) == key


def optimizer_guard(stepped: Stepped) -> Callable[[Sequence[Any]], bool]:
    return lambda leaves: stepped.holds()


def host_guard(ref: weakref.ref[Tensor], version: int) -> Callable[[Sequence[Any]], bool]:
    """A CPU tensor that was read is still there, and has not been written since."""
    return lambda leaves: (t := ref()) is not None and t._version == version


def module_guards(modules: Iterable[torch.nn.Module]) -> list[Callable[[Sequence[Any]], bool]]:
    """Modules that ran keep their modes, and their parameters and buffers their identities and storages."""
    held = []
    for module in modules:
        tensors = []
        for table in (module._parameters, module._buffers):
            for name, t in table.items():
                cell = cell_of(t) if t is not None and t.device.type == TYPE else None
                tensors.append((table, name, t, cell, t is not None and t.requires_grad))
        held.append((module, module.training, tensors))

    def holds(leaves: Sequence[Any]) -> bool:
        for module, training, tensors in held:
            if module.training is not training:
                return False
            for table, name, t, cell, requires_grad in tensors:
                if table.get(name) is not t:
                    return False
                if t is None:
                    continue
                if t.requires_grad is not requires_grad or (cell is not None and cell_of(t) is not cell):
                    return False
        return True

    return [holds]
