"""Styles: how functions, their parameters and their state are written in a target.

`functions`: functions of nested dictionaries of parameters. A style answers what the writer of a function asks (where a
parameter is, how another function is called, how a row of modules is gone through), and writes the definition.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorgraft.codegen.structure.functions import Invoke, ModuleRules, Repeat, SourceFunction, Static
from tensorgraft.codegen.structure.size_merging import Extent, equal_sizes
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import SourceStep, SourceTrace, Var, variables


@dataclass
class Definition:
    """A function that is written: annotated parameters ("x: jax.Array"), the type of its result ("" for none), its
    docstring, the lines of its body."""

    arguments: list[str]
    returns: str
    doc: str
    body: list[str]
    is_root: bool

    def docstring(self, indent: str = "    ") -> list[str]:
        if not self.doc:
            return []
        width = 99 - len(indent)
        lines = [w for line in self.doc.split("\n") for w in (textwrap.wrap(line, width) if line else [""])]
        if len(lines) == 1 and len(lines[0]) < 88:
            return [f'{indent}"""{lines[0]}"""']
        return [f'{indent}"""{lines[0]}', *(indent + line if line else "" for line in lines[1:]), f'{indent}"""']


class Writer(Protocol):
    """The writer of one function, which asks a style (`codegen.output.writing.FunctionWriter`)."""

    function: SourceFunction
    is_root: bool

    def __call__(self, value: Any) -> ast.expr: ...
    def unused_name(self, *candidates: str) -> str: ...


class Style:
    """The base class of styles, which override at least the methods that raise NotImplementedError."""

    def __init__(self, target: Target, trace: SourceTrace, functions: list[SourceFunction]) -> None:
        self.target, self.trace = target, trace
        self.labels = labels_of(trace)
        self.taken = {*target.imports, *(f.name for f in functions)}  # names at the top of the file
        self.constants: dict[Any, tuple[str, ast.expr]] = {}
        # {contents of a constant: its name}
        self.titles = {contents(x): path.rsplit(".", 1)[-1].upper() for path, x in trace.constants.items()}
        self.imports: dict[str, str] = {}  # in addition to those of the target: {name: statement}

    @classmethod
    def prepare(cls, trace: SourceTrace) -> None:
        """Change a trace in place before functions are made of it."""

    @classmethod
    def modules(cls) -> ModuleRules | None:
        """Return the rules for modules, in styles that write classes."""
        return None

    def written(self, functions: list[SourceFunction]) -> list[SourceFunction]:
        """Return the functions that are written with a body of their own."""
        return functions

    def parameter_name(self, path: str) -> str:
        """Return the name that a parameter has in the file."""
        return path

    def static(self, writer: Writer, value: Static) -> ast.expr:
        """Return the expression for an argument that is not an array."""
        return ast.Name(value.name)

    def roots_of(self, function: SourceFunction) -> set[str]:
        """Return the names by which a function has its parameters."""
        return {"p", "b"}

    def assignment(self, writer: Writer, call: SourceStep) -> ast.stmt:
        """Return the statement for a step "assign"."""
        raise NotImplementedError

    def parameter(self, writer: Writer, v: Var) -> ast.expr:
        """Return a parameter or buffer of the function's module."""
        raise NotImplementedError

    def callee(self, writer: Writer, call: Invoke) -> tuple[ast.expr, list[ast.expr]]:
        """Return (the called expression, its arguments before the arrays)."""
        raise NotImplementedError

    def passed(self, call: Invoke, arrays: list[ast.expr]) -> list[ast.expr]:
        """Return the arrays of a call in the form that the callee takes."""
        takes = call.function.layer and call.function.layer.takes

        def of(position: Any) -> ast.expr:
            return arrays[position] if isinstance(position, int) else ast.Tuple([of(p) for p in position])

        return [of(position) for position in takes] if takes else arrays

    def row(self, writer: Writer, row: Repeat) -> tuple[tuple[ast.expr, ast.expr], ast.expr, list[ast.expr]]:
        """Return ((target, iterable) of the loop, the expression called in it, its arguments before the arrays)."""
        raise NotImplementedError

    def stateful_result(self, trace: SourceTrace) -> Any:
        """Return the results of a program that writes buffers: a tree of Vars."""
        raise NotImplementedError

    def definition(self, f: SourceFunction, d: Definition) -> str:
        """Return the text of a function or class."""
        raise NotImplementedError

    def loading(self, trace: SourceTrace) -> list[str]:
        """Return the texts of the functions that load and save weights."""
        raise NotImplementedError


def contents(x: np.ndarray) -> Any:
    """Return a key that is equal for arrays of the same shape, dtype and elements."""
    return x.shape, x.dtype.str, x.tobytes()


def labels_of(trace: SourceTrace) -> dict[tuple[int, ...], str]:
    """Names of the sizes that may change: by their values in all traces."""
    labels: dict[tuple[int, ...], str] = {}
    usual = {2: ["batch", "length"], 3: ["batch", "length", "width"], 4: ["batch", "channels", "height", "width"]}
    for v in variables([tree for _, tree in trace.arguments]):
        names = usual.get(v.ndim, ["batch"])
        if v.ndim == 4 and equal_sizes(v.shape[2], v.shape[3]):
            names = ["batch", "channels", "size", "size"]
        for axis, extent in enumerate(v.shape):
            if isinstance(extent, Extent) and extent.values not in labels:
                base = names[axis] if axis < len(names) else "size"
                numbered = itertools.chain([base], (f"{base}{i}" for i in itertools.count(2)))
                labels[extent.values] = next(c for c in numbered if c not in labels.values())
    return labels
