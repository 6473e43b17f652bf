"""Generated functions for one kind of call: conditions in straight-line code, and the statements that run if all are
true.

A compiled function checks at each call what its trace depends on. Loops over lists of guards take three times as long
as the same conditions written out, with the values that they compare with as global names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import is_, length_hint
from typing import Any, NamedTuple

from tensorgraft.hub import watched
from tensorgraft.interrupts import held_back

# in this package's folder, as required by errors that search for the program's line
_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "<straight line>")


_ARRAY = repeat("array")  # has no end, nor a state
_MOST = 16  # conditions of a kind that are written one by one


class NotStraight(Exception):
    """A call is of a kind for which no straight line is written."""


class _Missed:
    def __repr__(self) -> str:
        return "missed"


MISSED: Any = _Missed()  # returned for another kind of call, before anything is done


class _Check(NamedTuple):
    lines: list[str]
    reads: str | None = None  # an expression of what they depend on (`watched.objects_read`)

    def parts(self) -> list[_Check]:
        """Return a check for each of several conditions that all have to hold."""
        if self.reads is None or " and " not in self.reads or self.lines != [_unless(self.reads)]:
            return [self]
        return [_Check([_unless(part)], part) for part in watched.conjuncts(self.reads)]


class StraightLine:
    """A function under construction. Its conditions are checked first: where one does not hold, or raises an exception,
    it returns MISSED."""

    def __init__(self) -> None:
        self._checks: list[_Check] = []
        self._statements: list[str] = []
        self._margin = ""  # of statements
        self._space: dict[str, Any] = {"MISSED": MISSED}
        self._names: dict[int, str] = {}
        self._variables = 0

    def name(self, value: Any) -> str:
        """Return a name for a value, which is the same object at every call."""
        if value is None or value is True or value is False:
            return repr(value)
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"v{len(self._names)}"
            self._space[name] = value
        return name

    def variable(self) -> str:
        """Return the name of a new variable."""
        self._variables += 1
        return f"x{self._variables}"

    def require(self, condition: str) -> None:
        """Add a condition, which may name variables of `let`."""
        self._checks.append(_Check([_unless(condition)], condition))

    def require_objects(self, expression: str, expected: Sequence[Any]) -> None:
        """Require that a container has exactly these objects in it, in their order."""
        if not expected:
            self.require(f"not {expression}")
            return
        if len(expected) <= _MOST:
            variables = [self.variable() for _ in expected]
            lines = [f"{', '.join(variables)}, = {expression}"]
            lines += (_unless(f"{x} is {self.name(value)}") for x, value in zip(variables, expected, strict=True))
        else:
            equal = f"all(map({self.name(is_)}, {expression}, {self.name(expected)}))"
            lines = [_unless(f"len({expression}) == {len(expected)} and {equal}")]
        self._checks.append(_Check(lines, f"[{expression}]"))

    def require_empty(self, containers: Sequence[Any]) -> None:
        """Require that nothing is in any of these containers."""
        if len(containers) <= _MOST:
            for container in containers:
                self.require(f"not {self.name(container)}")
        else:
            line, names = _unless(f"not any({self.name(containers)})"), map(self.name, containers)
            self._checks.append(_Check([line], " or ".join(names)))

    def require_equal(self, ask: Callable[[Any], Any], objects: Sequence[Any], expected: Sequence[Any]) -> None:
        """Add the condition that each of the objects has its expected value."""
        if not objects:
            return
        values = f"map({self.name(ask)}, {self.name(objects)})"
        if all(value is True for value in expected):
            self.require(f"all({values})")
        elif all(value is False for value in expected):
            self.require(f"not any({values})")
        else:
            self.require(f"[*{values}] == {self.name(expected)}")

    def let(self, expression: str) -> str:
        """Return a new variable for an expression that conditions and statements have in common."""
        variable = self.variable()
        self.check(f"{variable} = {expression}")
        return variable

    def check(self, line: str) -> None:
        """Add a line among the conditions."""
        self._checks.append(_Check([line]))

    def do(self, line: str) -> None:
        """Add a line that runs where all conditions hold. Its exceptions are the caller's."""
        self._statements.append(self._margin + line)

    @contextlib.contextmanager
    def block(self, line: str) -> Iterator[None]:
        """Context in which lines are added to the block that `line` opens."""
        self.do(line)
        before, self._margin = self._margin, self._margin + "  "
        yield
        self._margin = before

    def put(self, cells: Sequence[str], arrays: str) -> None:
        """Add a statement that puts the first of an iterable's arrays into storages."""
        self.do(f"any(map(setattr, ({', '.join(cells)},), {self.name(_ARRAY)}, {arrays}))")

    def call_program(self, program: Callable[..., Any], arrays: str, outputs: str, cells: Sequence[str] = ()) -> None:
        """Add the call of a program on a list of arrays. The first outputs are put into the storages `cells`."""
        if not cells:
            self.do(f"{outputs} = {self.name(program)}(*{arrays})")
            return
        with self.block(f"with {self.name(held_back)}():"):
            self.do(f"{outputs} = [*{self.name(program)}(*{arrays})]")
            self.put(cells, outputs)

    def function(self, parameters: str, is_frequent: bool | None = None) -> Callable[..., Any]:
        """Return the function with these parameters. `is_frequent`: it is called so many times that it pays to watch
        the objects that conditions read. If False, or where that is not possible yet, calls are counted, and MISSED
        after a number of them (`is_over`)."""
        countdown, checks = None, [line for check in self._checks for line in check.lines]
        if is_frequent and watched.library.watch is not None:
            checks = self._watched_checks(watched.library.watch)
        elif is_frequent is not None and watched.library.possible:
            countdown = watched.library.countdown(is_frequent)
            checks.insert(0, f"{self.name(countdown.__next__)}()")
        lines = [f"def call({parameters}):", "  try:"]
        lines += [f"    {line}" for line in checks]
        lines += ["  except Exception:", "    return MISSED"]
        lines += [f"  {line}" for line in self._statements]
        exec(compile("\n".join(lines), _FILE, "exec"), self._space)
        call: Callable[..., Any] = self._space.pop("call")  # the namespace would refer to itself
        call.countdown = countdown
        return call

    def _watched_checks(self, watch: watched.Watch) -> list[str]:
        """Return the lines of the conditions, of which some are skipped while the objects that they read are
        unmodified."""
        objects: dict[tuple[int, bool], Any] = {}
        always: list[str] = []
        skipped: list[str] = []
        start = 0
        for check in chain.from_iterable(map(_Check.parts, self._checks)):
            found = None if check.reads is None else watched.objects_read(check.reads, self._space)
            if found is None:
                always += check.lines
                continue
            start = start if skipped else len(always)
            skipped += check.lines
            objects.update(((id(x[0]), True) if type(x) is tuple else (id(x), False), x) for x in found)
        if not skipped:
            return always
        changed, confirm = watch(tuple(objects.values()))
        number = self.variable()
        lines = [f"{number} = {self.name(changed)}()", f"if {number} is not None:"]
        lines += [f"  {line}" for line in (*skipped, f"{self.name(confirm)}({number})")]
        return [*always[:start], *lines, *always[start:]]


def _unless(condition: str) -> str:
    return f"if not ({condition}): return MISSED"


def is_over(line: Callable[..., Any]) -> bool:
    """Return True if a function has been called so often that it is to be written again."""
    countdown = getattr(line, "countdown", None)
    if countdown is None or length_hint(countdown):
        return False
    watched.library.start()
    return True
