"""Planning: an operator call, resolved once for its signature.

`meta_results.abstract_call` gives the results, and raises PyTorch's own errors before computing anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.dynamic_offset import Form
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at, slot_of
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator, keep
from tensorgraft.frontends.torch.core.settings import deterministic
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, cell_of
from tensorgraft.frontends.torch.dispatch import rehearsal
from tensorgraft.frontends.torch.dispatch.meta_results import abstract_call
from tensorgraft.frontends.torch.dispatch.overlap import check_overlap
from tensorgraft.frontends.torch.dispatch.plan import Plan
from tensorgraft.frontends.torch.dispatch.plan_template import Outline, make_outline, outline_key, pointwise
from tensorgraft.frontends.torch.dispatch.program import make_program
from tensorgraft.frontends.torch.dispatch.refusals import check_dtypes, check_in_place, check_out, refuse
from tensorgraft.frontends.torch.dispatch.results import Result, describe
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Tensor = torch.Tensor


def make_plan(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    forms: Sequence[Form | None],
    computing: Backend | None = None,
) -> Plan:
    """`forms`: for each tensor on the device the form of its offset, if that is an operand. `computing`: a backend
    other than that of the tensors, with its own arrays. Raises the errors that PyTorch raises for these arguments."""
    moved = operator.spec.moved(args, kwargs)
    names, key = outline_key(operator, args, kwargs, positions=moved is not None)
    outline: Outline | None = operator.outlines.get(key)
    if outline is not None:
        return _make_plan(operator, args, kwargs, forms, computing, moved, names, key, outline)
    with warning_filters.remembered():  # PyTorch imports half of itself for a meta function that is written in Python
        return _make_plan(operator, args, kwargs, forms, computing, moved, names, key, None)


def _make_plan(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    forms: Sequence[Form | None],
    computing: Backend | None,
    moved: dict[str, Any] | None,
    names: frozenset[str],
    key: Any,
    outline: Outline | None,
) -> Plan:
    all_tensors = tensors_in(args, kwargs)
    slot = slot_of_call(operator, args, kwargs, all_tensors)
    if operator.spec.check is not None and not operator.spec.has_inputs:
        operator.spec.check(*args, **kwargs)
    if not state.now.resized:
        check_overlap(operator, args, kwargs)
        check_out(operator, args, kwargs, all_tensors)
        check_dtypes(operator, args, kwargs, all_tensors)
        if deterministic() and rehearsal.can_rehearse(operator):
            refuse(operator, args, kwargs, "does not have a deterministic implementation")
    if callable(operator.spec.concrete) and operator.spec.concrete(*args):
        return Plan(None, slot, concrete=True)
    on_device = [t for t in all_tensors if t.device.type == TYPE]
    results, structure, prepare = _elementwise(outline, all_tensors), None, None
    familiar = outline is not None
    if results is None:
        meta_result, prepare = abstract_call(operator, args, kwargs)
        _check_dim(operator, args, kwargs)
        if meta_result is None and operator.kind == "out":  # only the results say how large the `out=` tensors must be
            return Plan(None, slot, concrete=True)
        if prepare is not None:  # a resized tensor has another plan
            return Plan(None, slot, prepare=prepare)
        results = []
        if operator.signature.returns and not operator.signature.returns_written:
            results, structure = describe(meta_result)
    if outline is None:
        outline = make_outline(operator, args, kwargs, on_device, names)
        keep(operator.outlines, key, outline)
        if operator.elementwise and results and results[0] is not None:
            outline.result_dtype = results[0][0]
            if _elementwise(outline, all_tensors) != results:  # the strides for other sizes are not known
                outline.result_dtype = None
    if operator.kind == "inplace" and operator.spec.promotion is not None:
        made_dtype = outline.dtype if outline.rounded is None else outline.rounded
        check_in_place(operator, args, kwargs, FROM_NUMPY[made_dtype])
    xp = computing or backend_of(on_device, slot)
    plan = Plan(None, slot, tuple([leaf.index for leaf in outline.targets]), results, structure, prepare)
    plan.familiar = familiar and not xp.compiles
    if xp.compound:
        plan.xp = xp
    plan.program = make_program(xp, plan, operator, on_device, forms, outline, moved or {})
    if operator.spec.uncompiled:
        plan.run = _in_scope(xp, plan.program)
    else:
        plan.run = xp.compile(plan.program)
    return plan


def _elementwise(outline: Outline | None, tensors: Sequence[Tensor]) -> list[Result] | None:
    """Return the result of an elementwise operator whose dtype is known. None: PyTorch has to be asked."""
    if outline is None or outline.result_dtype is None:
        return None
    known = pointwise(tensors)
    if known is None:
        return None
    size, stride = known
    return [(outline.result_dtype, size, stride, math.prod(size) * outline.result_dtype.itemsize)]


def backend_of(tensors: Sequence[Tensor], slot: Slot) -> Backend:
    """Return the backend that computes on tensors of a device: the one with quantised arrays, if some tensors are
    quantised."""
    return next((xp for t in tensors if (xp := cell_of(t).backend).compound), slot.backend)


def uncompiled(plan: Plan) -> Callable[..., tuple[Array, ...]]:
    """Return the plan's program without compilation, for a decomposition that needs values."""
    assert plan.program is not None
    plan.run = _in_scope(plan.xp or plan.slot.backend, plan.program)
    return plan.run


