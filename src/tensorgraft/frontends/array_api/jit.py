"""`tg.jit` of functions of `Array`s: one program of their backend, with what it writes."""

from __future__ import annotations

import functools
import gc
import math
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from tensorgraft.frontends.array_api import tracing
from tensorgraft.frontends.array_api.array import Array
from tensorgraft.frontends.array_api.checks import stacked, unless
from tensorgraft.frontends.array_api.devices import default
from tensorgraft.frontends.array_api.traced_numbers import DTYPES, Number, Use, is_input, stand_for
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage

_MOST_TRACES = 32
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Getter = Callable[[Sequence[Any]], Storage]


class NumberInput(NamedTuple):
    """A Python number among the arguments that is an input of the program."""

    at: int  # which leaf
    dtype: np.dtype


@dataclass
class Trace:
    """A traced program, and what it reads and writes."""

    run: Callable[..., tuple[Any, ...]]
    inputs: list[Getter | NumberInput | Any]  # storages by a getter, constants as they are
    written: list[Getter]
    donated: list[int]  # positions of inputs that are written
    # ("new", (number, geometry)), ("input", (getter, geometry)), ("argument", its leaf), ("value", a constant)
    results: list[tuple[str, Any]]
    structure: Any
    outside: list[weakref.ref[Storage]]  # storages that are no arguments
    guards: dict[int, Any]  # Python numbers of which the function looked at the value, by their leaf
    bounds: dict[int, tuple[float, float]]  # of those that it did not, where a dtype holds some only
    checks: list[str]  # the messages of `error_if`; their flags are the program's last result


class Jitted:
    """A function of `Array`s (and pytrees of them), compiled once for each structure, shapes and Python values.

    Numbers among the arguments are inputs of the program unless the function looks at their value.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.traces: dict[Any, list[Trace]] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.now.capture is not None:  # inside a transform, which has it with the rest
            return self.fn(*args, **kwargs)
        call: Any = (args, kwargs)
        leaves: list[Any]
        leaves, structure = optree.tree_flatten(call)
        xp = self._backend(leaves)
        if not xp.traces:
            return self.fn(*args, **kwargs)
        key = (structure, xp, *_reached_key(self.fn), *map(_leaf_key, leaves), _sharing(leaves))
        known = self.traces.setdefault(key, [])
        trace = _fitting(known, leaves)
        if trace is None:
            known[:] = [t for t in known if all(ref() is not None for ref in t.outside)]
            if sum(map(len, self.traces.values())) >= _MOST_TRACES:
                raise RuntimeError(
                    f"tg.jit has traced {self._name} {_MOST_TRACES} times: its shapes or Python arguments change with"
                    " every call. Pass what changes as arrays, and keep shapes the same (pad them)."
                )
            trace = self._traced(xp, leaves, structure)
            known.append(trace)
        return self._run(trace, xp, leaves)

    def _traced(self, xp: Backend, leaves: list[Any], structure: Any) -> Trace:
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

    def _backend(self, leaves: Sequence[Any]) -> Backend:
        found = [x._cells()[0].backend for x in (*leaves, *reached(self.fn)) if isinstance(x, Array)]
        if any(xp is not found[0] for xp in found[1:]):
            places = ", ".join(dict.fromkeys(str(x.device) for x in leaves if isinstance(x, Array)))
            raise ValueError(f"tg.jit of {self._name}: one program is for one device, but its arrays are on {places}")
        return found[0] if found else default().backend

    def _trace(self, xp: Backend, leaves: list[Any], structure: Any, uses: dict[int, Use] | None) -> Trace:
        """`uses` is filled with what was done with each number; None: all of them are constants."""
        argument = {id(x._cell): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        given = {id(x): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        seen: dict[str, Any] = {}

        numbers: dict[int, NumberInput] = {}
        alive: list[tuple[Use, weakref.ref[Any]]] = []

        def getter(cell: Storage) -> Getter | NumberInput:
            if id(cell) in numbers:
                return numbers[id(cell)]
            i = argument.get(id(cell))
            return (lambda given: cell) if i is None else (lambda given: given[i]._cell)

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
                results: list[tuple[str, Any]] = []
                for x in out:
                    if isinstance(x, Number):  # the call's own number is given back
                        results.append(("argument", own[id(x._use)]))
                        continue
                    if not isinstance(x, Array):
                        results.append(("value", x))
                        continue
                    if x._cell.backend is not xp:
                        raise ValueError(f"a compiled function on {default()} returns an array on {x.device}")
                    known = lent.get(id(x._cell))
                    if id(x) in given:
                        results.append(("argument", given[id(x)]))
                    elif known is not None:
                        results.append(("input", (getter(x._cell), x._geometry)))
                    else:
                        results.append(("new", (_number(new, x._cell), x._geometry)))
                x = out = None
                seen["sources"] = {id(one.inside): getter(cell) for cell, one in lent.values()}
                # what the function itself made of host values, and has given up
                seen["constants"] = {id(one.inside): one.array for one in capture.lent if one.cell() is None}
                written = [(cell, one) for cell, one in lent.values() if cell.array is not one.inside]
                seen["written"] = [(one.inside, getter(cell)) for cell, one in written]
                seen["outside"] = [weakref.ref(cell) for cell, _ in lent.values()
                                   if id(cell) not in argument and id(cell) not in numbers]  # fmt: skip
                seen["results"] = results
                seen["checks"] = [message for _, message in capture.checks]
                return [cell.array for cell, _ in written] + [c.array for c in new] + stacked(xp, capture.checks)

        program = xp.trace(traced)
        _settle(alive)
        given_numbers = {i: x for i, x in enumerate(leaves) if is_input(x)}
        looked_at = [i for i in given_numbers if uses is None or uses[i].looked_at]
        positions = {id(a): k for k, a in enumerate(program.captured)}
        # a check that fails leaves everything as it was
        donated = [] if seen["checks"] else [positions[id(a)] for a, _ in seen["written"] if id(a) in positions]
        return Trace(
            run=program.compile(donated),
            inputs=[seen["sources"].get(id(a)) or seen["constants"].get(id(a), a) for a in program.captured],
            written=[get for _, get in seen["written"]],
            donated=donated,
            results=seen["results"],
            structure=seen["structure"],
            outside=seen["outside"],
            guards={i: _exact(leaves[i]) for i in looked_at},
            bounds={i: use.bounds for i, use in (uses or {}).items() if use.bounds != (-math.inf, math.inf)},
            checks=seen["checks"],
        )

    def _run(self, trace: Trace, xp: Backend, leaves: list[Any]) -> Any:
        arrays: list[Any] = []
        for k, source in enumerate(trace.inputs):
            if isinstance(source, NumberInput):
                arrays.append(np.asarray(leaves[source.at], source.dtype))
                continue
            if not callable(source) or xp.is_array(source):
                arrays.append(source)
                continue
            cell = source(leaves)
            array = cell.array
            if k in trace.donated and not xp.mutable and cell.shared:  # somebody else holds the array
                with xp.scope():
                    array = xp.copy(array)
            arrays.append(array)
            del array
        made = _made(trace, arrays, leaves)
        del arrays
        with xp.scope():
            if trace.checks:
                unless(xp.to_numpy(made[-1]), trace.checks)
                made = made[:-1]
            for get, value in zip(trace.written, made, strict=False):
                cell = get(leaves)
                if xp.mutable:
                    xp.assign(cell.array, value)
                else:
                    cell.array, cell.shared = value, False
            cells = [Storage(xp.own(a) if xp.mutable else a, xp) for a in made[len(trace.written) :]]
        out = []
        for kind, what in trace.results:
            if kind == "value":
                out.append(what)
            elif kind == "argument":
                out.append(leaves[what])
            else:
                source, geometry = what
                out.append(Array(cells[source] if kind == "new" else source(leaves), geometry))
        return optree.tree_unflatten(trace.structure, out)


def _made(trace: Trace, arrays: list[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What the program gives. Storages let go of arrays whose memory it takes only then."""
    given = {k: trace.inputs[k](leaves) for k in getattr(trace.run, "takes", ())}
    own = {k: cell for k, cell in given.items() if cell.array is arrays[k]}
    if not own:
        return trace.run(*arrays)
    for cell in own.values():
        cell.array = None
    try:
        return trace.run.take(arrays)  # type: ignore[attr-defined]
    except BaseException:
        for k, cell in own.items():
            cell.array = arrays[k]
        raise


