"""A recorded program as Python source for one backend that computes at once: loops and branches are Python's own, and
operations are written as the backend's `Dialect` says them.

Nothing of a step but its operations is left: no look-up of methods, shapes or dtypes, no calls of bodies. The source is
for known arrays, outside of every trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.simplification import simplified
from tensorgraft.hub.recorded.source import ProgramWriter, function

Text = Callable[[Any], str]  # returns the text of an argument


class Dialect:
    """The expressions of a backend; by default calls of its methods. `names`: names that the source refers to."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def bound(self, value: Any) -> str:
        """Return a name for an object."""
        name = next((name for name, known in self.names.items() if known is value), f"k{len(self.names)}")
        self.names[name] = value
        return name

    def expression(self, call: Call, text: Text) -> str | None:
        """Return an expression for a call; None for a call of the backend's method."""
        if call.method == "element":  # one of an array, which is no operation of the hub
            x, index = call.args
            stop = tuple(i + 1 for i in index)
            return f"xp.reshape(xp.slice({text(x)}, {index}, {stop}, {(1,) * len(index)}), ())"
        return None

    def operand(self, x: Var, name: str) -> list[str]:
        """Return statements that convert an array from outside to the form that the expressions require."""
        return []

    def rows(self, name: str, reverse: bool) -> str:
        """Return an expression for the rows of an array, in the order of the steps."""
        rows = f"xp.unstack({name}, axis=0)"
        return f"reversed({rows})" if reverse else rows

    def stack(self, y: Var, length: int, reverse: bool) -> tuple[str, str, str]:
        """Return expressions for a collector of the rows of a result, and for the result, and a statement for each
        step: templates of {ys}, {i} and {y}."""
        if not length:
            return "None", f"xp.zeros({(0, *y.shape)}, {self.bound(y.dtype)})", "pass"
        return "[]", "xp.stack({ys}[::-1], axis=0)" if reverse else "xp.stack({ys}, axis=0)", "{ys}.append({y})"


class _NativeWriter(ProgramWriter):
    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self.dialect = dialect

    def program(self, block: Block, constants: list[Var]) -> str:
        for v in constants:
            self.names[v] = f"c{len(self.names)}"
        names = list(self.names.values())
        self.line(f"def program({', '.join(['xp', 'constants', *map(self.target, block.parameters)])}):")
        self.depth += 1
        if names:
            self.line(f"{', '.join(names)}, = constants")
        for v in (*constants, *block.parameters):
            for statement in self.dialect.operand(v, self.names[v]):
                self.line(statement)
        self.body(block)
        return "\n".join(self.lines)

    def value(self, x: Any) -> str:
        is_plain = (
            isinstance(x, Var | Block | tuple | list | dict | np.dtype | str | complex | float | int) or x is None
        )
        return super().value(x) if is_plain else self.dialect.bound(x)

    def call(self, call: Call) -> None:
        if call.method in ("scan", "while_loop", "cond"):
            getattr(self, call.method)(call, *call.args, **call.kwargs)
            return
        text = self.dialect.expression(call, self.value)
        if text is None:
            super().call(call)
        else:
            self.line(f"{self.target(call.results)} = {text}")

    def assign(self, targets: tuple[Var, ...], values: tuple[Var, ...]) -> None:
        pairs = [(self.target(t), self.value(v)) for t, v in zip(targets, values, strict=True)]
        pairs = [(t, v) for t, v in pairs if t != v]
        if pairs:
            self.line(f"{', '.join(t for t, _ in pairs)} = {', '.join(v for _, v in pairs)}")

    def scan(
        self, call: Call, step: Block, init: tuple[Var, ...], xs: tuple[Var, ...], length: int, reverse: bool
    ) -> None:
        carry, rows = step.parameters
        new_carry, ys = step.result
        self.assign(carry, init)
        stacks = [self.dialect.stack(y, length, reverse) for y in ys]
        lists = [f"y{self.arrays + k}" for k in range(len(ys))]
        index = f"i{self.arrays}"
        self.arrays += len(ys) + 1
        for name, (start, _, _) in zip(lists, stacks, strict=True):
            self.line(f"{name} = {start}")
        steps = f"range({length})[::-1]" if reverse else f"range({length})"
        targets = [index, *map(self.target, rows)]
        sources = [steps, *(self.dialect.rows(self.value(x), reverse) for x in xs)]
        self.line(f"for {', '.join(targets)} in {f'zip({chr(44).join(sources)})' if xs else steps}:")
        self.depth += 1
        self.calls(step, set())
        for name, y, (_, _, statement) in zip(lists, ys, stacks, strict=True):
            self.line(statement.format(ys=name, i=index, y=self.value(y)))
        self.assign(carry, new_carry)
        self.line("pass")
        self.depth -= 1
        carry_out, stacked = call.results
        self.assign(carry_out, carry)
        for target, name, (_, end, _) in zip(stacked, lists, stacks, strict=True):
            self.line(f"{self.target(target)} = {end.format(ys=name)}")

    def while_loop(self, call: Call, test: Block, step: Block, init: tuple[Var, ...]) -> None:
        (state,) = step.parameters
        self.assign(state, init)
        self.names.update(zip(test.parameters[0], map(self.target, state), strict=True))
        self.line("while True:")
        self.depth += 1
        self.calls(test, set())
        self.line(f"if not {self.value(test.result)}: break")
        self.calls(step, set())
        self.assign(state, step.result)
        self.depth -= 1
        self.assign(call.results, state)

    def cond(self, call: Call, predicate: Var, true: Block, false: Block, *operands: Var) -> None:
        for branch, head in ((true, f"if {self.value(predicate)}:"), (false, "else:")):
            self.names.update(zip(branch.parameters, map(self.value, operands), strict=True))
            self.line(head)
            self.depth += 1
            self.calls(branch, set())
            self.assign(call.results, branch.result)
            self.line("pass")
            self.depth -= 1


