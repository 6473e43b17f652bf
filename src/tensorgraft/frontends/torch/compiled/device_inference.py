"""The device on which a function of `tg.jit` computes, inferred from its arguments and the objects that it reaches,
before it runs."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.compiled.captured_objects import objects_behind
from tensorgraft.frontends.torch.compiled.host.call_tensors import on_host
from tensorgraft.frontends.torch.core.codes import plain
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.source_location import in_library
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.backend import Backend

_DEVICE = re.compile(rf"({TYPE}|cuda)(:\d+)?")


class InferredBackend(NamedTuple):
    """The backend on which a function computes."""

    backend: Backend | None  # None: on the CPU's own tensors
    sure: bool = True  # it has tensors of the device


def home_of(fn: Callable[..., Any], near: Sequence[Any], leaves: Sequence[Any]) -> InferredBackend:
    """Return the device of the first tensor that is on one; else one that the function names, if it does; the CPU, if
    it has tensors there; else the default device. `near`: what the function reaches at once."""
    for value in (*leaves, *near):
        for t in value.parameters() if isinstance(value, torch.nn.Module) else (value,):
            if isinstance(t, torch.Tensor) and t.device.type == TYPE:
                return InferredBackend(_backend_of(t))
    cpu, named = False, None
    for _, value in objects_behind([("", fn), *(("", leaf) for leaf in leaves)], in_library, torch.device):
        if isinstance(value, torch.Tensor) and value.device.type == TYPE:
            return InferredBackend(_backend_of(value))
        cpu = cpu or on_host(value)
        if isinstance(value, torch.device):
            named = named or (value if value.type == TYPE else None)
        elif isinstance(value, types.FunctionType) and named is None:
            named = _named(value.__code__)
    if named is None and cpu:
        return InferredBackend(None)
    return InferredBackend(slot_of(named).backend, sure=False)


def _backend_of(t: torch.Tensor) -> Backend:
    # a sparse tensor has no storage
    return plain(cell_of(t).backend) if t.layout is torch.strided else slot_of(t.device).backend


def has_lazy_modules(near: Sequence[Any]) -> bool:
    """Return whether a module among these has parameters that its first call makes."""
    lazy = torch.nn.modules.lazy.LazyModuleMixin
    modules = (m for value in near if isinstance(value, torch.nn.Module) for m in value.modules())
    return any(isinstance(m, lazy) and m.has_uninitialized_params() for m in modules)


def _named(code: types.CodeType) -> torch.device | None:
    for text in _constants(code):
        if isinstance(text, str) and _DEVICE.fullmatch(text) is not None:
            return torch.device(text if text.startswith(TYPE) else TYPE)
    return torch.device(TYPE) if "cuda" in code.co_names else None


def _constants(code: types.CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _constants(constant)
        elif isinstance(constant, tuple):
            yield from constant
        else:
            yield constant
