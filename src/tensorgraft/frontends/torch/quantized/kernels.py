"""Kernels of the device on quantised CPU tensors, computed by the PyTorch backend, whose arrays are CPU tensors.

Arguments with the same metadata share a plan. Products, which read no values, are recorded at the second call; later
calls run only the graph of ATen operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.nested import flatten, map_nested
from tensorgraft.frontends.torch.core.result_strides import LAYOUTS
from tensorgraft.frontends.torch.core.settings import settings
from tensorgraft.frontends.torch.core.spec import SPECS
from tensorgraft.frontends.torch.core.tensors import numpy_dtype
from tensorgraft.frontends.torch.dispatch.program import lay_out
from tensorgraft.frontends.torch.dispatch.quiet_calls import to_meta
from tensorgraft.frontends.torch.dispatch.results import describe
from tensorgraft.frontends.torch.quantized import cpu
from tensorgraft.frontends.torch.quantized.numbers import copied, on_numbers, same_device, scope_unless_traced
from tensorgraft.quantization import policy
from tensorgraft.quantization.quantized import Quantized, with_own_codes
from tensorgraft.quantization.scheme import Scheme

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_aten = torch.ops.aten
_modes = torch._C._len_torch_dispatch_stack

PRODUCTS = ("mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "addbmm", "linear", "dot", "vdot", "convolution")
# operators whose kernels compute on codes, or keep them
ON_CODES = (
    *PRODUCTS,
    *("embedding", "index.Tensor", "index_select", "gather", "take"),
    "convolution_backward",
    *("cat", "clone", "flip", "roll", "repeat", "narrow_copy"),
)


class QuantizedPlan:
    """A plan for calls whose arguments have the same metadata: that of their results, and the recorded program, if
    any."""

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        same_device(func, args, kwargs)
        self.results, self.structure = describe(_meta_result(func, args, kwargs))
        tensors = [t for t in flatten((args, tuple(kwargs.values()))) if isinstance(t, Tensor)]
        quantized = [cpu.array_of(t) for t in tensors if isinstance(t, cpu.QuantizedTensor)]
        self.schemes = [q.scheme for q in quantized]  # alive, so that an identity in a key is theirs
        self.computes = all(t.layout is torch.strided and not t.is_quantized for t in tensors)
        plain = all(type(scheme) is Scheme for scheme in self.schemes)  # one that looks on has to see each call
        self.recordable = self.computes and plain and schema.short_name(func) in PRODUCTS
        self.run: Callable[..., Sequence[Tensor]] | None = None
        self.notes: policy.Notes = []
        self.used = False


_plans: dict[Any, QuantizedPlan] = {}


def on_codes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _aten.index.Tensor:
        args = (args[0], _positions(args[1]))
    key: list[Any] = [func, settings()]
    arrays: list[Tensor] = []
    known = _add_to_key(args, key, arrays) and not _modes()
    if kwargs:
        known = _add_to_key(tuple(kwargs.values()), key, arrays) and known
        key.append(tuple(kwargs))
    if not known:
        return _computed(QuantizedPlan(func, args, kwargs), func, args, kwargs)
    full = tuple(key)
    plan = _plans.get(full)
    if plan is None:
        if len(_plans) >= 4096:
            _plans.clear()
        plan = _plans[full] = QuantizedPlan(func, args, kwargs)
    if plan.run is None:
        if not plan.recordable or not plan.used:
            plan.used = True
            return _computed(plan, func, args, kwargs)
        try:
            _record(plan, func, args, kwargs)
        except TracedValueError:  # the kernel reads values
            plan.recordable = False
            return _computed(plan, func, args, kwargs)
    policy.counted(plan.notes)
    (out,) = plan.run(*arrays)  # type: ignore[misc]
    return out


def _add_to_key(args: Any, key: list[Any], arrays: list[Tensor]) -> bool:
    """Add arguments to a key, and their arrays; return False where some are traced."""
    known = True
    for a in args:
        kind = a.__class__
        if kind is cpu.QuantizedTensor:
            q = a.untyped_storage().cell.array
            parts = q.parts
            known = known and parts[0].__class__ is Tensor
            arrays.extend(parts)
            key.append((id(q.scheme), q.base, q.dtype, a.dtype, a.shape, a.stride(), a.storage_offset()))
        elif kind is Tensor or kind is Parameter:
            arrays.append(a)
            key.append((a.dtype, a.shape, a.stride(), a.device, a.layout, a.is_conj(), a.is_neg()))
        elif isinstance(a, list | tuple):
            key.append(len(a))
            known = _add_to_key(a, key, arrays) and known
        elif isinstance(a, Tensor):
            known = False
        else:
            key.append((kind, a))
    return known


def _positions(indices: Any) -> list[Any]:
    """Masks as the positions that they choose: how many is not to be guessed from the shape."""
    positions: list[Any] = []
    for i in indices:
        mask = i is not None and i.dtype in (torch.bool, torch.uint8)
        positions.extend(i.nonzero().unbind(1)) if mask else positions.append(i)
    return positions


def _meta_result(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result on meta tensors; where these fail the CPU has the last word, on zeros: its errors have other
    words."""
    name = schema.short_name(func)
    rule, laid = SPECS[name].meta, LAYOUTS.get(name)
    with _disable_current_modes():
        try:
            metas, named = to_meta(args, kwargs)
            out = (rule if callable(rule) else func)(*metas, **named)
            return out if laid is None else laid(out, *metas, **named)
        except Exception:
            zeros, named = to_meta(args, kwargs, "cpu")
            return func(*zeros, **named)