def _fitting(known: Sequence[Trace], leaves: Sequence[Any]) -> Trace | None:
    """The trace that is right for the numbers among the arguments."""
    for trace in known:
        if (
            all(_exact(leaves[i]) == value for i, value in trace.guards.items())
            and all(low <= leaves[i] <= high for i, (low, high) in trace.bounds.items())
            and all(ref() is not None for ref in trace.outside)
        ):
            return trace
    return None


def _exact(x: Any) -> Any:
    """Equal for the same number only: zeros have signs, and NaN is itself."""
    if type(x) is complex:
        return x.real.hex(), x.imag.hex()
    return x.hex() if type(x) is float else x


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


def reached(fn: Callable[..., Any]) -> list[Any]:
    """What a function reaches by its closure, its globals and the object it is a method of."""
    found: list[Any] = []
    if isinstance(fn, types.MethodType):
        found.append(fn.__self__)
        fn = fn.__func__
    if isinstance(fn, functools.partial):
        return [*reached(fn.func), *fn.args, *fn.keywords.values()]
    code = getattr(fn, "__code__", None)
    if code is None:
        return found
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that is not bound yet
            continue
    return found + [fn.__globals__[name] for name in code.co_names if name in fn.__globals__]


def _reached_key(fn: Callable[..., Any]) -> list[Any]:
    return [(type(v), v) if isinstance(v, _PLAIN) else _Identity(v) for v in reached(fn)]


class _Identity:
    """An object of a key, by what it is and not by what it is equal to; held, so that no other has its place."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _leaf_key(x: Any) -> Any:
    if is_input(x):
        return type(x)
    if isinstance(x, Array):
        xp = x._cell.backend
        geometry: Geometry | None = x._geometry
        return geometry, xp.shape(x._cell.array), xp.dtype_of(x._cell.array)
    try:
        hash(x)
    except TypeError:
        raise TypeError(
            f"an argument of a compiled function is a {type(x).__qualname__}, which is neither an array nor hashable:"
            " pass arrays, numbers, strings, or containers of them"
        ) from None
    return (x, *_reached_key(x)) if isinstance(x, types.FunctionType) else (type(x), x)


def _sharing(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments share a storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x._cell), k) for k, x in enumerate(leaves) if isinstance(x, Array))
