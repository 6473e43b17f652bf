"""Operators whose results' shapes or types depend on values. They run without a plan and uncompiled."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot
from tensorgraft.frontends.torch.core.nested import flatten, map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.result_strides import LAYOUTS, Rule
from tensorgraft.frontends.torch.core.schema import short_name
from tensorgraft.frontends.torch.core.tensors import (
    attach,
    cell_of,
    cpu_to_numpy,
    element_dtype,
    from_array,
    numpy_dtype,
    stored,
)
from tensorgraft.frontends.torch.core.traced_values import asked_for_shape
from tensorgraft.frontends.torch.core.values import concrete_array, looked_up
from tensorgraft.frontends.torch.dispatch.meta_results import abstract_call, resize_out
from tensorgraft.frontends.torch.dispatch.overlap import check_overlap
from tensorgraft.frontends.torch.dispatch.plan_template import Leaf, held_arguments
from tensorgraft.frontends.torch.dispatch.planning import backend_of, slot_of_call
from tensorgraft.frontends.torch.dispatch.program import has_halves, lay_out, meta_of
from tensorgraft.frontends.torch.dispatch.refusals import check_dtypes, check_out
from tensorgraft.frontends.torch.dispatch.results import describe
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Tensor = torch.Tensor


def run_concrete(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel of an operator whose results' shapes or types depend on values, uncompiled."""
    all_tensors = tensors_in(args, kwargs)
    slot = slot_of_call(operator, args, kwargs, all_tensors)
    sig = operator.signature
    check_overlap(operator, args, kwargs)
    check_out(operator, args, kwargs, all_tensors)
    check_dtypes(operator, args, kwargs, all_tensors)
    abstract_call(operator, args, kwargs)
    tensors = [t for t in all_tensors if t.device.type == TYPE]
    xp = backend_of(tensors, slot)
    bound_arguments, inputs = held_arguments(operator, args, kwargs, operator.spec.dynamic)
    state.touch(*map(cell_of, tensors))
    narrow = has_halves([element_dtype(t.dtype) for t in tensors])
    capture = state.now.capture

    def known(t: Tensor) -> Any:
        array = concrete_array(t, codes=True)
        values = looked_up(xp, array)
        return array if values is None else xp.asarray(values)

    with xp.scope():
        arrays = list(map(known, tensors))
    at_once = capture is not None and not any(map(xp.is_traced, arrays))

    def fill(a: Any) -> Any:
        if isinstance(a, Leaf):
            if a.tensor:
                return arrays[a.index]
            v = inputs[a.index]
            return xp.asarray(cpu_to_numpy(v)) if isinstance(v, Tensor) else v
        return numpy_dtype(a) if isinstance(a, torch.dtype) else a

    hidden = operator.writes if operator.kind == "out" else ()
    positional = [n for n in sig.positional if n in bound_arguments and n not in hidden]
    named = {
        n: map_nested(fill, bound_arguments[n]) for n in bound_arguments if n not in sig.positional and n not in hidden
    }
    try:
        with xp.scope(), xp.eagerly() if at_once else contextlib.nullcontext():
            out = operator.spec.fn(xp, *[map_nested(fill, bound_arguments[n]) for n in positional], **named)
    except TracedValueError:
        raise asked_for_shape(operator.name, tensors) from None

    give = partial(_tensor, xp, slot, narrow)
    rule = LAYOUTS.get(operator.name if operator.kind != "out" or not operator.base else short_name(operator.base))
    operands = {name: a for name, a in kwargs.items() if name not in hidden}
    with xp.eagerly() if at_once else contextlib.nullcontext():
        given_back = map_nested(give, out) if rule is None else _laid_out(xp, slot, out, rule, narrow, args, operands)
    if not operator.writes:
        if capture is not None and capture.sparse is not None:
            capture.sparse.indices.note_concrete(args, kwargs, given_back)
        return tuple(given_back) if isinstance(out, tuple) else given_back
    bound = sig.bind(args, kwargs)
    for name, result in zip(operator.writes, flatten(given_back), strict=True):
        if operator.kind == "out" and bound[name].size() != result.size():
            resize_out(bound[name], tuple(result.size()), result.stride())
        bound[name].copy_(result)
    outs = tuple(bound[name] for name in operator.writes)
    return outs if len(outs) > 1 else outs[0]


def _tensor(xp: Backend, slot: Slot, narrow: bool, a: Any) -> Any:
    """Return a tensor of an array; of complex32 if it is complex and `narrow`."""
    if not xp.is_array(a):
        return a
    dtype = torch.complex32 if narrow and dtypes.is_complex(xp.dtype_of(a)) else None
    return from_array(xp.ensure_owned(a) if slot.backend.mutable else a, slot, dtype)


def _laid_out(
    xp: Backend, slot: Slot, out: Any, rule: Rule, narrow: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return arrays as tensors with the strides that a rule gives them."""
    results, structure = describe(rule(map_nested(partial(meta_of, xp, narrow), out), *args, **kwargs))
    assert results is not None
    tensors = []
    for array, result in zip(flatten(out), results, strict=True):
        assert result is not None
        with xp.scope():
            array = lay_out(xp, array, result)
        cell = state.created(stored(array, slot.backend))
        tensors.append(attach(cell, slot, *result))  # with the program's dispatch modes active
    return tensors[0] if structure is None else structure(tensors)
