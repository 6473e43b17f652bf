"""The key of a call in straight-line code: modes, settings, and the metadata of the arguments."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.frontends.torch.compiled.guards.assumptions import attributes_key, modes
from tensorgraft.frontends.torch.core import sharded_tensors, state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub import settings
from tensorgraft.hub.straight_line import NotStraight, StraightLine
from tensorgraft.precision.state import write_policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_transforms = torch._C._functorch.peek_interpreter_stack
_modes_on = (torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack)
_saved_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_autocast, _grad, _inference = torch._C._is_any_autocast_enabled, torch.is_grad_enabled, torch.is_inference_mode_enabled
_autocast_dtype = torch.get_autocast_dtype


def write_keys(code: StraightCall, leaves: Sequence[Any]) -> None:
    """Write that a call has the key of this one, and is not inside of another one."""
    _write_modes(code)
    cells: dict[str, Storage] = {}
    geometries: list[tuple[str, str]] = []
    for k, (t, variable) in enumerate(zip(leaves, code.leaves, strict=True)):
        kind = t.__class__
        if kind is not Tensor and kind is not Parameter:
            if k not in code.boxed:
                code.require_scalar(variable, t)
            continue
        names = [*t.__dict__]
        if attributes_key(t.__dict__) or t.layout is not torch.strided or t.device.type != TYPE:
            raise NotStraight
        cell = cell_of(t)
        if cell.backend.compound:
            raise NotStraight
        code.require(f"{variable}.__class__ is {code.name(kind)}")
        attributes = code.let(f"{variable}.__dict__")
        code.require(f"[*{attributes}] == {code.name(names)}" if names else f"not {attributes}")
        c = code.let(f"{variable}.untyped_storage().cell")
        code.require(f"{c}.backend is {code.name(cell.backend)}")
        code.require_same(f"{c}.placement", cell.placement)
        # a tensor that requires no gradient is a leaf
        leaf = f" and {variable}.is_leaf is {_is_leaf(t)}" if t.requires_grad else ""
        code.require(f"{variable}.requires_grad is {t.requires_grad}{leaf}")
        shape, dtype = code.name(cell.array.shape), code.name(cell.array.dtype)
        look = f"{{array}}.shape == {shape} and {{array}}.dtype == {dtype}"
        code.add_array(k, c, look, cell.placement is not None)
        cells[c] = cell
        geometries.append((attributes, _geometry(code, variable, t)))
    code.require_apart(cells)
    if geometries:
        _write_geometries(code, geometries)


def _write_modes(code: StraightCall) -> None:
    """Write that modes and settings are those in force now, and that no trace or transform is under way."""
    grad, inference, cast, dtype, _, _, moves, around = modes()
    if cast or around:
        raise NotStraight
    code.require(f"{code.name(state.now)}.capture is None and {code.name(_transforms)}() is None")
    code.require(f"{code.name(forward_ad)}._current_level < 0 and not {code.name(_autocast)}()")
    code.require(f"{code.name(_autocast_dtype)}({TYPE!r}) is {code.name(dtype)}")
    code.require(f"{code.name(_grad)}() is {grad} and {code.name(_inference)}() is {inference}")
    code.require(" and ".join(f"not {code.name(count)}()" for count in _modes_on))
    code.require(f"not {code.name(_saved_hooks)}(True)")
    code.require(f"{code.name(sharded_tensors)}.moves == {moves}")
    write_policy(code)
    settings.write(code)


def _is_leaf(t: Tensor) -> bool:
    try:
        return t.is_leaf
    except RuntimeError:  # a view from `no_grad` that was written since
        raise NotStraight from None


def _geometry(code: StraightCall, variable: str, t: Tensor) -> str:
    """Return the condition that a tensor has the geometry of `t`."""
    dtype, shape, stride = code.name(t.dtype), code.name(tuple(t.shape)), code.name(t.stride())
    conj = f" and {variable}.is_conj() is {t.is_conj()}" if t.is_complex() else ""
    return (
        f"{variable}.dtype is {dtype} and {variable}.shape == {shape} and {variable}.stride() == {stride}"
        f" and {variable}.storage_offset() == {t.storage_offset()} and {variable}.is_neg() is {t.is_neg()}{conj}"
        f" and {variable}.is_inference() is {t.is_inference()}"
    )


def _write_geometries(code: StraightCall, geometries: Sequence[tuple[str, str]]) -> None:
    """Write conditions on the geometries of tensors. They are checked for tensors that differ from those of the
    previous call, and for all if some tensor has been rebound since.

    A tensor is identified by its `__dict__`, which is its own (`torch.utils.swap_tensors` refuses tensors with
    weak references)."""
    n = len(geometries)
    no_tables: list[Any] = [_Kept(None)] * n
    last_tables = [*no_tables, state.rebindings]
    rebindings, known, count = f"{code.name(state)}.rebindings", code.name(last_tables), code.name(getrefcount)
    code.check(f"if {rebindings} != {known}[{n}]: {known}[:] = {code.name(no_tables)} + [{rebindings}]")
    for i, (attributes, condition) in enumerate(geometries):
        code.check(f"if {known}[{i}].table is not {attributes} or {count}({attributes}) != {_COUNT}:")
        code.check(f"  if not ({condition}): return MISSED")
        code.check(f"  {known}[{i}] = {code.name(_kept)}({attributes})")


class _Kept:
    """The `__dict__` of a tensor, with one reference from all functions that were called with the tensor."""

    __slots__ = ("__weakref__", "table")

    def __init__(self, table: dict[str, Any] | None) -> None:
        self.table = table


_tables: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()


def _kept(table: dict[str, Any]) -> _Kept:
    known = _tables.get(id(table))
    if known is None:
        known = _tables[id(table)] = _Kept(table)
    return known


def _count_of_kept_table() -> int:
    """Return the reference count of a table that one object, a `_Kept` and the function itself refer to."""
    code = StraightLine()
    code.do(f"return {code.name(getrefcount)}({code.let('x.__dict__')})")
    count: int = code.function("x")(lambda: None)
    return count + 1


_COUNT = _count_of_kept_table()
