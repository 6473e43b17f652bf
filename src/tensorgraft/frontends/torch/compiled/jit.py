"""`tg.jit` for PyTorch programs: whatever a function does on the device, as one program of its backend.

A call is traced when it comes with shapes, dtypes or Python values not seen before, or when something that a trace
took for granted no longer holds (a module's mode, an optimizer's betas, a parameter that has another storage).
"""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad

from tensorgraft.compiled import patience
from tensorgraft.compiled.agreement import Check, CheckedTrace
from tensorgraft.compiled.captured_objects import is_plain_tensor, roots
from tensorgraft.compiled.function import MOST_TRACES, Report, TracedFunction, one_at_a_time
from tensorgraft.compiled.objects import Template, behind, noting_new
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import (
    RunsUncompiled,
    Uncompiled,
    called,
    raised_by_the_function,
    warn_uncompiled,
    when_traced,
)
from tensorgraft.compiled.values import is_plain
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled import recurring
from tensorgraft.frontends.torch.compiled.assembly import assemble
from tensorgraft.frontends.torch.compiled.capture import Capture, active
from tensorgraft.frontends.torch.compiled.cpu_functions import CpuCall, OnCpu
from tensorgraft.frontends.torch.compiled.device_inference import has_lazy_modules, home_of
from tensorgraft.frontends.torch.compiled.guards import (
    Rebound,
    attributes_key,
    leaf_key,
    modes,
)
from tensorgraft.frontends.torch.compiled.host import Argument, OnlyTheHost, on_host, raw_gradient
from tensorgraft.frontends.torch.compiled.indexing import traced_calls
from tensorgraft.frontends.torch.compiled.optimizers import Groups, Stepped, optimizers_traced
from tensorgraft.frontends.torch.compiled.replay import usable
from tensorgraft.frontends.torch.compiled.retraces import History
from tensorgraft.frontends.torch.compiled.scaling import scalers_traced
from tensorgraft.frontends.torch.compiled.tape import is_leaf, looks, record
from tensorgraft.frontends.torch.compiled.trace import Trace
from tensorgraft.frontends.torch.compiled.trace_contexts import Schedule, watching
from tensorgraft.frontends.torch.core import settings, state
from tensorgraft.frontends.torch.core.attributes import Reads, noting
from tensorgraft.frontends.torch.core.codes import apart
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.source_location import program_place
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.trees import (
    Boxed,
    Structure,
    call_of,
    containers,
    flatten_call,
    flatten_results,
)
from tensorgraft.frontends.torch.core.values import ROUNDS, Values, too_many
from tensorgraft.frontends.torch.dispatch.program import sharing
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.tiers import When
from tensorgraft.importing import uncollected
from tensorgraft.interrupts import held_back
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Array = Any
Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_transforms = torch._C._functorch.peek_interpreter_stack


def add_keys(keys: list[Any], leaves: Sequence[Any]) -> None:
    """Add modes, `leaf_key` of all arguments, and which of them share a storage."""
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
            keys += (t.is_conj(), t.is_neg(), a.shape, a.dtype, cell.placement)
            cells.append(cell)
        else:
            keys.append(leaf_key(t))
            if is_plain_tensor(t):
                keys += (kind, attributes_key(t.__dict__))
            if isinstance(t, Tensor) and t.device.type == TYPE:
                cells.append(cell_of(t))
    if len(cells) > 1:
        keys.append(None if len(set(cells)) == len(cells) else sharing(cells))


def _has_version(t: Any) -> bool:
    return isinstance(t, Tensor) and t.device.type == TYPE and t.layout is torch.strided and not t.is_inference()


