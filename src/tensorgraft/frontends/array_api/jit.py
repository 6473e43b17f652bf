"""`tg.jit` of functions of `Array`s: one program of their backend, with what it writes."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optree

from tensorgraft.frontends.array_api import tracing
from tensorgraft.frontends.array_api.array import Array
from tensorgraft.frontends.array_api.devices import default
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage

_MOST_TRACES = 32
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Getter = Callable[[Sequence[Any]], Storage]


@dataclass
class Trace:
    """A traced program, and what it reads and writes."""

    run: Callable[..., tuple[Any, ...]]
    inputs: list[Getter | Any]  # storages by a getter, constants as they are
    written: list[Getter]
    donated: list[int]  # positions of inputs that are written
    # ("new", (number, geometry)), ("input", (getter, geometry)), ("argument", its leaf), ("value", a constant)
    results: list[tuple[str, Any]]
    structure: Any
    outside: list[weakref.ref[Storage]]  # storages that are no arguments


class Jitted:
    """A function of `Array`s (and pytrees of them), compiled once for each structure, shapes and Python values."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.traces: dict[Any, Trace] = {}

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
        trace = self.traces.get(key)
        if trace is None or any(ref() is None for ref in trace.outside):
            if len(self.traces) >= _MOST_TRACES:
                raise RuntimeError(
                    f"tg.jit has traced {self._name} {_MOST_TRACES} times: its shapes or Python arguments change with"
                    " every call. Pass what changes as arrays, and keep shapes the same (pad them)."
                )
            trace = self.traces[key] = self._trace(xp, leaves, structure)
        return self._run(trace, xp, leaves)

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def _backend(self, leaves: Sequence[Any]) -> Backend:
        found = [x._cell.backend for x in (*leaves, *reached(self.fn)) if isinstance(x, Array)]
        if any(xp is not found[0] for xp in found[1:]):
            places = ", ".join(dict.fromkeys(str(x.device) for x in leaves if isinstance(x, Array)))
            raise ValueError(f"tg.jit of {self._name}: one program is for one device, but its arrays are on {places}")
        return found[0] if found else default().backend

    def _trace(self, xp: Backend, leaves: list[Any], structure: Any) -> Trace:
        argument = {id(x._cell): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        given = {id(x): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Array)}
        seen: dict[str, Any] = {}

        def getter(cell: Storage) -> Getter:
            i = argument.get(id(cell))
            return (lambda given: cell) if i is None else (lambda given: given[i]._cell)

        def traced() -> list[Any]:
            with tracing.capturing(xp, xp, reads=True) as capture:
                args, kwargs = optree.tree_unflatten(structure, leaves)
                out: Any
                out, seen["structure"] = optree.tree_flatten(self.fn(*args, **kwargs))
                lent = {id(cell): (cell, one) for one in capture.lent if (cell := one.cell()) is not None}
                new: list[Any] = []
                results: list[tuple[str, Any]] = []
                for x in out:
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
                written = [(cell, one) for cell, one in lent.values() if cell.array is not one.inside]
                seen["written"] = [(one.inside, getter(cell)) for cell, one in written]
                seen["outside"] = [weakref.ref(cell) for cell, _ in lent.values() if id(cell) not in argument]
                seen["results"] = results
                return [cell.array for cell, _ in written] + [c.array for c in new]

        program = xp.trace(traced)
        positions = {id(a): k for k, a in enumerate(program.captured)}
        donated = [positions[id(a)] for a, _ in seen["written"] if id(a) in positions]
        return Trace(
            run=program.compile(donated),
            inputs=[seen["sources"].get(id(a), a) for a in program.captured],
            written=[get for _, get in seen["written"]],
            donated=donated,
            results=seen["results"],
            structure=seen["structure"],
            outside=seen["outside"],
        )

    def _run(self, trace: Trace, xp: Backend, leaves: list[Any]) -> Any:
        arrays = []
        for k, source in enumerate(trace.inputs):
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
        made = trace.run(*arrays)
        del arrays
        with xp.scope():
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
    return type(x), x


def _sharing(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments share a storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x._cell), k) for k, x in enumerate(leaves) if isinstance(x, Array))
