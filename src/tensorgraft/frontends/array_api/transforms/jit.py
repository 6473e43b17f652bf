"""`tg.jit` of functions of `Array`s: one program of their backend, with what it writes."""

from __future__ import annotations

import functools
import gc
import math
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tensorgraft.compiled.reach import roots
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import stacked
from tensorgraft.frontends.array_api.core.devices import default
from tensorgraft.frontends.array_api.core.traced_numbers import DTYPES, Number, Use, is_input, stand_for
from tensorgraft.frontends.array_api.transforms.jit_calls import (
    ArgumentStorage,
    ArrayTrace,
    Constant,
    Given,
    New,
    NumberInput,
    OutsideStorage,
    Place,
    Result,
    Value,
    View,
    exact,
)
from tensorgraft.frontends.array_api.transforms.jit_keys import CallKey, reached
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

_MOST_TRACES = 32
_RECENT = 4


class Jitted:
    """A function of `Array`s (and pytrees of them), compiled once for each structure, shapes and Python values.

    Numbers among the arguments are inputs of the program unless the function looks at their value.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.traces: dict[Any, list[ArrayTrace]] = {}
        self._recent: list[tuple[CallKey, Backend, list[ArrayTrace]]] = []  # of the traces, those of the last calls

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.now.capture is not None:  # inside a transform, which has it with the rest
            return self.fn(*args, **kwargs)
        given: Any = (args, kwargs)
        leaves: list[Any]
        leaves, structure = optree.tree_flatten(given)
        call = CallKey(leaves, structure, reached(self.fn))
        found = None
        for recent in self._recent:
            if recent[0].is_as(call):
                found = recent
                break
        if found is None:
            found = self._found(call, leaves)
        _, xp, known = found
        if not xp.traces:
            return self.fn(*args, **kwargs)
        for trace in known:
            if trace.fits(leaves):
                return trace(xp, leaves)
        trace = self._traced_anew(xp, leaves, structure, known)
        return trace(xp, leaves)

    def _found(self, call: CallKey, leaves: list[Any]) -> tuple[CallKey, Backend, list[ArrayTrace]]:
        xp = self._backend(leaves, call)
        found = call, xp, self.traces.setdefault(call.key(xp), []) if xp.traces else []
        if call.backend is not None:  # else the default device's, which may be another next time
            self._recent = [found, *self._recent[: _RECENT - 1]]
        return found

    def _traced_anew(self, xp: Backend, leaves: list[Any], structure: Any, known: list[ArrayTrace]) -> ArrayTrace:
        known[:] = [t for t in known if all(ref() is not None for ref in t.outside)]
        if sum(map(len, self.traces.values())) >= _MOST_TRACES:
            raise RuntimeError(
                f"tg.jit has traced {self._name} {_MOST_TRACES} times: its shapes or Python arguments change with"
                " every call. Pass what changes as arrays, and keep shapes the same (pad them)."
            )
        trace = self._traced(xp, leaves, structure)
        known.append(trace)
        return trace

    def _traced(self, xp: Backend, leaves: list[Any], structure: Any) -> ArrayTrace:
        uses: dict[int, Use] = {}
        try:
            return self._trace(xp, leaves, structure, uses)
        except Exception:
            if all(use.looked_at for use in uses.values()):
                raise
        # perhaps of something that takes Python's own numbers only: it is given those
        return self._trace(xp, leaves, structure, None)

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def _backend(self, leaves: Sequence[Any], call: CallKey) -> Backend:
        found = [x._cells()[0].backend for x in (*leaves, *call.surroundings) if isinstance(x, Array)]
        if any(xp is not found[0] for xp in found[1:]):
            places = ", ".join(dict.fromkeys(str(x.device) for x in leaves if isinstance(x, Array)))
            raise ValueError(f"tg.jit of {self._name}: one program is for one device, but its arrays are on {places}")
        return found[0] if found else default().backend

    def _trace(self, xp: Backend, leaves: list[Any], structure: Any, uses: dict[int, Use] | None) -> ArrayTrace:
        """`uses` is filled with what was done with each number; None: all of them are constants."""
        argument = {id(x._cell): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        given = {id(x): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        seen: dict[str, Any] = {}
        surroundings = Surroundings("tensorgraft", xp)
        for name, value in roots(self.fn):
            surroundings.add(name, value)

        numbers: dict[int, NumberInput] = {}
        alive: list[tuple[Use, weakref.ref[Any]]] = []

        def place(cell: Storage) -> Place:
            i = argument.get(id(cell))
            return OutsideStorage(cell) if i is None else ArgumentStorage(i)

        def traced() -> list[Any]:
            with tracing.capturing(xp, xp, True, "jit", self.fn) as capture:
                capture.arguments = set(argument)
                capture.inputs = {id(x._cell) for x in (*leaves, *reached(self.fn)) if isinstance(x, Array)}
                inside: Any = list(leaves)
                for i, value in enumerate(leaves):
                    if uses is not None and is_input(value):
                        uses[i] = Use(value, xp, capture)
                        inside[i] = stand_for(uses[i])
                        alive.append((uses[i], weakref.ref(inside[i])))
                args, kwargs = optree.tree_unflatten(structure, inside)
                out: Any
                out, seen["structure"] = optree.tree_flatten(self.fn(*args, **kwargs))
                args = kwargs = inside = None
                own = {id(use): i for i, use in (uses or {}).items()}
                for i, use in (uses or {}).items():
                    if use.cell is not None:
                        numbers[id(use.cell)] = NumberInput(i, DTYPES[type(use.value)])
                lent = {id(cell): (cell, one) for one in capture.lent if (cell := one.cell()) is not None}
                new: list[Any] = []
                results: list[Result] = []
                for x in out:
                    if isinstance(x, Number):  # the call's own number is given back
                        results.append(Given(own[id(x._use)]))
                        continue
                    if not isinstance(x, Array):
                        results.append(Value(x))
                        continue
                    if x._cell.backend is not xp:
                        raise ValueError(f"a compiled function on {default()} returns an array on {x.device}")
                    known = lent.get(id(x._cell))
                    if id(x) in given:
                        results.append(Given(given[id(x)]))
                    elif known is not None:
                        results.append(View(place(x._cell), x._geometry))
                    else:
                        results.append(New(_number(new, x._cell), x._geometry))
                x = out = None
                seen["sources"] = {id(one.inside): numbers.get(id(cell)) or place(cell) for cell, one in lent.values()}
                # what the function itself made of host values, and has given up
                seen["constants"] = {id(one.inside): Constant(one.array) for one in capture.lent if one.cell() is None}
                written = [(cell, one) for cell, one in lent.values() if cell.array is not one.inside]
                seen["written"] = [(one.inside, place(cell)) for cell, one in written]
                seen["outside"] = [weakref.ref(cell) for cell, _ in lent.values()
                                   if id(cell) not in argument and id(cell) not in numbers]  # fmt: skip
                seen["results"] = results
                seen["checks"] = [message for _, message in capture.checks]
                return [cell.array for cell, _ in written] + [c.array for c in new] + stacked(xp, capture.checks)

        with policy.noted() as notes:
            program = xp.trace(traced)
        _settle(alive)
        for _ in surroundings.settle():
            pass
        given_numbers = {i: x for i, x in enumerate(leaves) if is_input(x)}
        looked_at = [i for i in given_numbers if uses is None or uses[i].looked_at]
        positions = {id(a): k for k, a in enumerate(program.captured)}
        # a check that fails leaves everything as it was
        donated = [] if seen["checks"] else [positions[id(a)] for a, _ in seen["written"] if id(a) in positions]
        known = {**seen["constants"], **seen["sources"]}
        return ArrayTrace(
            run=policy.counting(program.compile(donated), notes),
            inputs=[known.get(id(a)) or Constant(a) for a in program.captured],
            written=[where for _, where in seen["written"]],
            donated=donated,
            results=seen["results"],
            structure=seen["structure"],
            outside=seen["outside"],
            guards={i: exact(leaves[i]) for i in looked_at},
            bounds={i: use.bounds for i, use in (uses or {}).items() if use.bounds != (-math.inf, math.inf)},
            checks=seen["checks"],
            surroundings=surroundings if surroundings else None,
        )


def _settle(alive: Sequence[tuple[Use, weakref.ref[Any]]]) -> None:
    """After a trace: a number that something still holds (an object that was returned, a global) has its value there,
    which is a look at it."""
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


__all__ = ["Jitted", "reached"]