class Compiled(TracedFunction):
    """A function compiled by `tg.jit`."""

    _flatten = staticmethod(flatten_call)
    _add_keys = staticmethod(add_keys)

    def __init__(
        self,
        fn: Callable[..., Any],
        reported: bool = True,
        guard_values: bool = False,
        compile: When = "recurring",
        check: Check = "never",
    ) -> None:
        super().__init__(fn)
        self.check = check
        self._guards_values = guard_values
        self._cpu: OnCpu | None = None
        self.history = History(fn, self._reached)
        self._recurring = recurring.Recurring(compile, self.report.name, self.history)
        if reported:
            reports.append(self.report)

    @staticmethod
    def _is_inside() -> bool:
        """Another compiled function, which compiles this one with the rest, or transforms, whose tensors have no
        arrays: a compiled program would know nothing of their tangents."""
        return state.now.capture is not None or _transforms() is not None or forward_ad._current_level >= 0

    def _first_call(
        self, quick: Any, leaves: list[Any], structure: Structure, objects: list[Any], args: Any, kwargs: Any
    ) -> Any:
        if has_lazy_modules((*objects, *leaves)):
            return self.fn(*args, **kwargs)
        home = home_of(self.fn, objects, leaves)
        if home.backend is None:
            return self._on_cpu(quick, leaves, structure, objects)
        backend = home.backend
        if not backend.traces:
            return self.fn(*args, **kwargs)
        key = self._key(quick, objects, backend)
        known = self.traces.setdefault(key, [])
        self._remember(quick, objects, known)
        for trace in known:
            if trace.guards.hold(leaves):
                return trace(leaves)
        seen = functools.partial(self.history.call, leaves, structure, backend)
        guards = [trace.guards for trace in known]
        signature = (key, *self.history.why(seen(), guards, leaves)) if known else key
        if home.sure and self._recurring.waits(backend, signature, self.programs, MOST_TRACES, seen):
            self.report.cold += 1
            return recurring.run(self.fn, args, kwargs)
        call = seen()
        why = self.history.why(call, guards, leaves)
        if self.programs >= MOST_TRACES:
            if any(trace.changes for traces in self.traces.values() for trace in traces):
                return self._uncompiled(
                    known, leaves, "reads what it changes itself: every call would be a program of its own"
                )
            raise RuntimeError(self.history.too_many(self.report.name, MOST_TRACES, call, why, program_place()))
        try:
            # an interrupt waits: of one that comes while C++ asks for a stream PyTorch aborts the process
            with one_at_a_time, held_back():
                for trace in known:  # which another thread may have made
                    if trace.guards.hold(leaves):
                        break
                else:
                    return self._traced_call(backend, leaves, structure, home.sure, known, call, why)
        except OnlyTheHost:
            return self._on_cpu(quick, leaves, structure, objects)
        except RunsUncompiled as reason:
            return self._uncompiled(known, leaves, str(reason))
        except Exception as error:
            if not raised_by_the_function(error):
                raise
            # the error is PyTorch's own then, and what was done before it stays
            out = recurring.run(self.fn, args, kwargs)
            self._uncompiled_from_now_on(known, when_traced(error))
            return out
        return trace(leaves)

    def _uncompiled(self, known: list[Any], leaves: list[Any], why: str) -> Any:
        """A call of a function that cannot be one program, which is said once."""
        return self._uncompiled_from_now_on(known, why)(leaves)

    def _uncompiled_from_now_on(self, known: list[Any], why: str) -> Uncompiled:
        warn_uncompiled(self.report.name, why)
        known.append(trace := Uncompiled(self.fn, self.report, recurring.run))
        return trace

    def _traced_call(
        self,
        backend: Backend,
        leaves: list[Any],
        structure: Structure,
        sure: bool,
        known: list[Any],
        call: Any,
        why: list[str],
    ) -> Any:
        """A call that is traced, compiled and run. Raises OnlyTheHost."""
        with uncollected():
            trace = self._trace(backend, leaves, structure, sure)
        start = time.perf_counter()
        try:
            with uncollected(), patience.told(self.report.name):
                out = trace(leaves, first=True)
            trace.ran = True
        except Exception as error:
            if trace.ran or not trace.changes:
                raise
            raise RunsUncompiled("keeps something of the body of a loop or branch outside of it") from error
        finally:
            undo, trace.undo = trace.undo, None
            if trace.ran:
                known.append(trace if trace.record is None else self._checked(trace, known, backend, structure, sure))
                self.history.calls.append(call)
                self.report.reasons.append(why)
            elif undo is not None:  # no program, or none that ran: as if it had not been called
                undo()
            trace.close()
        self.report.compile_seconds += time.perf_counter() - start
        return out

    def _checked(
        self, trace: Trace, known: list[Any], backend: Backend, structure: Structure, sure: bool
    ) -> CheckedTrace:
        def check(leaves: Sequence[Any]) -> str | None:
            with one_at_a_time, held_back(), uncollected():
                again = self._trace(backend, leaves, structure, sure)  # type: ignore[arg-type]
                assert trace.record is not None and again.record is not None and again.undo is not None
                again.undo()
                again.close()
            self.report.traces -= 1
            del self.report.operations[-1]
            return trace.record.difference(again.record)

        return CheckedTrace(trace, known, check, self.check == "always", self._uncompiled)

    def _on_cpu(self, quick: Any, leaves: list[Any], structure: Structure, objects: list[Any]) -> Any:
        """A call of a function of CPU tensors alone."""
        if self._cpu is None:
            self._cpu = OnCpu(self.fn, self.report)
        call = CpuCall(self._cpu, structure)
        self._remember(quick, objects, [call])
        return call(leaves)

    def news(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Describe what is new in a call, for which it would be traced. Return an empty list if it would not, and for
        the first call."""
        leaves, structure = flatten_call(args, kwargs)
        objects = self._reached.now()
        backend = home_of(self.fn, objects, leaves).backend
        if backend is None:
            return []
        quick = [structure, *map(id, objects)]
        add_keys(quick, leaves)
        guards = [trace.guards for trace in self.traces.get(self._key(quick, objects, backend), [])]
        if any(g.hold(leaves) for g in guards):
            return []
        return self.history.why(self.history.call(leaves, structure, backend), guards, leaves)

    def _trace(self, backend: Backend, leaves: list[Any], structure: Structure, on_device: bool = True) -> Trace:
        """`on_device`: the function is known to use the device. Raises OnlyTheHost where it turns out not to."""
        values = Values()
        for _ in range(ROUNDS):  # until every value that was asked for is known: the first, without `guard_values`
            try:
                made, found = self._trace_once(backend, leaves, structure, values, on_device)
            except Exception:
                if not values.guessed:
                    raise
                values = Values(values.answers[: values.known], guesses=False)
                continue
            if made is not None and not values.guessed:
                return made
            if made is not None and values.all_right(found := made.guards.now(leaves)):  # type: ignore[attr-defined]
                return made
            if made is not None:  # a guess was wrong
                values.undo()
                if made.schedule.before or made.schedule.after:
                    raise TracedValueError(
                        "a scheduler steps in a compiled function whose guarded values need several traces: step it"
                        " outside"
                    )
            values = Values(values.right(found), values.guesses)
        raise too_many()

    def _trace_once(
        self, backend: Backend, leaves: list[Any], structure: Structure, values: Values, on_device: bool
    ) -> tuple[Trace | None, list[np.ndarray]]:
        """A trace, or the values that it asked for if one of them was not known."""
        start = time.perf_counter()
        capture = Capture(backend, values=values if self._guards_values else None, on_device=on_device)
        values.undo = capture.undo
        schedule = Schedule()
        stepped: list[Stepped] = []
        call = call_of(leaves)
        capture.world = world = Reachable([("", self.fn)], call)
        if world.once is not None:
            raise RunsUncompiled(f"reads {world.once}, which may be something else each time")
        if (made := next(filter(_is_composite, leaves), None)) is not None:
            raise RunsUncompiled(f"takes a {type(made).__name__}, a tensor that is made of others")
        ours = [(i, t) for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.device.type == TYPE]
        for i, t in enumerate(leaves):
            if on_host(t):
                capture.fed_tensors[id(t)] = (t, Argument(i))
        handed = list(leaves)
        cells = {id(cell_of(t)): i for i, t in reversed(ours)}
        cut: dict[int, int] = {}  # arguments without the history that they came with
        for k, (i, t) in enumerate(ours):
            if t.requires_grad and not is_leaf(t):  # its history is not the function's: autograd goes on there later
                handed[i] = t.detach().requires_grad_()
                handed[i].__dict__ = t.__dict__
                ours[k] = (i, handed[i])
                cut[id(handed[i])] = i
        capture.cut.update(cut)
        # leaves, whose `requires_grad` a call may set
        settable = [(i, t, t.requires_grad) for i, t in enumerate(leaves) if isinstance(t, Tensor) and t is handed[i]]
        args, kwargs = world.substituted(call, {id(leaves[i]): handed[i] for i in cut.values()})
        outside = {id(t): t for t in (*(t for _, t in ours), *world.seen.values()) if _has_version(t)}
        versions = [(t, t._version) for t in outside.values()]
        surroundings = Surroundings("torch")
        for name, value in roots(self.fn):
            surroundings.add(name, value)
        for leaf in leaves:
            if not isinstance(leaf, Boxed | np.ndarray):
                surroundings.add("an argument", leaf)
            for name, value in leaf.__dict__.items() if is_plain_tensor(leaf) else ():
                surroundings.add(f"an argument.{name}", value)
        surroundings.watch(world)
        keyed = {id(x) for leaf in leaves if leaf.__class__ is Boxed for x in behind(leaf.of)}
        reads = Reads(surroundings, world, keyed)
        reached = *self._reached.fixed, *leaves, *surroundings.new_objects(), *world.owners
        owners = [v for v in reached if not isinstance(v, Tensor)]
        seen: dict[str, Any] = {"reads": reads, "surroundings": surroundings, "cells": cells, "template": None}
        seen["versions"] = versions

        def traced() -> list[Array]:
            with active(capture), settings.kept(), contextlib.ExitStack() as stack:
                stack.enter_context(optimizers_traced(capture, schedule, stepped))
                seen["host"] = capture.host = stack.enter_context(watching(capture, schedule))
                stack.enter_context(scalers_traced())
                stack.enter_context(traced_calls(capture))
                first_node = torch.autograd._get_sequence_nr()
                world.is_new = stack.enter_context(noting_new())
                before, groups = modes(), Groups(world.seen.values())
                capture.undos.append(groups.restore)
                with noting(reads, *owners), torch.set_grad_enabled(torch.is_grad_enabled()):
                    seen["said"] = said = OutsideCalls()
                    with said.watched(world.outside):
                        out = called(self.fn, args, kwargs)
                    said.settled()
                    seen["grad_mode"] = torch.is_grad_enabled()
                if capture.uncompiled is not None:
                    raise RunsUncompiled(capture.uncompiled)
                if capture.leaves_hooks():
                    raise RunsUncompiled("registers a hook on a tensor from outside")
                if modes() != before:
                    raise RunsUncompiled("changes a setting of PyTorch for what comes after it")
                if groups.changed() and not (schedule.before or schedule.after):
                    raise RunsUncompiled("changes the hyper-parameters of an optimizer")
                seen["changes"] = changes = world.changes(reads.counted)
                if world.drew():
                    raise RunsUncompiled("draws random numbers of Python or NumPy")
                if (name := world.remembered()) is not None:
                    raise RunsUncompiled(f"calls {name}, under functools.lru_cache, with tensors")
                flat, structure = flatten_results(out)
                if (composite := next(filter(_is_composite, flat), None)) is not None:
                    raise RunsUncompiled(f"returns a {type(composite).__name__}, a tensor that is made of others")
                if any(isinstance(x, _LATER) for x in flat):
                    raise RunsUncompiled("returns a generator, which computes when it is asked")

                def is_old(x: Any) -> bool:
                    return id(x) in world.seen or id(x) in capture.modules or not world.is_new(x)

                whole = not any(not (isinstance(x, Tensor) or is_plain(x) or is_old(x)) for x in flat)
                if changes or not whole or any(id(x) in world.seen for x in containers(out)):
                    made = (out, [change.new for change in changes])
                    seen["template"] = template = Template(made, _is_tensor, is_old)
                    flat, structure = list(template.arrays), None
                    del made, template
                capture.host.at_the_end(flat)
                seen["structure"] = None if len(flat) == 1 and flat[0] is out else structure
                arguments = [*ours, *((i, t) for i, t in enumerate(leaves) if on_host(t))]
                seen["identical"] = [next((i for i, t in arguments if t is o), None) for o in flat]
                seen["slots"] = slots = Rebound(world, changes, cells)
                outside = {id(t): (lambda leaves, t=t: t) for t in world.seen.values() if isinstance(t, Tensor)}
                seen["looks"] = looks(flat, ours, {**outside, **slots.tensors}, capture)
                seen["roots"], seen["tape"] = record(flat, seen["identical"], seen["looks"], first_node, capture)
                seen["classes"] = [*_classes(flat, seen, world)]
                seen["attributes"] = [*_new_attributes(flat, seen["identical"], world)]
                seen["again"] = [next(j for j, p in enumerate(flat) if p is o) for o in flat]
                flat = [o.detach() if isinstance(o, Tensor) and o.device.type == TYPE else o for o in flat]
                del out
                if seen["tape"] is None:
                    capture.host.refuse_left(flat)
                capture.forget_leaves()
                moved = [(i, t) for i, t in ours if capture.looking_elsewhere(t)]
                self._refuse_moved(capture, [t for _, t in ours], cut)
                for _, t in moved:  # results, too, which the arguments look at after a call
                    seen["again"].append(len(flat))
                    seen["identical"].append(None)
                    flat.append(t.detach())
                seen["moved"] = [i for i, _ in moved]
                seen["required"] = [
                    (i, not before) for i, t, before in settable if is_leaf(t) and t.requires_grad is not before
                ]
                seen["flat"] = flat
                for t in flat:
                    if isinstance(t, Tensor) and t.device.type == TYPE:
                        capture.touch([cell_of(t)])
                capture.casts.clear()  # autocast's, which nothing after this call may use
                seen["written"] = [t for t in capture.touched if t.cell.array is not t.stand_in]
                seen["survivors"] = capture.survivors()
                arrays = [t.cell.array for t in seen["written"]] + [c.array for c in apart(seen["survivors"])]
                tape = seen["tape"]
                if tape is None:
                    return arrays
                tape.keep(capture, [*seen["survivors"], *(cell_of(t) for _, t in ours)])
                seen["made"], seen["usable"] = arrays, usable(capture, seen["written"])
                return arrays + tape.outputs(seen["usable"], arrays)

        try:
            try:
                with policy.noted() as notes:
                    program = backend.trace(values.asking(traced))
                seen["notes"] = notes
            except RuntimeError as error:
                if cut and "a leaf Variable that requires grad" in str(error):
                    raise RunsUncompiled("writes an argument in place that has a history (grad_fn)") from error
                raise
            if values.missing:
                capture.undo()
                capture.restore()
                return None, list(map(backend.to_numpy, program.compile()(*program.captured)))
            capture.loops.warn()
            seen["slopes"] = [(leaf, raw_gradient(leaf.tensor)) for leaf in capture.leaves.values()]
            capture.undo_gradients()
            world.undo()
            world.is_new = lambda value: False
            trace = self._assemble(capture, program, seen, leaves, ours, schedule, stepped)
        except BaseException:
            capture.undo()
            surroundings.undo()
            raise
        finally:
            capture.restore()
            for _, t, before in settable:
                if is_leaf(t) and t.requires_grad is not before:
                    t.requires_grad_(before)
        trace.undo, trace.close = capture.undo, capture.close
        self.report.traces += 1
        self.report.operations.append(program.size)
        self.report.trace_seconds += time.perf_counter() - start
        return trace, []

    def _assemble(self, capture: Capture, *found: Any) -> Trace:
        return assemble(self.check, self._reached.now(), capture, *found)

    def _refuse_moved(self, capture: Capture, arguments: Sequence[Tensor], cut: dict[int, int]) -> None:
        """Raises TracedValueError where a tensor that is no argument has been given another geometry or storage, which
        every later call would not do. An argument is given it at each call, unless it has come with a history."""
        if not capture.looks:
            return
        assert capture.world is not None
        given = {id(t) for t in arguments if id(t) not in cut}
        for t in (*capture.world.seen.values(), *arguments):
            if isinstance(t, Tensor) and id(t) not in given and capture.looking_elsewhere(t):
                raise refused(
                    f"gives a tensor from outside, of shape {tuple(t.shape)} now, another geometry or storage (t_(),"
                    " resize_(), out= of another size, .data = ...).",
                    ("its values", "write them: t.copy_(new) in torch.no_grad()"),
                    ("its shape", "return the new tensor, or pass the old one as an argument without history"),
                )


def _classes(flat: Sequence[Any], seen: dict[str, Any], world: Reachable) -> Iterator[tuple[int, type, bool]]:
    """Yield the new results that are leaves of autograd, or of another class: (place, class, whether a leaf requires
    gradients). Raises RunsUncompiled for those that have a gradient, or are in the history of another result."""
    ends = set() if seen["tape"] is None else set(map(id, seen["tape"].leaves))
    for i, (t, same, look) in enumerate(zip(flat, seen["identical"], seen["looks"], strict=True)):
        if same is None and is_plain_tensor(t) and id(t) not in world.seen:
            required = look is None and is_leaf(t) and t.requires_grad
            if required and (t.grad is not None or id(t) in ends):
                raise RunsUncompiled("returns or keeps a new leaf of autograd with what it has computed of it")
            if required or type(t) is not Tensor:
                yield i, type(t), required


def _new_attributes(
    flat: Sequence[Any], identical: Sequence[Any], world: Reachable
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the attributes that the function has given to new tensors among its results, by their places."""
    for i, (x, same) in enumerate(zip(flat, identical, strict=True)):
        if same is None and is_plain_tensor(x) and x.__dict__ and id(x) not in world.seen:
            if not all(map(is_plain, x.__dict__.values())):
                raise RunsUncompiled("returns a tensor with an attribute that is a tensor or another object")
            yield i, dict(x.__dict__)


reports: deque[Report] = deque(maxlen=1000)  # a program may make functions without end


_LATER = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def _is_composite(x: Any) -> bool:
    """Say whether it is a tensor of a program's class that is made of other tensors."""
    ours = isinstance(x, Tensor) and x.device.type == TYPE and not type(x).__module__.startswith("tensorgraft.")
    return ours and not is_plain_tensor(x)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)
