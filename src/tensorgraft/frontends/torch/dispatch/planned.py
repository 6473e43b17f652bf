"""The plans of an operator: which one a call has, and all of a call that is more than to compute and to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.nested import map_nested, tensors_in
from tensorgraft.frontends.torch.core.operator import Operator, keep
from tensorgraft.frontends.torch.core.tensors import attach, stored
from tensorgraft.frontends.torch.dispatch import checks, fallback
from tensorgraft.frontends.torch.dispatch.cold import MISS, ColdOperator
from tensorgraft.frontends.torch.dispatch.cold import plans as compiled_plans
from tensorgraft.frontends.torch.dispatch.concrete import run_concrete
from tensorgraft.frontends.torch.dispatch.meta_results import resize_after_error
from tensorgraft.frontends.torch.dispatch.offsets import without_offsets
from tensorgraft.frontends.torch.dispatch.overlap import relation
from tensorgraft.frontends.torch.dispatch.plan import Plan
from tensorgraft.frontends.torch.dispatch.planning import make_plan, uncompiled
from tensorgraft.frontends.torch.dispatch.refusals import ABOUT_DTYPES, NO_KERNEL, refuse
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.policy import NoQuantizedRuleError
from tensorgraft.storage import Storage, put_as_it_is

_now = state.now


class PlannedOperator:
    """An operator whose calls run plans. `returned` picks the results out of the arguments, where they are written."""

    def __init__(self, operator: Operator, cold: ColdOperator, returned: Callable[..., Any] | None) -> None:
        self._operator, self._cold, self._returned = operator, cold, returned
        self._writes = bool(operator.writes)
        # like `Operator.calls`, for traces and lazy mode, because eager calls may be cold
        self._recorded: dict[Any, tuple[Plan, list[Any]]] = {}
        self.call: Callable[..., Any] = self.run_concrete  # the operator's entry, which is made after this

    # ---- which plan ------------------------------------------------------------------------------------------------

    def find(
        self,
        full: tuple[Any, ...],
        key: list[Any],
        cells: list[Storage],
        backend: Backend | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Plan, list[Any]]:
        """Return the plan of a call, and its offsets that are operands. `full`: the key as it is kept."""
        table = self._operator.calls
        if _now.capture is not None or (backend is not None and backend.records):
            table = self._recorded
            if (known := table.get(full)) is not None:
                return known
        known = self._look_up(key, cells, args, kwargs)
        keep(table, full, known)
        return known

    def _look_up(
        self, key: list[Any], cells: list[Storage], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Plan, list[Any]]:
        operator = self._operator
        geometry_key, forms, offsets = without_offsets(key, cells, self._writes)
        if offsets and self._writes and len(set(map(id, cells))) < len(cells):
            geometry_key.append(relation(operator, args, kwargs))
        full = tuple(geometry_key)
        plan = operator.plans.get(full)
        if plan is None:
            plan = make_plan(operator, args, kwargs, forms)
            keep(operator.plans, full, plan)
            if plan.slot.backend.compiles:
                compiled_plans[operator.name] += 1
        # hot ones are looked up again whenever they were dropped from `calls`, so that unused ones are dropped first
        else:
            operator.plans[full] = operator.plans.pop(full, plan)
        if offsets and not operator.spec.uncompiled:
            return plan, list(map(plan.slot.backend.place, offsets))
        return plan, offsets

    # ---- running it ------------------------------------------------------------------------------------------------

    def run(
        self, plan: Plan, cells: list[Storage], inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a plan at its first call, in traces, and whenever more has to be done than to compute and write."""
        if plan.prepare is not None:
            return self._resized(plan, args, kwargs)
        if plan.run is None:
            if plan.concrete:
                return self.run_concrete(*args, **kwargs)
            return fallback.on_cpu(self._operator.op, args, kwargs)
        if _now.capture is not None:
            _now.capture.loops.issued(self._operator.name)
            _now.capture.touch(cells)
        indices = None if _now.capture is None or _now.capture.sparse is None else _now.capture.sparse.indices
        values = None if indices is None else indices.computed(self._operator, args, kwargs)
        arrays = self._computed(plan, cells, inputs, args, kwargs)
        if arrays is None:
            return fallback.on_cpu(self._operator.op, args, kwargs)
        if plan.verifiers:
            if _now.capture is None:
                checks.raise_failed(plan.slot.backend, arrays, plan.verifiers)
        elif plan.makers is None and plan.xp is None:
            plan.settle()
        _put(plan, cells, arrays)
        result = self._returned(args, kwargs) if self._returned is not None else _results(plan, arrays)
        if indices is not None:
            indices.note(self._operator, args, result, values)
        return result

    def finish(
        self, plan: Plan, cells: list[Storage], arrays: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Write the results of a plan that has run before, and return the results of the call."""
        if plan.written:
            _put(plan, cells, arrays)
        if self._returned is not None:
            return self._returned(args, kwargs)
        n = len(plan.written)
        results = [None if make is None else make(arrays[n + k]) for k, make in plan.makers or ()]
        return results[0] if plan.structure is None else plan.structure(results)

    def run_concrete(self, *args: Any, **kwargs: Any) -> Any:
        """Make a call that is never compiled, since the shapes of its results depend on values."""
        if _now.capture is None and (out := self._cold.at_once(args, kwargs)) is not MISS:
            return out
        try:
            with warning_filters.remembered():
                return run_concrete(self._operator, args, kwargs)
        except NoQuantizedRuleError:
            raise
        except NotImplementedError:
            return fallback.on_cpu(self._operator.op, args, kwargs)

    def _resized(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call whose `out=` tensors have to be resized: resize them, then call with tensors of the right
        size."""
        assert plan.prepare is not None
        outs = set(map(id, tensors_in([kwargs[name] for name in self._operator.writes if name in kwargs], {})))
        if any(id(t) in outs for t in tensors_in(args, {})):  # read as it was
            args = map_nested(lambda a: a.clone() if id(a) in outs else a, args)
        plan.prepare(args, kwargs)
        before, _now.resized = _now.resized, True
        try:
            return self.call(*args, **kwargs)
        finally:
            _now.resized = before

    def _computed(
        self, plan: Plan, cells: list[Storage], inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Sequence[Any] | None:
        """Return the arrays that a plan computes; None: the backend cannot, and the CPU does it from now on."""
        assert plan.run is not None
        try:
            if plan.familiar:
                return plan.run(*[c.array for c in cells], *inputs)
            with warning_filters.remembered():  # compiling may import libraries
                return plan.run(*[c.array for c in cells], *inputs)
        except NoQuantizedRuleError:
            raise
        except (NotImplementedError, RecursionError):  # a decomposition may come down to itself
            plan.run = None
            return None
        except (TypeError, ValueError, OverflowError):  # the backend's: PyTorch may have a word for it
            refuse(self._operator, args, kwargs, *ABOUT_DTYPES, NO_KERNEL)
            raise
        except TracedValueError:  # a decomposition that reads values is run operation by operation
            if not self._operator.spec.decomposed or _now.capture is not None:
                raise
            return uncompiled(plan)(*[c.array for c in cells], *inputs)

    # ---- errors ----------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException, plan: Plan | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record an error for later questions, and the memory that the call may have written before it."""
        if _now.scripted and isinstance(error, Exception):  # C++ loses it
            _now.raised = error
        if plan is None and not self._cold.wrote:
            error.untouched = True  # type: ignore[attr-defined]  # refused, before anything was written
        if self._writes and _now.capture is None:
            self._count_versions(error, plan, args, kwargs)
            if self._operator.kind == "out" and isinstance(error, Exception):
                resize_after_error(self._operator.op, args, kwargs, error)

    def _count_versions(
        self, error: BaseException, plan: Plan | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Increment the version counters of tensors that may have been written before an exception: PyTorch does so
        only after a call, and an interrupt may come at any point."""
        if self._cold.wrote or (plan is not None and plan.writing) or not isinstance(error, Exception):
            self._cold.wrote = False
            if plan is not None:
                plan.writing = False
            bound = self._operator.signature.bind(args, kwargs)
            for t in tensors_in([bound[name] for name in self._operator.writes if name in bound], {}):
                if not t.is_inference():
                    torch.autograd.graph.increment_version(t)


def _put(plan: Plan, cells: list[Storage], arrays: Sequence[Any]) -> None:
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


def _results(plan: Plan, arrays: Sequence[Any]) -> Any:
    """Make the results of a plan's first call, and of every one in a trace, which is told of their storages."""
    slot, capture, n = plan.slot, _now.capture, len(plan.written)
    results: list[Any] = []
    for meta in plan.results or ():
        if meta is None:
            results.append(None)
            continue
        cell = Storage(arrays[n], slot.backend) if plan.xp is None else stored(arrays[n], slot.backend)
        n += 1
        if capture is not None:
            capture.created(cell, capture.loops.here)
        results.append(attach(cell, slot, *meta))
    return results[0] if plan.structure is None else plan.structure(results)