def _in_scope(xp: Backend, program: Callable[..., Any]) -> Callable[..., Any]:
    def run(*flat: Any) -> Any:
        with xp.scope():
            return program(*flat)

    return run


def device_error(op: str, tensors: Sequence[Tensor]) -> RuntimeError:
    names = list(dict.fromkeys(str(t.device) for t in tensors))
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices,"
        f" {names[0]} and {names[-1]}! (when calling aten::{op})"
    )


def slot_of_call(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], all_tensors: Sequence[Tensor]
) -> Slot:
    """Return the device of a call, whose tensors are `all_tensors`. Raises RuntimeError where these are on several, as
    PyTorch does; CPU tensors are allowed where they have no axes, and where the kernel says so (indices)."""
    devices = {t.device for t in all_tensors}
    own_devices = [device for device in devices if device.type == TYPE]
    if not own_devices:
        return slot_of(kwargs.get("device"))
    if len(devices) == 1:
        return slot_at(own_devices[0].index)
    first = next(t.device for t in all_tensors if t.device.type == TYPE)
    allowed: set[int] = set()
    for name, a in operator.signature.bind(args, kwargs).items():
        if name in operator.spec.host:
            allowed.update(id(t) for t in tensors_in((a,), {}))
    target_ids = {id(t) for t in _written_tensors(operator, args, kwargs) if t.device.type == "cpu"}
    for t in all_tensors:
        stray = t.device.type != "cpu" or (t.dim() > 0 and id(t) not in allowed) or id(t) in target_ids
        if t.device != first if t.device.type == TYPE else stray:
            raise device_error(operator.name, all_tensors)
    return slot_at(first.index)


def _written_tensors(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    bound = operator.signature.bind(args, kwargs)
    return tensors_in([bound.get(name) for name in operator.writes], {})


def _check_dim(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`dim` is an axis of the first tensor: some of PyTorch's meta functions leave that to the kernel. (In the backward
    pass of a view it is an axis of the result, whose `input_sizes` are given.)"""
    sig = operator.signature
    if "input_sizes" in sig.names:
        return
    if sig.types.get("dim") != "int" or sig.types.get(sig.names[0]) != "Tensor" or "stack" in operator.name:
        return
    bound = sig.bind(args, kwargs)
    n, dim = max(bound[sig.names[0]].dim(), 1), bound["dim"]
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
