"""`tg.jit` for PyTorch programs: all computations of a function on the device, as one program of its backend.

A call is traced if it has new shapes, dtypes or Python values, or if an assumption of the traces no longer holds (a
module's mode, an optimizer's betas, the storage of a parameter).
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad

from tensorgraft.compiled import patience
from tensorgraft.compiled.agreement import Check, CheckedTrace
from tensorgraft.compiled.background import SWITCH, TRACED, At, BackgroundTrace, When, preparation
from tensorgraft.compiled.captured_objects import is_plain_tensor
from tensorgraft.compiled.function import MOST_TRACES, InContext, Report, TracedFunction, missed, one_at_a_time
from tensorgraft.compiled.outside_calls import muted
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.uncompiled import (
    KEEPS_VALUE_OF_BODY,
    RunsUncompiled,
    Uncompiled,
    raised_by_the_function,
    warn_uncompiled,
    when_traced,
)
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.assembly import assemble
from tensorgraft.frontends.torch.compiled.autograd.tape import Tape
from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.compiled.device_inference import has_lazy_modules, home_of
from tensorgraft.frontends.torch.compiled.guards import recurring
from tensorgraft.frontends.torch.compiled.guards.assumptions import Guards, attributes_key, leaf_key, modes
from tensorgraft.frontends.torch.compiled.guards.retraces import History
from tensorgraft.frontends.torch.compiled.guards.straight_keys import write_keys
from tensorgraft.frontends.torch.compiled.host.traced_tensors import OnlyTheHost
from tensorgraft.frontends.torch.compiled.sparse_tensors import flatten_call
from tensorgraft.frontends.torch.compiled.trace import Trace
from tensorgraft.frontends.torch.compiled.tracing import Tracing
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.modes import BelowFunctions, function_mode, of_program
from tensorgraft.frontends.torch.core.source_location import program_place
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import Boxed, Structure
from tensorgraft.frontends.torch.core.values import ROUNDS, Values, too_many
from tensorgraft.frontends.torch.dispatch.program import sharing
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import NotStraight
from tensorgraft.importing import uncollected
from tensorgraft.interrupts import held_back
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.compiled.host.cpu_functions import OnCpu

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_transforms = torch._C._functorch.peek_interpreter_stack


def add_keys(keys: list[Any], leaves: Sequence[Any]) -> None:
    """Add modes, `leaf_key` of all arguments, and which of them share a storage."""
    if function_mode():
        raise InContext(BelowFunctions())
    keys += modes()
    cells: list[Storage] = []
    for t in leaves:
        kind = t.__class__
        if kind is Tensor or kind is Parameter:
            if attributes := t.__dict__:
                keys.append(attributes_key(attributes))
            try:
                cell = t.untyped_storage().cell
            except (AttributeError, NotImplementedError):  # a sparse tensor has no storage
                keys.append(leaf_key(t))
                continue
            a = cell.array
            if cell.backend.compound:
                keys += (cell.array.kind,)
            try:
                leaf = t.is_leaf
            except RuntimeError:  # a view from `no_grad` that was written since
                leaf = False
            keys += (kind, cell.backend, t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad, leaf)
            keys += (t.is_conj(), t.is_neg(), t.is_inference(), a.shape, a.dtype, cell.placement)
            cells.append(cell)
        else:
            if isinstance(t, Tensor) and _overrides(t):
                if torch._C._is_torch_function_enabled():
                    raise InContext(BelowFunctions())
                keys.append(state.now.below)
            keys.append(leaf_key(t))
            if is_plain_tensor(t):
                keys += (kind, attributes_key(t.__dict__))
            if isinstance(t, Tensor) and t.device.type == TYPE:
                cells.append(cell_of(t))
    if len(cells) > 1:
        keys.append(None if len(set(cells)) == len(cells) else sharing(cells))


def _overrides(t: Tensor) -> bool:
    return type(t).__torch_function__ is not torch._C._disabled_torch_function_impl


class _NewCall(NamedTuple):
    """A call that no trace serves yet."""

    backend: Backend
    leaves: list[Any]
    on_device: bool  # the function is known to use the device
    known: list[Any]  # the traces of calls with the same key
    call: Any  # the call, as recorded by the history
    reasons: list[str]  # why no trace serves it


class Compiled(TracedFunction):
    """A function compiled by `tg.jit`."""

    _flatten = staticmethod(flatten_call)
    _sorts_keys = False
    _add_keys = staticmethod(add_keys)
    _write_keys = staticmethod(write_keys)

    def __init__(
        self,
        fn: Callable[..., Any],
        reported: bool = True,
        guard_values: bool = False,
        compile: When = "recurring",
        check: Check = "never",
        at: At = SWITCH,
    ) -> None:
        super().__init__(fn)
        self.check, self._at = check, at
        self._guards_values = guard_values
        self._cpu: OnCpu | None = None
        self.history = History(fn, self._captures)
        self._recurring = recurring.Recurring(compile, self.report.name, self.history)
        if reported:
            reports.append(self.report)

    @staticmethod
    def _is_inside() -> bool:
        """Return True inside another compiled function, which includes this one, or inside transforms, whose tensors
        have no arrays (a compiled program would ignore their tangents)."""
        return state.now.capture is not None or _transforms() is not None or forward_ad._current_level >= 0

    def _in_straight_line(self, call: Any, leaves: list[Any], *args: Any) -> Any:
        has_sparse = any(x.__class__ is Boxed and isinstance(x.of, Tensor) for x in leaves)
        return missed if has_sparse else super()._in_straight_line(call, leaves, *args)

    def _write_trace(self, code: StraightCall, trace: Any) -> None:
        if trace.__class__ is not Trace or trace.guards.__class__ is not Guards:
            raise NotStraight
        trace.guards.write(code)
        trace.write(code, self.report)

    def _first_call(
        self, fast_key: Any, leaves: list[Any], structure: Structure, objects: list[Any], args: Any, kwargs: Any
    ) -> Any:
        if has_lazy_modules((*objects, *leaves)):
            return of_program(self.fn, *args, **kwargs)
        inferred = home_of(self.fn, objects, leaves)
        if inferred.backend is None:
            return self._on_cpu(fast_key, leaves, structure, objects)
        backend = inferred.backend
        if not backend.traces:
            return of_program(self.fn, *args, **kwargs)
        key = self._key(fast_key, objects, backend)
        known = self.traces.setdefault(key, [])
        self._remember(fast_key, objects, known)
        for trace in known:
            if trace.guards.hold(leaves):
                return trace(leaves)
        named_call = functools.partial(self.history.call, leaves, structure, backend)
        guards = [trace.guards for trace in known]
        signature = (key, *self.history.why(named_call(), guards, leaves)) if known else key
        if self._recurring.waits(backend, signature, self.programs, MOST_TRACES, named_call, inferred.sure):
            self.report.cold += 1
            return recurring.run(self.fn, args, kwargs)
        call = named_call()
        new = _NewCall(backend, leaves, inferred.sure, known, call, self.history.why(call, guards, leaves))
        if self.programs >= MOST_TRACES:
            if any(trace.changes for traces in self.traces.values() for trace in traces):
                return self._uncompiled(
                    known, leaves, "reads what it changes itself: every call would be a program of its own"
                )
            raise RuntimeError(self.history.too_many(self.report.name, MOST_TRACES, call, new.reasons, program_place()))
        uncompiled = failed = None
        try:
            # delay interrupts: PyTorch aborts the process if one comes while C++ asks for a stream
            with one_at_a_time, held_back():
                for trace in known:  # another thread may have added one
                    if trace.guards.hold(leaves):
                        break
                else:
                    out, trace = self._traced_call(new)
                    if trace is None:
                        return out
        except OnlyTheHost:
            pass
        except RunsUncompiled as reason:
            uncompiled = str(reason)
        except Exception as error:
            if not raised_by_the_function(error):
                raise
            failed = when_traced(error)
        else:
            return trace(leaves)
        # out of the handlers: an error of the function has no other one as its context, which would hold the arguments
        if uncompiled is not None:
            return self._uncompiled(known, leaves, uncompiled)
        if failed is None:
            return self._on_cpu(fast_key, leaves, structure, objects)
        out = recurring.run(self.fn, args, kwargs)  # the error is PyTorch's own, and effects before it stay
        self._uncompiled_from_now_on(known, failed)
        return out

    def _uncompiled(self, known: list[Any], leaves: list[Any], reason: str) -> Any:
        """Call a function that cannot be one program, and warn of that once."""
        return self._uncompiled_from_now_on(known, reason)(leaves)

    def _uncompiled_from_now_on(self, known: list[Any], reason: str) -> Uncompiled:
        warn_uncompiled(self.report.name, reason)
        known.append(trace := Uncompiled(self.fn, self.report, recurring.run))
        return trace

    def _traced_call(self, new: _NewCall) -> tuple[Any, BackgroundTrace | None]:
        """Trace, compile and run a call. Returns (its results, None), or (None, a trace that runs the function itself
        until there is a program). Raises OnlyTheHost."""
        with uncollected(), BelowFunctions(), self._quietly():
            trace = self._trace(new.backend, new.leaves, new.on_device)
        once = trace.once and not trace.outside_calls  # what a trace has printed is not printed again
        deferred = self._recurring.defers(new.backend, once, new.on_device)
        if deferred or self._recurring.when == "background":
            return None, self._later(trace, new, deferred)
        return self._first_run(trace, new), None

    def _quietly(self) -> AbstractContextManager[None]:
        """Return the context of a trace, muted if the function itself runs after it."""
        return muted() if self._recurring.when == "background" else nullcontext()

    def _first_run(self, trace: Trace, new: _NewCall) -> Any:
        """Compile and run a call that was traced."""
        start = time.perf_counter()
        try:
            with uncollected(), patience.progress_shown(self.report.name):
                out = trace(new.leaves, first=True)
            trace.ran = True
        except Exception as error:
            if trace.ran or not trace.changes:
                raise
            raise RunsUncompiled(KEEPS_VALUE_OF_BODY) from error
        finally:
            undo, trace.undo = trace.undo, None
            if trace.ran:
                self._add(self._checked(trace, new), new)
            elif undo is not None:  # there is no program, or it has not run: undo the effects of the trace
                undo()
            trace.close()
        self.report.compile_seconds += time.perf_counter() - start
        return out

    def _add(self, trace: Any, new: _NewCall) -> None:
        """Add a trace to those that later calls may use."""
        new.known.append(trace)
        if trace.tape is not None:
            trace.tape.surroundings.left = functools.partial(self._left, new.known, trace.tape)
        self.history.calls.append(new.call)
        self.report.reasons.append(new.reasons)

    def _later(self, trace: Trace, new: _NewCall, deferred: bool) -> BackgroundTrace:
        """Undo the effects of a trace, whose calls run the function itself until another thread has compiled the
        program, or, if `deferred`, until the next call compiles it."""
        undo, trace.undo = trace.undo, None
        assert undo is not None
        undo()
        trace.close()
        trace.inputs.forget_traced()
        prepare = None if deferred else preparation(trace.run, trace.inputs, new.leaves)
        run = functools.partial(recurring.run, self.fn)
        checked, at = self._checked(trace, new), TRACED + 1 if deferred else self._at
        later = BackgroundTrace(checked, new.known, prepare, at, self.report, run, self._uncompiled, deferred)
        self._add(later, new)
        return later

    def _left(self, known: list[Any], tape: Tape) -> None:
        """Called when a backward pass has changed something outside, as each one does: the function runs uncompiled
        from now on."""
        warned: list[bool] = []

        def run(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if not warned:  # at the program's line, which autograd's thread does not have
                warned.append(True)
                warn_uncompiled(self.report.name, "changes something outside in its backward pass (in a hook)")
            return recurring.run(fn, args, kwargs)

        if any(getattr(trace, "tape", None) is tape for trace in known):
            known[:] = [trace for trace in known if getattr(trace, "tape", None) is not tape]
            known.append(Uncompiled(self.fn, self.report, run))

    def _checked(self, trace: Trace, new: _NewCall) -> Trace | CheckedTrace:
        """Return a trace that is compared with a second one at its next call, if `check` asks for that."""
        if trace.record is None:
            return trace
        backend, on_device = new.backend, new.on_device  # the check outlives the call, and must not hold its leaves

        def check(leaves: Sequence[Any]) -> str | None:
            with one_at_a_time, held_back(), uncollected(), muted(), BelowFunctions():
                second = self._trace(backend, leaves, on_device)  # type: ignore[arg-type]
                assert trace.record is not None and second.record is not None and second.undo is not None
                second.undo()
                second.close()
            self.report.traces -= 1
            del self.report.operations[-1]
            return trace.record.difference(second.record)

        return CheckedTrace(trace, new.known, check, self.check == "always", self._uncompiled)

    def _on_cpu(self, fast_key: Any, leaves: list[Any], structure: Structure, objects: list[Any]) -> Any:
        """Call a function of CPU tensors only."""
        from tensorgraft.frontends.torch.compiled.host.cpu_functions import CpuCall, OnCpu  # imports Dynamo: 3 s

        if self._cpu is None:
            self._cpu = OnCpu(self.fn, self.report)
        call = CpuCall(self._cpu, structure)
        self._remember(fast_key, objects, [call])
        return call(leaves)

    def news(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], str]:
        """Describe what is new in a call, for which it would be traced, and what it waits for before it runs compiled.
        Return an empty list if it would not be traced, and for the first call."""
        leaves, structure = flatten_call(args, kwargs)
        objects = self._captures.current()
        backend = home_of(self.fn, objects, leaves).backend
        if backend is None:
            return [], ""
        fast_key = [structure, *map(id, objects)]
        add_keys(fast_key, leaves)
        known = self.traces.get(self._key(fast_key, objects, backend), [])
        for trace in known:
            if trace.guards.hold(leaves):
                return [], trace.waits if isinstance(trace, BackgroundTrace) else ""
        guards = [trace.guards for trace in known]
        return self.history.why(self.history.call(leaves, structure, backend), guards, leaves), ""

    def _trace(self, backend: Backend, leaves: list[Any], on_device: bool) -> Trace:
        """Trace the function. `on_device`: it is known to use the device. Raises OnlyTheHost if it does not."""
        values = Values()
        for _ in range(ROUNDS):  # until every value that is read is known: once, without `guard_values`
            try:
                trace, values_now = self._trace_once(backend, leaves, values, on_device)
            except Exception:
                if not values.guessed:
                    raise
                values = Values(values.answers[: values.known], guesses=False)
                continue
            if trace is not None and not values.guessed:
                return trace
            if trace is not None and values.all_right(values_now := trace.guards.current_values(leaves)):  # type: ignore[attr-defined]
                return trace
            if trace is not None:  # a guess was wrong
                values.undo()
                if trace.schedule.before or trace.schedule.after:
                    raise TracedValueError(
                        "a scheduler steps in a compiled function whose guarded values need several traces: step it"
                        " outside"
                    )
            values = Values(values.right(values_now), values.guesses)
        raise too_many()

    def _trace_once(
        self, backend: Backend, leaves: list[Any], values: Values, on_device: bool
    ) -> tuple[Trace | None, list[np.ndarray]]:
        """Return (a trace, []), or (None, the values that it has read) if one of them was not known."""
        start = time.perf_counter()
        capture = Capture(backend, values=values if self._guards_values else None, on_device=on_device)
        values.undo = capture.undo
        tracing = Tracing(self.fn, self._captures.fixed, capture, leaves)
        try:
            try:
                with policy.counting_later() as tracing.notes:
                    program = backend.trace(values.asking(tracing.run))
            except RuntimeError as error:
                if tracing.detached and "a leaf Variable that requires grad" in str(error):
                    raise RunsUncompiled("writes an argument in place that has a grad_fn") from error
                raise
            if values.missing:
                capture.undo()
                capture.restore()
                capture.close()
                return None, list(map(backend.to_numpy, program.compile()(*program.captured)))
            capture.loops.warn()
            tracing.finish()
            trace = self._assemble(tracing, program)
        except BaseException:
            tracing.abandon()
            raise
        finally:
            tracing.restore()
        trace.undo, trace.close = capture.undo, capture.close
        self.report.traces += 1
        self.report.operations.append(program.size)
        self.report.trace_seconds += time.perf_counter() - start
        return trace, []

    def _assemble(self, tracing: Tracing, program: Any) -> Trace:
        return assemble(self.check, self._captures.current(), tracing, program)


reports: deque[Report] = deque(maxlen=1000)  # a program may make functions without end
