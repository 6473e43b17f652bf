"""A recorded program as Python source: straight-line calls, in which arrays are dropped after their last use."""

from __future__ import annotations

import itertools
import linecache
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Block, Call, Tree, Var, leaves, variables

_DTYPES = {dtype: name for name in dir(dtypes) if isinstance(dtype := getattr(dtypes, name), np.dtype)}
_numbers = itertools.count()


def source(block: Block, constants: Iterable[Var]) -> str:
    writer = ProgramWriter()
    for v in constants:
        writer.names[v] = f"c{len(writer.names)}"
    writer.function("program", block, ["xp", "constants"], list(writer.names.values()))
    return "\n".join(writer.lines)


def function(text: str, names: Mapping[str, Any] = MappingProxyType({})) -> Callable[..., tuple[Any, ...]]:
    """Return the function (xp, constants, *arrays) -> arrays of a program's source, in which `names` are global
    variables."""
    space: dict[str, Any] = {"dtypes": dtypes, "inf": math.inf, "nan": math.nan, **names}
    file = f"<tensorgraft program {next(_numbers)}>"
    exec(compile(text, file, "exec"), space)
    compiled: Callable[..., tuple[Any, ...]] = space["program"]
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # tracebacks show it
    weakref.finalize(compiled, linecache.cache.pop, file, None).atexit = False
    return compiled


class ProgramWriter:
    """The lines of a program, as calls of the methods of `xp`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Var, str] = {}
        self.depth = 0
        self.bodies = 0
        self.arrays = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def target(self, tree: Tree) -> str:
        """Return the target of an assignment, in which new arrays get names."""
        if type(tree) in (tuple, list):
            return f"({', '.join(map(self.target, tree))}{',' * (len(tree) == 1)})"
        if tree not in self.names:
            self.names[tree] = f"x{self.arrays}"
            self.arrays += 1
        return self.names[tree]

    def function(self, name: str, block: Block, first: list[str], constants: list[str]) -> None:
        parameters = list(first)
        unpacked: list[tuple[Tree, str]] = []
        for tree in block.parameters:
            if type(tree) is Var:
                parameters.append(self.target(tree))
            else:
                parameters.append(f"p{len(unpacked)}")
                unpacked.append((tree, f"p{len(unpacked)}"))
        self.line(f"def {name}({', '.join(parameters)}):")
        self.depth += 1
        if constants:
            self.line(f"{', '.join(constants)}, = constants")
        for tree, packed_name in unpacked:
            self.line(f"{self.target(tree)} = {packed_name}")
        self.body(block)
        self.depth -= 1

    def body(self, block: Block) -> None:
        self.calls(block, set(variables(block.parameters)))
        self.line(f"return {self.value(block.result)}")

    def calls(self, block: Block, local: set[Var]) -> None:
        """Write the calls of a block, and drop those of its arrays, and of `local` ones, that are read no more."""
        used = set(variables(block.result))
        local = local.union(*(variables(c.results) for c in block.calls))
        dead: list[list[Var]] = []
        for call in reversed(block.calls):
            last = [v for v in dict.fromkeys(variables([call.args, call.kwargs, call.results])) if v in local - used]
            used.update(last)
            dead.append(last)
        for call in block.calls:
            self.call(call)
            if last_used := dead.pop():
                self.line(f"del {', '.join(self.names[v] for v in last_used)}")

    def call(self, call: Call) -> None:
        args = [self.value(a) for a in call.args]
        args += [f"{name}={self.value(a)}" for name, a in call.kwargs.items()]
        target = self.target(call.results)
        shapes = ", ".join(map(str, leaves(call.results)))
        self.line(f"{target} = xp.{call.method}({', '.join(args)})  # {shapes}")

    def value(self, x: Any) -> str:
        if type(x) is Var:
            return self.names[x]
        if type(x) is Block:
            self.bodies += 1
            name = f"body{self.bodies}"
            self.function(name, x, [], [])
            return name
        if type(x) is tuple:
            return f"({', '.join(map(self.value, x))}{',' * (len(x) == 1)})"
        if type(x) is list:
            return f"[{', '.join(map(self.value, x))}]"
        if type(x) is dict:
            return f"{{{', '.join(f'{k!r}: {self.value(v)}' for k, v in x.items())}}}"
        if isinstance(x, np.dtype):
            return f"dtypes.{_DTYPES[x]}"
        if type(x) is complex:
            return f"complex({x.real!r}, {x.imag!r})"
        return repr(x)
