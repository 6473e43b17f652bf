"""`tg.jit` of functions of `Array`s: one program of their backend, with its writes."""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.agreement import Check, CheckedTrace
from tensorgraft.compiled.background import SWITCH, TRACED, At, BackgroundTrace, When, preparation
from tensorgraft.compiled.captured_objects import DirectCaptures, object_key
from tensorgraft.compiled.expanded import expanding
from tensorgraft.compiled.function import MOST_TRACES, Boxed, TracedFunction, flattening, one_at_a_time
from tensorgraft.compiled.outside_calls import muted
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.surroundings import OfAnother
from tensorgraft.compiled.uncompiled import (
    RunsUncompiled,
    Uncompiled,
    first_run,
    raised_by_the_function,
    warn_uncompiled,
    when_traced,
)
from tensorgraft.compiled.values import exact, is_plain, keys_of
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.devices import default
from tensorgraft.frontends.array_api.core.traced_numbers import Use, is_input
from tensorgraft.frontends.array_api.transforms.jit_calls import ArrayTrace
from tensorgraft.frontends.array_api.transforms.jit_tracing import ArrayTracing, ObjectPart, is_array, is_whole
from tensorgraft.hub import settings
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import NotStraight
from tensorgraft.storage import Storage


class RaisedAfterEffects(Exception):
    """Raised where a function raises an exception after it has written or changed something, which has to stay."""


_ATOMS = frozenset({Array, int, float, complex, bool, str})
_NUMBERS = (float, complex)  # any of which is an input
_cell_of = operator.attrgetter("_cell")