# ---- operation by operation ------------------------------------------------------------------------------------------


def _computed(plan: QuantizedPlan, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not plan.computes:
        return on_numbers(func, args, kwargs)
    xp = cpu.backend()
    with torch.no_grad(), scope_unless_traced(xp, (args, tuple(kwargs.values()))):
        operands, named = map_nested(_array, args), {n: map_nested(_array, a) for n, a in kwargs.items()}
        arrays = _kernel(plan, xp, func, operands, named)
        if func is _aten.clone.default:
            arrays = [with_own_codes(xp.inner, arrays[0])]
        # a program that writes into its argument writes into codes and scales: no result of it may have them
        operand_memory = {_memory(part) for q in flatten((operands, tuple(named.values()))) for part in _parts(q)}
        arrays = [copied(a) if any(_memory(part) in operand_memory for part in _parts(a)) else a for a in arrays]
    pairs = zip(arrays, plan.results or (), strict=True)
    tensors = [cpu.new_tensor(a, *r[:3]) if isinstance(a, Quantized) else a for a, r in pairs]  # type: ignore[index]
    return tensors[0] if plan.structure is None else plan.structure(tensors)


def _parts(a: Any) -> Sequence[Tensor]:
    return a.parts if isinstance(a, Quantized) else ()


def _memory(part: Tensor) -> int:
    return part.untyped_storage()._cdata


def _kernel(plan: QuantizedPlan, xp: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    options = {n: a for n, a in kwargs.items() if n not in schema.PLACEMENT}
    out = SPECS[schema.short_name(func)].fn(xp, *args, **options)
    pairs = zip(flatten(out), plan.results or (), strict=True)
    return [None if r is None else _laid_out(xp, a, r) for a, r in pairs]


def _laid_out(xp: Any, array: Any, result: Any) -> Any:
    """Return a dense result with PyTorch's strides, and a quantised one in the layout of its storage."""
    array = lay_out(xp, array, result)
    if isinstance(array, Quantized):
        return array
    _, size, stride, _ = result
    if array.size() == size and array.stride() == stride:
        return array
    return array.contiguous().as_strided(size, stride)


def _array(a: Any) -> Any:
    if isinstance(a, cpu.QuantizedTensor):
        return cpu.array_of(a)
    if isinstance(a, Tensor):
        return a.resolve_conj().resolve_neg() if a.is_conj() or a.is_neg() else a
    return numpy_dtype(a) if isinstance(a, torch.dtype) else a


# ---- recorded --------------------------------------------------------------------------------------------------------


def _record(plan: QuantizedPlan, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    xp: Any = cpu.recording()
    tensors: list[Tensor] = []

    def stand_in(a: Any) -> Any:
        array = _array(a)
        if not xp.is_array(array):
            return array
        if isinstance(array, Quantized):  # values are not read, and a recording must not keep arrays alive
            array = xp.stand_in(array.with_parts([torch.empty_like(part) for part in array.parts]))
        else:
            array = xp.stand_in(torch.empty_strided(array.size(), array.stride(), dtype=array.dtype, device="cpu"))
        tensors.extend(array.parts if isinstance(array, Quantized) else [array])
        return array

    operands, options = map_nested(stand_in, args), {n: map_nested(stand_in, a) for n, a in kwargs.items()}
    with _disable_current_modes(), policy.counting_later() as notes:
        program: Any = xp.inner.trace(lambda: _kernel(plan, xp, func, operands, options))
    number = {id(a): n for n, a in enumerate(tensors)}
    at = [number.get(id(a), a) for a in program.captured]  # else a table of the scheme's
    run = program.uncompiled()
    plan.run = lambda *arrays: run(*[arrays[n] if isinstance(n, int) else n for n in at])
    if at == list(range(len(tensors))):
        plan.run = run
    plan.notes = notes
