"""Generated functions for one kind of call: conditions in straight-line code, and the statements that run if all are
true.

A compiled function checks at each call what its trace depends on. Loops over lists of guards take three times as long
as the same conditions written out, with the values that they compare with as global names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any

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


class StraightLine:
    """A function under construction. Its conditions are checked first: where one does not hold, or raises an exception,
    it returns MISSED."""

    def __init__(self) -> None:
        self._checks: list[str] = []
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
        self.check(f"if not ({condition}): return MISSED")

    def require_objects(self, expression: str, expected: Sequence[Any]) -> None:
        """Require that a container has exactly these objects in it, in their order."""
        if not expected:
            self.require(f"not {expression}")
        elif len(expected) <= _MOST:
            variables = [self.variable() for _ in expected]
            self.check(f"{', '.join(variables)}, = {expression}")
            for variable, value in zip(variables, expected, strict=True):
                self.require(f"{variable} is {self.name(value)}")
        else:
            self.require(f"len({expression}) == {len(expected)}")
            self.require(f"all(map({self.name(is_)}, {expression}, {self.name(expected)}))")

    def require_empty(self, containers: Sequence[Any]) -> None:
        """Require that nothing is in any of these containers."""
        if len(containers) <= _MOST:
            for container in containers:
                self.require(f"not {self.name(container)}")
        else:
            self.require(f"not any({self.name(containers)})")

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
        self._checks.append(line)

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

    def function(self, parameters: str) -> Callable[..., Any]:
        """Return the function with these parameters."""
        lines = [f"def call({parameters}):", "  try:"]
        lines += [f"    {line}" for line in self._checks]
        lines += ["  except Exception:", "    return MISSED"]
        lines += [f"  {line}" for line in self._statements]
        exec(compile("\n".join(lines), _FILE, "exec"), self._space)
        call: Callable[..., Any] = self._space.pop("call")  # the namespace would refer to itself
        return call