class Jitted(TracedFunction):
    """A function of `Array`s (and pytrees of them), compiled once for each structure, shapes and Python values.

    Numbers among the arguments are inputs of the program unless the function looks at their value.
    """

    _flatten = staticmethod(flattening(_ATOMS, expanding(optree.tree_flatten, _ATOMS, is_whole, is_array, ObjectPart)))

    def __init__(
        self, fn: Callable[..., Any], check: Check = "never", compile: When = "recurring", at: At = SWITCH
    ) -> None:
        super().__init__(fn)
        self.check, self._at = check, at
        self._is_background = compile == "background"
        self._calls: Counter[Any] = Counter()  # {signature without a trace: number of calls}

    @staticmethod
    def _is_inside() -> bool:
        return tracing.now.capture is not None

    @staticmethod
    def _add_keys(keys: list[Any], leaves: Sequence[Any]) -> None:
        """Add settings; shapes, dtypes and geometries of arrays, and which of them share memory; arguments that are
        neither arrays nor numbers."""
        add = keys.append
        add(settings.current())
        backend: Backend | None = None
        cells: list[int] = []
        for x in leaves:
            if x.__class__ is Array:
                cell = x._cell
                if cell.backend is not backend:
                    add(backend := cell.backend)
                    signature_of = backend.signature
                add(x._geometry)
                add(signature_of(cell.array))
                add(cell.placement)
                cells.append(id(cell))
            elif x.__class__ in _NUMBERS:
                add(x.__class__)
            else:
                add(_mark(x))
        if backend is None:
            keys.append(default().backend)
        elif len(set(cells)) < len(cells):
            keys.append(tuple(map(cells.index, cells)))

    def _write_keys(self, code: StraightCall, leaves: Sequence[Any]) -> None:
        code.require(f"{code.name(tracing.now)}.capture is None")
        settings.write(code)
        cells: dict[str, Storage] = {}
        for k, (x, variable) in enumerate(zip(leaves, code.leaves, strict=True)):
            if x.__class__ is Array:
                cells[_write_array(code, k, x)] = x._cell
            elif x.__class__ in _NUMBERS:
                code.require(f"{variable}.__class__ is {x.__class__.__name__}")
            else:
                code.require_scalar(variable, x)
        code.require_apart(cells)
        if not cells:
            code.require(f"{code.name(default)}().backend is {code.name(default().backend)}")

    def _write_trace(self, code: StraightCall, trace: Any) -> None:
        if trace.__class__ is not ArrayTrace:
            raise NotStraight
        trace.write(code, self.report)

    def _first_call(
        self, fast_key: Any, leaves: list[Any], structure: Any, objects: list[Any], args: Any, kwargs: Any
    ) -> Any:
        xp = self._backend(leaves, objects)
        if not xp.traces:
            return self.fn(*args, **kwargs)
        key = self._key(fast_key, objects, xp)
        known = self.traces.setdefault(key, [])
        self._remember(fast_key, objects, known)
        for trace in known:
            if trace.guards.hold(leaves):
                return trace(leaves)
        known[:] = [t for t in known if t.guards.are_there()]
        if self.programs >= MOST_TRACES and any(trace.changes for traces in self.traces.values() for trace in traces):
            return self._uncompiled(known, leaves, "reads what it changes itself: every call would be another program")
        if self._is_background and self._is_cold(key, known, leaves):
            self.report.cold += 1
            return self.fn(*args, **kwargs)
        if self.programs >= MOST_TRACES:
            raise RuntimeError(
                f"tg.jit has traced {self.report.name} {MOST_TRACES} times: its shapes or Python arguments change"
                " from call to call. Pass values that change as arrays, and keep shapes the same (by padding)."
            )
        failed = None
        with one_at_a_time:
            trace = entry = next((t for t in known if t.guards.hold(leaves)), None)
            if trace is None:  # nor has another thread made one
                try:
                    with muted() if self._is_background else contextlib.nullcontext():
                        trace = self._traced(xp, leaves, structure, objects)
                except RunsUncompiled as why:
                    return self._uncompiled(known, leaves, str(why))
                except RaisedAfterEffects as why:
                    failed = str(why)
                else:
                    entry = self._checked(trace, known, xp, structure, objects)
                    if self._is_background:
                        trace = entry = self._begun(trace, entry, known, leaves)
                    known.append(entry)
                    self.report.traces += 1
        if failed is not None:  # out of the handler: the error has no other one as its context
            out = self.fn(*args, **kwargs)  # raises the error, and effects before it stay
            warn_uncompiled(self.report.name, failed)
            known.append(Uncompiled(self.fn, self.report))
            return out
        if self._is_background:
            return trace(leaves)
        return first_run(trace, entry, known, leaves, self._uncompiled)

    def _is_cold(self, key: Any, known: list[Any], leaves: list[Any]) -> bool:
        """Count a call that there is no trace for, and say whether it is the first of its signature."""
        numbers = known[-1].guards.numbers if known else ()  # numbers whose values the function reads
        signature = (key, len(known), *(exact(leaves[i]) for i in numbers))
        self._calls[signature] += 1
        return self._calls[signature] < TRACED or self.programs >= MOST_TRACES

    def _begun(self, trace: ArrayTrace, checked: Any, known: list[Any], leaves: list[Any]) -> BackgroundTrace:
        """Return a trace whose program is compiled by another thread; until then its calls run the function itself."""
        trace.is_undone = True
        prepare = preparation(trace.run, trace.inputs, leaves)

        def run(args: Any, kwargs: Any) -> Any:
            return self.fn(*args, **kwargs)

        return BackgroundTrace(checked, known, prepare, self._at, self.report, run, self._uncompiled)

    def _checked(self, trace: ArrayTrace, known: list[Any], xp: Backend, structure: Any, objects: list[Any]) -> Any:
        if trace.record is None:
            return trace

        def check(leaves: Sequence[Any]) -> str | None:
            with one_at_a_time, muted():
                second_trace = self._traced(xp, leaves, structure, objects)  # type: ignore[arg-type]
            assert trace.record is not None and second_trace.record is not None
            return trace.record.difference(second_trace.record)

        return CheckedTrace(trace, known, check, self.check == "always", self._uncompiled)

    def _uncompiled(self, known: list[Any], leaves: list[Any], reason: str) -> Any:
        """Call a function that cannot be compiled, and warn of it once."""
        warn_uncompiled(self.report.name, reason)
        known.append(trace := Uncompiled(self.fn, self.report))
        return trace(leaves)

    def _traced(self, xp: Backend, leaves: list[Any], structure: Any, objects: list[Any]) -> ArrayTrace:
        uses: dict[int, Use] = {}
        try:
            return self._trace(xp, leaves, structure, objects, uses)
        except RunsUncompiled:
            raise
        except Exception:
            if all(use.looked_at for use in uses.values()):
                raise
        # perhaps of something that takes Python's own numbers only: it is given those
        return self._trace(xp, leaves, structure, objects, None)

    def _backend(self, leaves: Sequence[Any], objects: Sequence[Any]) -> Backend:
        backends = [x._cells()[0].backend for x in (*leaves, *objects) if isinstance(x, Array)]
        if any(xp is not backends[0] for xp in backends[1:]):
            devices = ", ".join(dict.fromkeys(str(x.device) for x in (*leaves, *objects) if isinstance(x, Array)))
            raise ValueError(
                f"tg.jit of {self.report.name}: a program runs on one device, but its arrays are on {devices}: move"
                " them with to_device, outside of the function"
            )
        return backends[0] if backends else default().backend

    def _trace(
        self, xp: Backend, leaves: list[Any], structure: Any, objects: list[Any], uses: dict[int, Use] | None
    ) -> ArrayTrace:
        run = functools.partial(ArrayTracing, self.fn, xp, leaves, structure, objects)
        first = run(uses)
        try:
            trace = first.trace(self.check != "never")
        except Exception as error:
            if first.leaves_effects and raised_by_the_function(error):
                raise RaisedAfterEffects(when_traced(error)) from error
            raise
        if not first.may_take_copies:
            return trace
        with muted():
            second = run(None if uses is None else {}, copies_arrays=True)
            other = second.trace(self.check != "never")
        return trace if second.has_confused else other


