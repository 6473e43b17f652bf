"""Python's objects around a function of another framework that is traced once for many calls.

What the function reads of them is compared at each call, and a trace serves only those in which it is the same. What
it only writes (a counter, a list of numbers) is written at each call. A function that reads what it changes, draws
random numbers, or asks for what differs at each call (a clock, an iterator) is traced at each call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.lookups import Lookups
from tensorgraft.compiled.outside_calls import NotedCalls
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import warn_uncompiled
from tensorgraft.compiled.values import is_plain
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
        self._around, self._whole = _Around(own, given), whole
        attributes = [(f"{type(x).__name__}.{key}", value) for x in whole for key, value in vars(x).items()]
        for name, x in (*roots, *attributes):
            self._around.add(name, x)
        for kind in {type(x): None for x in whole}:
            self._around.look_up(kind.__name__, Lookups(attributes=[(kind, "forward")]))
        self._world: Reachable | None = Reachable(roots)
        self._around.watch(self._world)
        self._noted = NotedCalls()
        self._changes: list[Change] = []

    def watched(self) -> AbstractContextManager[None]:
        """Context in which the function runs."""
        assert self._world is not None
        return self._noted.watched(self._world.outside)

    def settle(self) -> str | None:
        """Take what the trace has found. Returns why it cannot serve later calls, in words that follow the function's
        name; None if it can."""
        world = self._world
        assert world is not None
        why = self._noted.refused
        if why is None and world.once is not None:
            why = f"reads {world.once}, which may differ at each call"
        if why is None and world.drew():
            why = "draws random numbers of Python or NumPy"
        changes = [] if why is not None else world.changes()
        if why is None and not all(map(is_plain, chain.from_iterable(change.new for change in changes))):
            why = f"changes {_name(changes[0])}"
        if why is None and (reads := next((c for c in changes if not world.only_written(c)), None)) is not None:
            why = f"reads and changes {_name(reads)}"
        if why is None and (written := self._around.written()) is not None:
            why = f"writes {written}"
        if why is None:
            world.undo()
            methods = [fn for _, _, fn in world.methods]
            self._around.settle(world, changes, lambda value: None, methods, self._whole)
            self._changes = changes
            self._world = None
            self.repeat()
        return why

    def repeat(self) -> None:
        """Change what the function changes, at a call for which it is not traced."""
        for change in self._changes:
            change.apply(change.table.of, change.new)

    def undo(self) -> None:
        """Put everything back as it was before the trace, which is given up."""
        if self._world is not None:
            self._around.undo()
            self._world.undo()

    def hold(self) -> bool:
        return self._world is None and self._around.hold()

    def failure(self) -> str | None:
        """Return in words what has changed; None where nothing has."""
        return self._around.failure()


def _name(change: Change) -> str:
    """Return the program's name for what a function has changed."""
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
