"""The state of Python objects that a function of another framework reads and writes, where the function is traced once
for many calls.

State that the function reads is compared at each call, and a trace serves only calls with equal state. State that it
only writes (a counter, a list of numbers) is written at each call. A function that reads state which it changes, draws
random numbers, or reads something that differs at each call (a clock, an iterator) is traced at each call.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from operator import call, is_, itemgetter
from typing import Any

from tensorgraft.compiled.captured_objects import in_library
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.instructions import names_of, stored_attributes
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.outside_calls import NotedCalls
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import RunsUncompiled, warn_uncompiled
from tensorgraft.compiled.values import is_plain, is_same_value
from tensorgraft.errors import TracedValueError

MOST_STATES = 32  # for which the traces of one signature are kept


class PythonState:
    """Python's objects around one trace.

    Arguments:
        fn: the function that is traced.
        static: its arguments that are constants of the trace.
        own: the framework whose arrays the trace itself sees being read.
        whole: modules, all of whose attributes count.
        given: arrays of that framework that are arguments; what others hold is compared.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        static: Iterable[Any],
        own: str,
        whole: Sequence[Any] = (),
        given: Iterable[Any] = (),
    ) -> None:
        roots = [("", fn), *(("an argument", x) for x in static if not is_plain(x))]
        self._around, self._whole = _Around(own, given), {id(vars(x)): x for x in whole}
        for name, x in roots:
            self._around.add(name, x)
        self._modules = _ModuleTables(whole)
        inner = set(map(id, self._modules.inner))
        for x in whole:
            for key, value in vars(x).items():
                if id(value) not in inner:
                    self._around.add(f"{type(x).__name__}.{key}", value)
        for hook in chain.from_iterable(map(dict.values, self._modules.inner)):
            self._around.add("a hook", hook)
        for kind in {type(x): None for x in whole}:
            self._around.look_up(kind.__name__, Lookups(attributes=[(kind, "forward")]))
        self._world: Reachable | None = (world := Reachable(roots))
        names = frozenset(chain.from_iterable(map(names_of, world.codes)))
        for owner in world.owners:
            world.packages.meet_object(owner, names)
        self._around.watch(world)
        self._noted = NotedCalls()
        self._changes: list[Change] = []

    def watched(self) -> AbstractContextManager[None]:
        """Context in which the function runs."""
        assert self._world is not None
        return self._noted.watched(self._world.outside, attributes=self._world.asked)

    def settle(self) -> str | None:
        """Collect the state that the trace has read. Return why it cannot serve later calls, as text that follows the
        function's name, or None if it can."""
        world = self._world
        assert world is not None
        why = self._noted.refused
        if why is None and world.once is not None:
            why = f"reads {world.once}, which may differ at each call"
        if why is None and world.drew():
            why = "draws random numbers of Python or NumPy"
        changes = [] if why is not None else [change for change in world.changes() if not self._is_library(change)]
        if why is None and not all(map(is_plain, chain.from_iterable(change.new for change in changes))):
            why = f"changes {_name(changes[0])}"
        if why is None and (reads := next((c for c in changes if not world.only_written(c)), None)) is not None:
            why = f"reads and changes {_name(reads)}"
        if why is None and (written := self._around.written()) is not None:
            why = f"writes {written}"
        if why is None:
            world.undo()
            self._around.ask(self._noted.asked)
            self._around.settle(world, changes, lambda value: None, [fn for _, _, fn in world.methods])
            self._changes = changes
            self._world = None
            self.repeat()
        return why

    def _is_library(self, change: Change) -> bool:
        """Return True if a library has changed its own data in a module."""
        owner = self._whole.get(id(change.table.of))
        return owner is not None and _own_of_library(owner.__class__).issuperset([*change.keys, *change.dropped])

    def repeat(self) -> None:
        """Apply the function's changes at a call for which it is not traced."""
        if _now.is_traced:
            return
        for change in self._changes:
            change.apply(change.table.of, change.new)

    def undo(self) -> None:
        """Restore the state before the trace, which is discarded. `repeat` applies its changes again, if the error is
        the function's own."""
        if self._world is not None:
            with contextlib.suppress(RunsUncompiled):
                self._changes = [change for change in self._world.changes() if all(map(is_plain, change.new))]
            self._around.undo()
            self._world.undo()

    @property
    def repeats(self) -> bool:
        """Return whether each call changes something outside."""
        return bool(self._changes)

    def hold(self) -> bool:
        return self._world is None and self._around.hold() and self._modules.hold()

    def failure(self) -> str | None:
        """Return a description of a change since the trace, or None."""
        return self._around.failure()