_SMALL = 1 << 12  # elements, up to which an operation takes about as long as its call
_WIDE = 1 << 18  # products of numbers in a product of matrices


def is_small(program: Program) -> bool:
    """Return whether the steps of the loops of a program work on few numbers, and all of it on dtypes that processors
    compute with."""
    outside = [*program.block.parameters, *program.constants]
    return all(map(_is_plain, outside)) and all(_is_small(call, in_loop=False) for call in program.block.calls)


def _is_plain(x: Var) -> bool:
    return x.dtype.kind in "biufc" and x.dtype != np.float16


def _is_small(call: Call, in_loop: bool) -> bool:
    arrays = [x for x in leaves([call.args, call.kwargs, call.results]) if type(x) is Var]
    blocks = [x for x in leaves(call.args) if type(x) is Block]
    if not all(map(_is_plain, arrays)) or (in_loop and any(x.size > _SMALL for x in arrays)):
        return False
    if call.method == "dot_general" and in_loop:
        a, b, contract = call.args[:3]
        if a.size * b.size // max(1, math.prod(a.shape[axis] for axis in contract[0])) > _WIDE:
            return False
    return all(_is_small(inner, True) for block in blocks for inner in block.calls)


class NativeProgram:
    """A program as a function of arrays of one backend, to be called in its scope. No result is a constant, or another
    result."""

    def __init__(self, program: Program, xp: Backend) -> None:
        program = Program(simplified(program.block))
        dialect = xp.dialect() or Dialect()
        self.xp = xp
        self.source = _NativeWriter(dialect).program(program.block, program.constants)
        self._run = function(self.source, dialect.names)
        self._constants = [xp.asarray(v.known()) for v in program.constants]
        self._constant_ids = frozenset(map(id, self._constants))

    def __call__(self, *arrays: Array) -> list[Array]:
        xp, known_ids = self.xp, set(self._constant_ids)
        results = []
        for x in self._run(xp, self._constants, *arrays):
            results.append(xp.copy(x) if id(x) in known_ids else x)
            known_ids.add(id(x))
        return results
