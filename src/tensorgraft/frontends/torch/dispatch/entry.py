"""The entry from PyTorch's dispatcher to a kernel: the hot path of every operator.

The first call of an operator with new shapes, strides, dtypes and static arguments makes a plan (`plan.py`); a later
call with the same key runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import generator, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.modes import below_modes, function_mode, suspended, tracing
from tensorgraft.frontends.torch.core.nested import map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import Operator, keep
from tensorgraft.frontends.torch.core.settings import FLOAT32, default_dtype, deterministic, settings
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, cpu_to_numpy, stored
from tensorgraft.frontends.torch.dispatch import checks, fallback
from tensorgraft.frontends.torch.dispatch.cold import MISS, ColdOperator, ColdSignature
from tensorgraft.frontends.torch.dispatch.cold import plans as compiled_plans
from tensorgraft.frontends.torch.dispatch.concrete import run_concrete
from tensorgraft.frontends.torch.dispatch.meta_results import resized_though_refused
from tensorgraft.frontends.torch.dispatch.offsets import sited, without_offsets
from tensorgraft.frontends.torch.dispatch.overlap import relation
from tensorgraft.frontends.torch.dispatch.plan import Plan, device_error, make_plan, uncompiled
from tensorgraft.frontends.torch.dispatch.program import sharing
from tensorgraft.frontends.torch.dispatch.refusals import ABOUT_DTYPES, NO_KERNEL, check_numbers, refuse
from tensorgraft.hub.tiers import tiered
from tensorgraft.quantization.backend import common
from tensorgraft.quantization.policy import NoQuantizedRuleError
from tensorgraft.storage import Storage, put_as_it_is

_NARROWEST = 128  # every dtype has the numbers below

Tensor = torch.Tensor
Parameter = torch.nn.Parameter


def entry(operator: Operator) -> Callable[..., Any]:
    """The function that PyTorch's dispatcher calls for an overload."""
    calls, plans, sig, spec = operator.calls, operator.plans, operator.signature, operator.spec
    numbers = frozenset(i for i, name in enumerate(sig.positional) if name in spec.dynamic)
    number_names, random = spec.dynamic, spec.random
    positions = frozenset(i for i, name in enumerate(sig.positional) if name in spec.positions)
    check = spec.check if spec.has_inputs else None  # else it belongs to the plan
    generator_at = sig.positional.index("generator") if "generator" in sig.positional else len(sig.positional)
    writes = bool(operator.writes)
    returned = _returned(operator)
    now = state.now

    def drawn(cells: list[Storage], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[generator_at] if len(args) > generator_at else kwargs.get("generator")
        return generator.draw(source, _random_index(cells, args, kwargs))

    cold = ColdOperator(operator, returned, drawn)
    in_place = bool(cold.places)
    recorded: dict[Any, Any] = {}  # as `calls`, of traces and of lazy mode: eager calls may be cold

    def call(*args: Any, **kwargs: Any) -> Any:
        if function_mode() or tracing():
            with suspended():
                return call(*args, **kwargs)
        plan = None
        try:
            if check is not None:
                check(*args, **kwargs)
            if in_place and tiered() and now.capture is None and (out := cold.write(args, kwargs)) is not MISS:
                return out
            cells: list[Storage] = []
            inputs: list[Any] = []
            key: list[Any] = []
            backend = None
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
                for name, a in kwargs.items():
                    if name != "generator":
                        key.append(name)
                        _add(a, key, cells, inputs, name in number_names)
                        if name in number_names and isinstance(a, (int, float)) and not -_NARROWEST <= a < _NARROWEST:
                            check_numbers(operator, args, kwargs)
            if writes and len(cells) > 1:  # who shares a storage with what is written is part of the program
                key.append(cells[0] is cells[1] if len(cells) == 2 else sharing(cells))
                if now.resized:
                    key.append("resized")
            if backend is None:
                backend = _backend_of(cells, kwargs)
            key.append(backend)
            if default_dtype() is not FLOAT32 or deterministic():
                key.append(settings())
            full = tuple(key)
            known: Any = calls.get(full)
            if known.__class__ is ColdSignature:
                if now.capture is None and tiered() and not backend.records:
                    out = cold.again(known, cells, args, kwargs)
                    if out is not MISS:
                        return out
                known = None
            if known is None:
                if now.capture is None and (backend is None or backend.cold is not None):
                    out = cold(full, backend, cells, inputs, args, kwargs)
                    if out is not MISS:
                        return out
                apart = now.capture is not None or (backend is not None and backend.records)
                table = recorded if apart else calls
                if apart:
                    known = table.get(full)
                if known is None:
                    known = look_up(key, cells, args, kwargs)
                    keep(table, full, known)
            plan, offsets = known
            arrays = [c.array for c in cells]
            arrays += offsets
            for k in placed:
                inputs[k] = backend.place(inputs[k])
            if random:
                inputs.append(drawn(cells, args, kwargs))
            if plan.makers is None or now.capture is not None:
                return first(plan, cells, [*offsets, *inputs], args, kwargs)
            new = plan.run(*arrays, *inputs) if inputs else plan.run(*arrays)
            if plan.make is not None:  # nothing but one new tensor comes of it
                return plan.make(new[0])
            if plan.written:
                put(plan, cells, new)
            n = len(plan.written)
            if returned is not None:
                return returned(args, kwargs)
            results = [None if make is None else make(new[n + k]) for k, make in plan.makers]
            return results[0] if plan.structure is None else plan.structure(results)
        except BaseException as error:
            if now.scripted and isinstance(error, Exception):  # C++ loses it
                now.raised = error
            if plan is None and not cold.wrote:
                error.untouched = True  # type: ignore[attr-defined]  # refused, before anything was written
            if writes and now.capture is None:
                cut_short(error, plan, args, kwargs)
                if operator.kind == "out" and isinstance(error, Exception):
                    resized_though_refused(operator.op, args, kwargs, error)
            raise

    def put(plan: Plan, cells: list[Storage], arrays: Sequence[Any]) -> None:
        """Put the arrays that a plan has computed into the storages that it writes."""
        try:
            for n, at in enumerate(plan.written):
                cells[at].array = arrays[n]
        except BaseException:  # an interrupt, or no memory to move one to its place: all of them, or none
            plan.writing = True
            for n, at in enumerate(plan.written):
                put_as_it_is(cells[at], arrays[n])
            raise
        plan.writing = False

    def cut_short(error: BaseException, plan: Plan | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell autograd of tensors that may have been written before something was raised: PyTorch counts their
        versions after the call. Of an interrupt nobody knows where it came."""
        if cold.wrote or (plan is not None and plan.writing) or not isinstance(error, Exception):
            cold.wrote = False
            if plan is not None:
                plan.writing = False
            bound = sig.bind(args, kwargs)
            for t in tensors_in([bound[name] for name in operator.writes if name in bound], {}):
                if not t.is_inference():
                    torch.autograd.graph.increment_version(t)

    def look_up(
        key: list[Any], cells: list[Storage], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Plan, list[Any]]:
        """The plan of a call, whose key has the offsets of its tensors, and those that are operands."""
        anywhere, forms, offsets = without_offsets(key, cells, writes)
        together = bool(offsets) and writes and len(set(map(id, cells))) < len(cells)
        if together:
            anywhere.append(relation(operator, args, kwargs))
        full = tuple(anywhere)
        plan = plans.get(full)
        if plan is None:
            plan = make_plan(operator, args, kwargs, forms)
            keep(plans, full, plan)
            if plan.slot.backend.compiles:
                compiled_plans[operator.name] += 1
        else:  # hot ones are asked for whenever they have gone from `calls`: what nobody asks for is the first to go
            plans[full] = plans.pop(full, plan)
        if offsets and not spec.uncompiled:
            return plan, list(map(plan.slot.backend.place, offsets))
        return plan, offsets

    def first(
        plan: Plan, cells: list[Storage], inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A plan's first call, every call in a trace, and those with more to do than to compute and to write."""
        if plan.prepare is not None:  # `out=` tensors are resized, and written as those of their size
            outs = set(map(id, tensors_in([kwargs[name] for name in operator.writes if name in kwargs], {})))
            if any(id(t) in outs for t in tensors_in(args, {})):  # read as it was
                args = map_nested(lambda a: a.clone() if id(a) in outs else a, args)
            plan.prepare(args, kwargs)
            before, now.resized = now.resized, True
            try:
                return call(*args, **kwargs)
            finally:
                now.resized = before
        if plan.run is None:
            if plan.concrete:
                return concrete(*args, **kwargs)
            return fallback.on_cpu(operator.op, args, kwargs)
        if now.capture is not None:
            now.capture.loops.issued(operator.name)
            now.capture.touch(cells)
        try:
            if plan.familiar:
                arrays = plan.run(*[c.array for c in cells], *inputs)
            else:
                with warning_filters.remembered():  # what compiles it may import libraries
                    arrays = plan.run(*[c.array for c in cells], *inputs)
        except NoQuantizedRuleError:
            raise
        except (NotImplementedError, RecursionError):  # the backend cannot; a decomposition comes down to itself
            plan.run = None
            return fallback.on_cpu(operator.op, args, kwargs)
        except (TypeError, ValueError, OverflowError):  # the backend's: PyTorch may have a word for it
            refuse(operator, args, kwargs, *ABOUT_DTYPES, NO_KERNEL)
            raise
        except TracedValueError:  # a decomposition that asks for values: operation by operation, then
            if not spec.decomposed or now.capture is not None:
                raise
            arrays = uncompiled(plan)(*[c.array for c in cells], *inputs)
        if plan.judges:
            if now.capture is None:
                checks.settle(plan.slot.backend, arrays, plan.judges)
        elif plan.makers is None and plan.xp is None:
            plan.settle()
        put(plan, cells, arrays)
        n = len(plan.written)
        if returned is not None:
            return returned(args, kwargs)
        results: list[Any] = []
        slot = plan.slot
        for meta in plan.results or ():
            if meta is None:
                results.append(None)
                continue
            cell = Storage(arrays[n], slot.backend) if plan.xp is None else stored(arrays[n], slot.backend)
            n += 1
            if now.capture is not None:
                now.capture.created(cell, now.capture.loops.here)
            results.append(attach(cell, slot, *meta))
        return results[0] if plan.structure is None else plan.structure(results)

    def concrete(*args: Any, **kwargs: Any) -> Any:
        if now.capture is None and (out := cold.at_once(args, kwargs)) is not MISS:
            return out
        try:
            with warning_filters.remembered():
                return run_concrete(operator, args, kwargs)
        except NoQuantizedRuleError:
            raise
        except NotImplementedError:
            return fallback.on_cpu(operator.op, args, kwargs)

    return below_modes(concrete) if spec.concrete is True else call


def _returned(operator: Operator) -> Callable[..., Any] | None:
    """Return a function that picks the results out of the arguments; None where the results are not written
    arguments."""
    sig = operator.signature
    if not sig.returns:
        return lambda args, kwargs: None
    if not sig.returns_written:
        return None
    if len(sig.returns) == 1:
        name = sig.written[0]
        if name in sig.positional:
            at = sig.positional.index(name)
            return lambda args, kwargs: args[at] if at < len(args) else kwargs[name]
        return lambda args, kwargs: kwargs[name]
    return lambda args, kwargs: tuple(sig.bind(args, kwargs)[name] for name in sig.written)


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
    elif isinstance(a, list | tuple):
        key.append(len(a))
        for x in a:
            _add(x, key, cells, inputs, number)
    elif isinstance(a, float):
        if number:
            key.append(float)
            inputs.append(a)
        else:
            key.append((float, a.hex()))
    elif isinstance(a, int | complex):
        if number:
            key.append(type(a))
            inputs.append(a)
        else:
            key.append((type(a), a))
    elif not isinstance(a, torch.Generator):
        key.append(a)


def _add_position(a: Any, key: list[Any], inputs: list[Any]) -> list[int]:
    """Add an integer, several of them or an exponent, that is an input. Which inputs a backend is to place."""
    if isinstance(a, list | tuple):
        key.append(len(a))
        return [k for x in a for k in _add_position(x, key, inputs)]
    key.append(a.__class__)
    inputs.append(a)
    return [len(inputs) - 1] if a.__class__ is int else []


def _host(t: Tensor) -> Any:
    return cpu_to_numpy(t) if state.now.capture is None else state.now.capture.host_array(t, cpu_to_numpy)


def _backend_of(cells: list[Storage], kwargs: dict[str, Any]) -> Any:
    """The backend of a call none of whose positional arguments is a tensor of ours."""
    if not cells:
        return slot_of(kwargs.get("device")).backend
    backend: Any = cells[0].backend
    for c in cells:
        backend = common(backend, c.backend)
        if backend is None:
            return None
    return backend


def _random_index(cells: list[Storage], args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    if cells:
        first = next(t for t in tensors_in(args, kwargs) if t.device.type == TYPE)
        return first.device.index
    return slot_of(kwargs.get("device")).index
