"""The key of an operator call: everything of its arguments that its plan depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.scalars import SYMBOLIC, tensor_of
from tensorgraft.frontends.torch.core.settings import FLOAT32, default_dtype, deterministic, settings
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_to_numpy
from tensorgraft.frontends.torch.core.traced_values import asked_for_value
from tensorgraft.frontends.torch.core.values import concrete_array
from tensorgraft.frontends.torch.dispatch.offsets import sited
from tensorgraft.frontends.torch.dispatch.planning import device_error
from tensorgraft.frontends.torch.dispatch.program import sharing
from tensorgraft.frontends.torch.dispatch.refusals import check_numbers
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.backend import common
from tensorgraft.storage import Storage

_NARROWEST = 128  # every dtype has the numbers below

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

# a key, the storages of the tensors, the inputs that are no tensors of ours, those among them that the backend has to
# place, and the backend
CallKey = tuple[list[Any], list[Storage], list[Any], list[int], Backend | None]


def key_maker(operator: Operator) -> Callable[[tuple[Any, ...], dict[str, Any]], CallKey]:
    """Return the function that makes the key of a call of an operator, of (args, kwargs)."""
    sig, spec = operator.signature, operator.spec
    numbers = frozenset(i for i, name in enumerate(sig.positional) if name in spec.dynamic)
    positions = frozenset(i for i, name in enumerate(sig.positional) if name in spec.positions)
    writes = bool(operator.writes)
    local_state = state.now

    def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey:
        cells: list[Storage] = []
        inputs: list[Any] = []
        key: list[Any] = []
        backend: Any = None
        moved = None
        placed: list[int] = []
        if positions:
            moved = spec.moved(args, kwargs)
            key.append(moved is not None and tuple(moved.items()))
        for i, a in enumerate(args):
            kind = a.__class__
            if kind is Tensor or kind is Parameter:
                try:
                    cell = a.untyped_storage().cell
                except AttributeError:
                    _add(a, key, cells, inputs, False)
                    continue
                if cell.backend is not backend:
                    if backend is not None:
                        backend = common(backend, cell.backend)
                        if backend is None:
                            raise device_error(operator.name, tensors_in(args, kwargs))
                    else:
                        backend = cell.backend
                cells.append(cell)
                offset = a.storage_offset()
                key.append((a.dtype, a.shape, a.stride(), offset and sited(cell, offset)))
            elif i in numbers and (kind is float or kind is int or kind is bool):
                key.append(kind)
                inputs.append(a)
                if not -_NARROWEST <= a < _NARROWEST:
                    check_numbers(operator, args, kwargs)
            elif moved is not None and i in positions:
                placed += _add_position(a, key, inputs)
            else:
                _add(a, key, cells, inputs, i in numbers)
        if kwargs:
            _add_named(operator, args, kwargs, key, cells, inputs)
        if writes and len(cells) > 1:  # which tensors share a storage with a written one is part of the program
            key.append(cells[0] is cells[1] if len(cells) == 2 else sharing(cells))
            if local_state.resized:
                key.append("resized")
        if backend is None:
            backend = _backend_of(cells, kwargs)
        key.append(backend)
        if default_dtype() is not FLOAT32 or deterministic():
            key.append(settings())
        return key, cells, inputs, placed, backend

    return key_of


def _add_named(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: list[Any],
    cells: list[Storage],
    inputs: list[Any],
) -> None:
    numbers = operator.spec.dynamic
    for name, a in kwargs.items():
        if name != "generator":
            key.append(name)
            _add(a, key, cells, inputs, name in numbers)
            if name in numbers and isinstance(a, (int, float)) and not -_NARROWEST <= a < _NARROWEST:
                check_numbers(operator, args, kwargs)


def _add(a: Any, key: list[Any], cells: list[Storage], inputs: list[Any], number: bool) -> None:
    """Add an argument to a key: tensors in lists, CPU tensors, numbers and static values."""
    if isinstance(a, Tensor):
        if a.device.type == TYPE:
            cell, offset = cell_of(a), a.storage_offset()
            cells.append(cell)
            key.append((a.dtype, a.size(), a.stride(), offset and sited(cell, offset)))
        else:
            key.append((a.device, a.dtype, a.size()))
            inputs.append(_host(a) if a.device.type == "cpu" else a)
    elif isinstance(a, (list, tuple)):  # a union would be made at every call
        key.append(len(a))
        for x in a:
            _add(x, key, cells, inputs, number)
    elif isinstance(a, float):
        if number:
            key.append(float)
            inputs.append(a)
        else:
            key.append((float, a.hex()))
    elif isinstance(a, (int, complex)):
        if number:
            key.append(type(a))
            inputs.append(a)
        else:
            key.append((type(a), a))
    elif a.__class__ in SYMBOLIC:
        if not number or torch.is_grad_enabled():  # autograd would save it without its value
            raise asked_for_value(tensor_of(a))
        key.append(float if a.__class__ is torch.SymFloat else int)
        inputs.append(concrete_array(tensor_of(a)))
    elif not isinstance(a, torch.Generator):
        key.append(a)


def _add_position(a: Any, key: list[Any], inputs: list[Any]) -> list[int]:
    """Add an integer, several of them or an exponent, that is an input. Which inputs a backend is to place."""
    if isinstance(a, (list, tuple)):
        key.append(len(a))
        return [k for x in a for k in _add_position(x, key, inputs)]
    key.append(a.__class__)
    inputs.append(a)
    return [len(inputs) - 1] if a.__class__ is int else []


def _host(t: Tensor) -> Any:
    return cpu_to_numpy(t) if state.now.capture is None else state.now.capture.host_array(t, cpu_to_numpy)


def _backend_of(cells: list[Storage], kwargs: dict[str, Any]) -> Any:
    """Return the backend of a call without device tensors among its positional arguments."""
    if not cells:
        return slot_of(kwargs.get("device")).backend
    backend: Any = cells[0].backend
    for c in cells:
        backend = common(backend, c.backend)
        if backend is None:
            return None
    return backend
