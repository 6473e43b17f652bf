"""The base of `tg.jit` of every front end: a function that is traced once for each kind of call.

A call is looked up by the structure of its arguments, modes, the objects that the function captures directly, and the
metadata of its leaves; then the guards of the traces found are checked, one after the other.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.compiled.captured_objects import Call, DirectCaptures
from tensorgraft.compiled.objects import containers
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.values import keys_of
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import MISSED, NotStraight

Structure = Any  # hashable; of a call without containers its number of arguments
Flattened = tuple[list[Any], Structure]
MOST_TRACES = 32
# While a function is traced, storages that it reads hold stand-ins for their arrays, which another trace would take
# for something that was written. Held until they are as before.
one_at_a_time = threading.RLock()
_MOST_KEYS = 256
_ENDLESS = "takes a container that contains itself"


@dataclass
class Report:
    """Statistics of one function of `tg.jit`."""

    name: str
    traces: int = 0
    calls: int = 0
    cold: int = 0  # calls that ran as eager code: with signatures that had not come back, or were being compiled
    switched: list[int] = field(default_factory=list)  # the calls from which on signatures ran what a thread compiled
    trace_seconds: float = 0.0
    compile_seconds: float = 0.0  # of the first calls of traces, which compile
    operations: list[int] = field(default_factory=list)  # the number of operations of each traced program
    reasons: list[list[str]] = field(default_factory=list)  # for each trace, what was new


class Leaves(list[Any]):
    """The leaves of a call whose arguments have containers or objects around them, and these arguments."""

    def __init__(self, leaves: list[Any], call: Call) -> None:
        super().__init__(leaves)
        self.call = call


def call_of(leaves: Sequence[Any]) -> Call:
    """Return the arguments, (args, kwargs), of the call that has these leaves."""
    return leaves.call if isinstance(leaves, Leaves) else (tuple(leaves), {})


def flattening(atoms: Collection[type], flatten: Callable[[Any], Flattened]) -> Callable[[Any, Any], Flattened]:
    """Return a function that flattens the arguments of a call, fast if all are of the types `atoms` (no containers)."""

    def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flattened:
        if not kwargs:
            for a in args:
                if a.__class__ not in atoms:
                    break
            else:
                return list(args), len(args)
        leaves, structure = flatten((args, kwargs))
        return Leaves(leaves, (args, kwargs)), structure

    return flatten_call


class InContext(Exception):
    """Raised to look up and run a call in another context."""

    def __init__(self, context: AbstractContextManager[None]) -> None:
        self.context = context


class Boxed:
    """An object among the leaves of a call, whose parts are leaves as well."""

    def __init__(self, of: Any) -> None:
        self.of = of


def ids_of_objects(leaves: Sequence[Any]) -> list[int]:
    """Return the ids of the containers and of the boxed objects among the arguments of a call, which a function may
    change."""
    if not isinstance(leaves, Leaves):
        return []
    args, kwargs = leaves.call
    inner = [id(x) for x in containers((args, *kwargs.values())) if not isinstance(x, tuple)]
    return inner + [id(x.of) for x in leaves if x.__class__ is Boxed]


class Expanded:
    """The structure of a call that has boxed objects among its leaves: their contents follow the leaves."""

    def __init__(self, structure: Structure, count: int, objects: tuple[Any, ...]) -> None:
        self.structure, self.count, self.objects = structure, count, objects
        self._hash = hash((structure, objects))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expanded) and self.objects == other.objects and bool(self.structure == other.structure)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return str(self.structure)


def unflatten_call(structure: Structure, leaves: list[Any]) -> Call:
    if isinstance(structure, Expanded):
        leaves = [x.of if x.__class__ is Boxed else x for x in leaves[: structure.count]]
        structure = structure.structure
    if isinstance(structure, int):
        return tuple(leaves), {}
    args, kwargs = structure.unflatten(leaves)
    return args, kwargs


class KnownCalls:
    """Calls with one key: the objects that it knows by identity, and the traces that serve them."""

    __slots__ = ("hits", "lines", "objects", "traces")

    def __init__(self, objects: list[Any], traces: Sequence[Any]) -> None:
        self.objects, self.traces = objects, traces
        self.hits = 0  # calls that were looked up
        self.lines: list[tuple[Any, Callable[..., Any]]] = []  # pairs of a trace and its straight-line call

    def line(self, trace: Any) -> Callable[..., Any] | None:
        """Return the call in straight line that was written for a trace; None where it is to be written."""
        if self.hits in _WRITTEN_AGAIN:
            return None
        return next((line for known, line in self.lines if known is trace), None)

    def keep(self, trace: Any, line: Callable[..., Any]) -> None:
        others = [
            (known, of) for known, of in self.lines if known is not trace and any(known is t for t in self.traces)
        ]
        self.lines = [*others, (trace, line)]


def missed(args: Any, kwargs: Any) -> Any:
    """Tell that a call has to be looked up."""
    return MISSED


_WRITTEN_AGAIN = {32, 256}  # hits at which objects may have been replaced by equal ones


class TracedFunction:
    """A compiled function, which finds the trace for each call or makes one.

    A trace has `guards.hold(leaves)`, and is called as `(leaves) -> results`.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.report = Report(getattr(fn, "__qualname__", type(fn).__name__))
        self.traces: dict[Any, list[Any]] = {}
        # the same traces by a key that is made faster, with the objects that it knows by identity
        self._by_fast_key: dict[Any, KnownCalls] = {}
        self._last: tuple[Any, KnownCalls | None] = None, None  # most calls' key
        self.straight = missed  # the last call in straight line, tried first
        self._captures = DirectCaptures(fn)
        self._endless: list[Any] = []  # the function itself, for arguments that cannot be flattened

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self.straight(args, kwargs)
        return self.looked_up(args, kwargs) if out is MISSED else out

    def looked_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function where `straight` has missed."""
        self.report.calls += 1
        if self._is_inside():
            return self.fn(*args, **kwargs)
        try:
            leaves, structure = self._flatten(args, kwargs)
        except RecursionError:
            leaves = Leaves([], (args, kwargs))
            return self._endless[0](leaves) if self._endless else self._uncompiled(self._endless, leaves, _ENDLESS)
        objects = self._captures.current()
        fast_key = [structure, *map(id, objects)]
        try:
            self._add_keys(fast_key, leaves)
        except InContext as other:
            self.report.calls -= 1
            with other.context:
                return self.looked_up(args, kwargs)
        before, known = self._last
        if fast_key != before:  # a comparison takes half as long as a lookup
            known = self._by_fast_key.get(tuple(fast_key))
            if known is not None:
                self._last = fast_key, known
        if known is not None:
            for k, trace in enumerate(known.traces):
                if trace.guards.hold(leaves):
                    known.hits += 1
                    line = known.line(trace)
                    if line is None:
                        line = self._in_straight_line((args, kwargs), leaves, structure, objects, known.traces, k)
                        known.keep(trace, line)
                    self.straight = line
                    return trace(leaves)
        if self._captures.find_again():
            self.report.calls -= 1
            return self.looked_up(args, kwargs)
        return self._first_call(fast_key, leaves, structure, objects, args, kwargs)

    def _in_straight_line(
        self, call: Call, leaves: list[Any], structure: Structure, objects: list[Any], traces: Sequence[Any], k: int
    ) -> Callable[..., Any]:
        """Write code that serves this call by trace number `k`, and all calls with the same key that meet its
        guards."""
        try:
            parts = structure.objects if isinstance(structure, Expanded) else ()
            code = StraightCall(call, leaves, parts, self._sorts_keys)
            code.require(f"{code.name(traces)}[{k}] is {code.name(traces[k])}")
            self._write_keys(code, leaves)
            self._captures.write(code, objects)
            self._write_trace(code, traces[k])
            return code.written()
        except NotStraight:
            return missed

    # ---- the front end's own -----------------------------------------------------------------------------------------

    _flatten: Callable[[Any, Any], Flattened]  # (args, kwargs) -> (leaves, structure)
    _sorts_keys = True  # `_flatten` takes the entries of dictionaries in the order of their keys
    _add_keys: Callable[[list[Any], Sequence[Any]], None]  # modes and what leaves look like are added to keys

    @staticmethod
    def _is_inside() -> bool:
        """Return True inside another trace or a transform, which includes the function in its own trace."""
        raise NotImplementedError

    def _first_call(
        self, fast_key: Any, leaves: list[Any], structure: Any, objects: list[Any], args: Any, kwargs: Any
    ) -> Any:
        """Make a call for which there is no trace yet."""
        raise NotImplementedError

    def _uncompiled(self, known: list[Any], leaves: list[Any], reason: str) -> Any:
        """Call a function that cannot be compiled, and warn of it once. `known`: the entry of later calls."""
        raise NotImplementedError

    def _write_keys(self, code: StraightCall, leaves: Sequence[Any]) -> None:
        """Write the key of `_add_keys` as conditions."""
        raise NotStraight

    def _write_trace(self, code: StraightCall, trace: Any) -> None:
        """Write the guards of a trace, and its call."""
        raise NotStraight

    # ---- traces ------------------------------------------------------------------------------------------------------

    def _key(self, fast_key: Sequence[Any], objects: list[Any], backend: Backend) -> Any:
        """Return a key that is equal for all calls that one trace may serve: it has the values of plain Python
        values."""
        return backend, fast_key[0], keys_of(objects), *fast_key[1 + len(objects) :]

    def _remember(self, fast_key: Sequence[Any], objects: list[Any], known: Sequence[Any]) -> None:
        if len(self._by_fast_key) >= _MOST_KEYS:
            self._by_fast_key.clear()
        self._by_fast_key[tuple(fast_key)] = KnownCalls(objects, known)

    @property
    def programs(self) -> int:
        """The number of programs that were traced."""
        return sum(map(len, self.traces.values()))


# ---- kinds -----------------------------------------------------------------------------------------------------------

_compile: dict[type, Callable[[Any], Any]] = {}


def compiles_by(kind: type, compiled: Callable[[Any], Any]) -> None:
    """Functions of a kind that a front end has made are compiled by `compiled`."""
    _compile[kind] = compiled


def own_compiled(fn: Any) -> Any:
    """Compile a function of a kind that a front end has registered (`compiles_by`). Returns None for any other."""
    return next((compiled(fn) for kind, compiled in _compile.items() if isinstance(fn, kind)), None)
