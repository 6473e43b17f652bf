"""`tg.jit` of functions of `Array`s: one program of their backend, with what it writes."""

from __future__ import annotations

import gc
import math
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.agreement import Check, CheckedTrace, Record
from tensorgraft.compiled.captured_objects import Reached, object_key
from tensorgraft.compiled.function import (
    MOST_TRACES,
    TracedFunction,
    call_of,
    flattening,
    one_at_a_time,
    unflatten_call,
)
from tensorgraft.compiled.objects import Template, noting_new
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.program import NumberInput, ProgramInputs, Source, Storages
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import OfAnother, Surroundings
from tensorgraft.compiled.uncompiled import RunsUncompiled, Uncompiled, warn_uncompiled
from tensorgraft.compiled.values import exact, is_plain, keys_of
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import stacked
from tensorgraft.frontends.array_api.core.devices import default, device_of
from tensorgraft.frontends.array_api.core.traced_numbers import DTYPES, Number, Use, is_input, stand_for
from tensorgraft.frontends.array_api.transforms.jit_calls import ArrayGuards, ArrayResult, ArrayTrace
from tensorgraft.hub import settings
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

_NUMBERS = (float, complex)  # any of which is an input
_cell_of = operator.attrgetter("_cell")


class Jitted(TracedFunction):
    """A function of `Array`s (and pytrees of them), compiled once for each structure, shapes and Python values.

    Numbers among the arguments are inputs of the program unless the function looks at their value.
    """

    _flatten = staticmethod(flattening({Array, int, float, complex, bool, str}, optree.tree_flatten))

    def __init__(self, fn: Callable[..., Any], check: Check = "never") -> None:
        super().__init__(fn)
        self.check = check

    @staticmethod
    def _is_inside() -> bool:
        return tracing.now.capture is not None

    @staticmethod
    def _add_keys(keys: list[Any], leaves: Sequence[Any]) -> None:
        """Settings; of arrays shapes, dtypes, views and which share memory; what is neither array nor number."""
        add = keys.append
        add(settings.now())
        backend: Backend | None = None
        cells: list[int] = []
        for x in leaves:
            if x.__class__ is Array:
                cell = x._cell
                if cell.backend is not backend:
                    add(backend := cell.backend)
                    told = backend.signature
                add(x._geometry)
                add(told(cell.array))
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

    def _first_call(
        self, quick: Any, leaves: list[Any], structure: Any, objects: list[Any], args: Any, kwargs: Any
    ) -> Any:
        xp = self._backend(leaves, objects)
        if not xp.traces:
            return self.fn(*args, **kwargs)
        known = self.traces.setdefault(self._key(quick, objects, xp), [])
        self._remember(quick, objects, known)
        for trace in known:
            if trace.guards.hold(leaves):
                return trace(leaves)
        known[:] = [t for t in known if t.guards.are_there()]
        if self.programs >= MOST_TRACES and any(trace.changes for traces in self.traces.values() for trace in traces):
            return self._uncompiled(known, leaves, "reads what it changes itself: every call would be another program")
        if self.programs >= MOST_TRACES:
            raise RuntimeError(
                f"tg.jit has traced {self.report.name} {MOST_TRACES} times: its shapes or Python arguments change with"
                " every call. Pass what changes as arrays, and keep shapes the same (pad them)."
            )
        with one_at_a_time:
            trace = next((t for t in known if t.guards.hold(leaves)), None)
            if trace is None:  # nor has another thread made one
                try:
                    trace = self._traced(xp, leaves, structure, objects)
                except RunsUncompiled as why:
                    return self._uncompiled(known, leaves, str(why))
                known.append(trace if self.check == "never" else self._checked(trace, known, xp, structure, objects))
                self.report.traces += 1
        try:
            return trace(leaves)
        except Exception:
            if not trace.changes:
                raise
        known.pop()
        return self._uncompiled(known, leaves, "keeps something of the body of a loop or branch outside of it")

    def _checked(self, trace: ArrayTrace, known: list[Any], xp: Backend, structure: Any, objects: list[Any]) -> Any:
        def check(leaves: Sequence[Any]) -> str | None:
            with one_at_a_time:
                again = self._traced(xp, leaves, structure, objects)  # type: ignore[arg-type]
            assert trace.record is not None and again.record is not None
            return trace.record.difference(again.record)

        return CheckedTrace(trace, known, check, self.check == "always", self._uncompiled)

    def _uncompiled(self, known: list[Any], leaves: list[Any], why: str) -> Any:
        """A call of a function that cannot be one program, which is said once."""
        warn_uncompiled(self.report.name, why)
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
            places = ", ".join(dict.fromkeys(str(x.device) for x in (*leaves, *objects) if isinstance(x, Array)))
            raise ValueError(
                f"tg.jit of {self.report.name}: one program is for one device, but its arrays are on {places}:"
                " move them with to_device, outside of the function"
            )
        return backends[0] if backends else default().backend

    def _trace(
        self, xp: Backend, leaves: list[Any], structure: Any, objects: list[Any], uses: dict[int, Use] | None
    ) -> ArrayTrace:
        """`uses` is filled with what was done with each number; None: all of them are constants."""
        argument = {id(x._cell): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        identical = {id(x): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        seen: dict[str, Any] = {}
        surroundings = Surroundings("tensorgraft", xp)
        surroundings.add(type(self.fn).__name__, self.fn)
        for leaf in leaves:
            if not (isinstance(leaf, Array) or is_plain(leaf)):
                surroundings.add("an argument", leaf)
        numbers: dict[int, NumberInput] = {}
        alive: list[tuple[Use, weakref.ref[Any]]] = []

        def source(cell: Storage) -> Source:
            i = argument.get(id(cell))
            return Source(cell if i is None else None, i)

        def traced() -> list[Any]:
            with tracing.capturing(xp, xp, True, "jit", self.fn) as capture, noting_new() as is_new:
                capture.arguments = set(argument)
                capture.inputs = {id(x._cell) for x in (*leaves, *objects) if isinstance(x, Array)}
                inside: Any = list(leaves)
                for i, value in enumerate(leaves):
                    if uses is not None and is_input(value):
                        uses[i] = Use(value, xp, capture)
                        inside[i] = stand_for(uses[i])
                        alive.append((uses[i], weakref.ref(inside[i])))
                args: Any
                kwargs: Any
                out: Any
                # containers are the call's own, but where something stands for a number in them
                args, kwargs = unflatten_call(structure, inside) if uses else call_of(leaves)
                seen["world"] = world = Reachable([("", self.fn)], (args, kwargs))
                if world.once is not None:
                    raise RunsUncompiled(f"reads {world.once}, which may be something else each time")
                surroundings.watch(world)
                world.is_new = is_new
                seen["said"] = said = OutsideCalls()
                with said.watched(world.outside):
                    made = self.fn(*args, **kwargs)
                said.settled()
                args = kwargs = inside = None
                seen["changes"] = changes = world.changes()
                if world.drew():
                    raise RunsUncompiled("draws random numbers of Python or NumPy")
                out, seen["structure"] = optree.tree_flatten(made)

                def is_old(x: Any) -> bool:
                    return isinstance(x, Number) or id(x) in world.seen or not world.is_new(x)

                seen["template"] = None
                if changes or any(not (isinstance(x, Array | Number) or is_plain(x) or is_old(x)) for x in out):
                    both = made, [change.new for change in changes]
                    seen["template"] = template = Template(both, _is_array, is_old)
                    out = list(template.arrays)
                del made
                own = {id(use): i for i, use in (uses or {}).items()}
                for i, use in (uses or {}).items():
                    if use.cell is not None:
                        numbers[id(use.cell)] = NumberInput(i, DTYPES[type(use.value)])
                for x in out:  # a view of what was not read
                    if isinstance(x, Array) and id(x) not in identical:
                        capture.take(x._cell)
                lent = {id(cell): (cell, one) for one in capture.lent if (cell := one.cell()) is not None}
                new: list[Any] = []
                results: list[ArrayResult] = []
                for x in out:
                    if isinstance(x, Number):  # the call's own number is given back
                        results.append(ArrayResult(argument=own[id(x._use)]))
                    elif not isinstance(x, Array):
                        results.append(ArrayResult(value=x))
                    elif not capture.holds(x._cell):
                        raise ValueError(
                            f"a compiled function on {device_of(xp)} returns an array of a transform on {x.device}"
                        )
                    elif id(x) in identical:
                        results.append(ArrayResult(argument=identical[id(x)]))
                    elif id(x._cell) in lent and x._cell not in capture.born:
                        results.append(ArrayResult(source=source(x._cell), geometry=x._geometry))
                    else:
                        results.append(ArrayResult(new=_number(new, x._cell), geometry=x._geometry))
                x = out = None
                for cell in new:  # what the function itself made of host values: a new one for each call
                    lent.pop(id(cell), None)
                seen["sources"] = {id(one.inside): source(cell) for cell, one in lent.values()}
                seen["constants"] = {id(one.inside): one.array for one in capture.lent}
                for one in capture.lent:
                    if (number := numbers.get(id(one.cell()))) is not None:
                        seen["sources"][id(one.inside)] = number
                written = [(cell, one) for cell, one in lent.values() if cell.array is not one.inside]
                seen["written"] = [(one.inside, source(cell)) for cell, one in written]
                seen["outside"] = [weakref.ref(cell) for cell, _ in lent.values()
                                   if id(cell) not in argument and id(cell) not in numbers]  # fmt: skip
                seen["results"] = results
                seen["devices"] = [None if c.backend is xp else device_of(c.backend) for c in new]
                seen["checks"] = [message for _, message in capture.checks]
                return [cell.array for cell, _ in written] + [c.array for c in new] + stacked(xp, capture.checks)

        try:
            with policy.noted() as notes:
                program = xp.trace(traced)
        except Exception as error:
            surroundings.undo()
            if not seen.get("changes"):
                raise
            raise RunsUncompiled("keeps something of the body of a loop or branch outside of it") from error
        finally:
            if "world" in seen:
                seen["world"].undo()
        world: Reachable = seen["world"]
        _settle(alive)
        surroundings.settle(world, seen["changes"], lambda value: None, [fn for _, _, fn in world.methods])
        looked_at = [i for i, x in enumerate(leaves) if is_input(x) and (uses is None or uses[i].looked_at)]
        positions = {id(a): k for k, a in enumerate(program.captured)}
        # a check that fails leaves everything as it was
        donated = [] if seen["checks"] else [positions[id(a)] for a, _ in seen["written"] if id(a) in positions]
        known = {**seen["constants"], **seen["sources"]}
        sources = [known.get(id(a), a) for a in program.captured]
        record = None
        if self.check != "never":
            rest = [f"result {k}: {x.new, x.argument, x.geometry}" for k, x in enumerate(seen["results"])]
            rest += [
                f"{c.table.name}: {c.keys} {[v for v in c.new if is_plain(v)]}" for c in seen["changes"] if not c.counts
            ]
            record = Record(xp, program, [a for a in program.captured if id(a) not in known], rest)
        return ArrayTrace(
            record=record,
            backend=xp,
            run=policy.counting(program.compile(donated), notes),
            inputs=ProgramInputs(sources, [] if xp.mutable else donated, xp, _cell_of),
            written=Storages([where for _, where in seen["written"]], _cell_of),
            results=seen["results"],
            devices=seen["devices"],
            structure=seen["structure"],
            guards=ArrayGuards(
                {i: exact(leaves[i]) for i in looked_at},
                {i: use.bounds for i, use in (uses or {}).items() if use.bounds != (-math.inf, math.inf)},
                seen["outside"],
                surroundings if surroundings else None,
            ),
            checks=seen["checks"],
            held=objects,
            template=seen["template"],
            finds=[] if seen["template"] is None else [world.finds.get(id(x)) for x in seen["template"].old],
            changes=seen["changes"],
            said=seen["said"],
        )


def _is_array(x: Any) -> bool:
    return isinstance(x, Array)


def _mark(x: Any) -> Any:
    """Return the key of an argument that is no array: a trace serves only calls in which it is the same."""
    if is_input(x):
        return type(x)
    if is_plain(x):
        return exact(x)
    if framework_of(x) == "torch":
        raise OfAnother("an argument is a torch.Tensor, in a function of Arrays of the Array API")
    try:
        hash(x)
    except TypeError:
        raise TypeError(
            f"an argument of a compiled function is a {type(x).__qualname__}, which is neither an array nor hashable:"
            " pass arrays, numbers, strings, or containers of them"
        ) from None
    return (x, *keys_of(Reached(x).now())) if isinstance(x, types.FunctionType) else object_key(x)


def _settle(alive: Sequence[tuple[Use, weakref.ref[Any]]]) -> None:
    """Settle the numbers after a trace: one that something still holds (an object that was returned, a global) has its
    value there, which is a look at it."""
    for use, _ in alive:
        use.capture = None
    if any(not use.looked_at and ref() is not None for use, ref in alive):
        gc.collect()
        for use, ref in alive:
            use.looked_at = use.looked_at or ref() is not None


def _number(new: list[Storage], cell: Storage) -> int:
    for k, known in enumerate(new):
        if known is cell:
            return k
    new.append(cell)
    return len(new) - 1