class _Now(threading.local):
    states: list[PythonState | None] | None = None
    is_traced = False


_now = _Now()


@contextlib.contextmanager
def states_met() -> Iterator[list[PythonState | None]]:
    """A context that yields a list of the states on which the traces used inside depend, with None for a function that
    has to be traced at each call. It is for code that caches results of these traces without comparing the states."""
    before, _now.states = _now.states, []
    try:
        yield _now.states
    finally:
        _now.states = before


@contextlib.contextmanager
def traced_by_another() -> Iterator[None]:
    """Context for a function that another framework's tracer calls: nothing that it changes is left changed."""
    before, _now.is_traced = _now.is_traced, True
    try:
        yield
    finally:
        _now.is_traced = before


def meet(state: PythonState, is_lasting: bool = True) -> None:
    """Note that a trace is used which depends on a state, or serves this call alone."""
    if _now.is_traced and not is_lasting:
        state.undo()
    if _now.states is not None:
        _now.states.append(state if is_lasting else None)


class _ModuleTables:
    """The attributes of modules, and the tables of their hooks, parameters and children, compared at once."""

    def __init__(self, modules: Iterable[Any]) -> None:
        owned = [vars(x) for x in modules]
        self.inner = [
            table for own in owned for key, table in own.items() if key.startswith("_") and type(table) in _TABLES
        ]
        hidden = [_own_of_library(x.__class__) for x in modules]
        self._getters = [itemgetter(*own.keys() - names) for own, names in zip(owned, hidden, strict=True)]
        self._owned, self._lengths = owned, [*map(len, owned), *map(len, self.inner)]
        self._before = self._now()

    def _now(self) -> list[Any]:
        inner = chain.from_iterable(map(dict.values, self.inner))
        return [*chain.from_iterable(map(call, self._getters, self._owned)), *inner]

    def hold(self) -> bool:
        if [*map(len, self._owned), *map(len, self.inner)] != self._lengths:
            return False
        try:
            now = self._now()
        except KeyError:
            return False
        return all(map(is_, now, self._before)) or all(map(is_same_value, now, self._before))


_TABLES = (dict, OrderedDict)


@functools.cache
def _own_of_library(kind: type) -> frozenset[str]:
    """Return the private attributes that methods of a library's classes assign (the flat weights of an LSTM)."""
    derived = kind.__mro__[:-2]  # without `type` and `object`, which hide nothing
    classes = [cls for cls in derived if in_library(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")]
    methods = [f for cls in classes for f in vars(cls).values() if isinstance(f, types.FunctionType)]
    names = {name for f in methods if f.__name__ != "__init__" for name in stored_attributes(f.__code__)}
    return frozenset(name for name in names if name.startswith("_"))


def _name(change: Change) -> str:
    """Return the program's name for an object that a function has changed."""
    key = next((key for key in change.keys if isinstance(key, str)), "")
    return ".".join(filter(None, (change.table.name, key))) or "a variable"


def warn_traced_again(name: str, why: str) -> None:
    """Warn once, at the program's line, that a function is traced at each call."""
    warn_uncompiled(name, why, "It is traced anew at each call")


class _Around(Surroundings):
    """Surroundings in which large arrays are constants, which is said, and arrays of the function's own framework are
    compared, too, unless they are `given`."""

    def __init__(self, own: str, given: Iterable[Any]) -> None:
        super().__init__(own)
        self._given = {id(x) for x in given}

    def _is_own(self, x: Any, framework: str) -> bool:
        return id(x) in self._given

    def _take(self, name: str, array: Any, framework: str) -> None:
        try:
            super()._take(name, array, framework)
        except TracedValueError as error:
            what = str(error).partition("\n")
            warnings.warn(f"{what[0]} Later writes to it are not seen.\n{what[2]}", stacklevel=2)