def _write_array(code: StraightCall, k: int, x: Array) -> str:
    """Write the condition that leaf number `k` is an array with the properties of `x`. Returns the variable of its
    storage."""
    variable, cell, geometry = code.leaves[k], x._cell, x._geometry
    code.require(f"{variable}.__class__ is {code.name(Array)}")
    storage = code.let(f"{variable}._cell")
    if geometry is None:
        code.require(f"{variable}._geometry is None")
    else:
        now, expected = code.let(f"{variable}._geometry"), code.name(geometry)
        code.require(f"{now} is {expected} or {now} == {expected}")
    code.require(f"{storage}.backend is {code.name(cell.backend)}")
    code.require_same(f"{storage}.placement", cell.placement)
    signature_of = cell.backend.signature
    look = f"{code.name(signature_of)}({{array}}) == {code.name(signature_of(cell.array))}"
    code.add_array(k, storage, look, cell.placement is not None)
    return storage


def _mark(x: Any) -> Any:
    """Return the key of an argument that is no array: a trace serves only calls in which it is the same."""
    if x.__class__ is Boxed:
        return Boxed
    if x.__class__ is ObjectPart:
        return exact(x.of) if is_plain(x.of) else _mark(x.of)
    if is_input(x):
        return type(x)
    if is_plain(x):
        return exact(x)
    if framework_of(x) == "torch":
        raise OfAnother("an argument is a torch.Tensor, but the function computes with arrays of tensorgraft.array_api")
    try:
        hash(x)
    except TypeError:
        raise TypeError(
            f"an argument of a compiled function is a {type(x).__qualname__}, which is neither an array nor hashable:"
            " pass arrays, numbers, strings, or containers of them"
        ) from None
    return (x, *keys_of(DirectCaptures(x).current())) if isinstance(x, types.FunctionType) else object_key(x)
