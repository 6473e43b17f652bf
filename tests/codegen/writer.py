"""A small writer of straight programs: what the rules of a target are tested with, one call at a time."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import numpy as np

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import Operations, operations
from tensorgraft.hub.recorded.block import Block, Call, Var
from tensorgraft.hub.recorded.tracing import program_backend

OPERATIONS = operations()


class Writer:
    """A `Writing`: each Var has a name, each call a line."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.names: dict[Var, str] = {}
        self.lines: list[str] = []
        self.outcome: Any = None

    # ---- what rules see --------------------------------------------------------------------------------------------

    def __call__(self, value: Any) -> ast.expr:
        if isinstance(value, ast.expr):
            return value
        if type(value) is Var:
            if value.value is not None and value not in self.names:
                return self.constant(value.value)
            return expressions.name(self.names[value])
        if isinstance(value, np.dtype):
            return expressions.name(self.target.dtype(value))
        if type(value) is tuple:
            return ast.Tuple([self(v) for v in value], ast.Load())
        if type(value) is list:
            return ast.List([self(v) for v in value], ast.Load())
        if isinstance(value, float) and not np.isfinite(value):
            infinity = self.target.infinity if value > 0 else f"-{self.target.infinity}"
            return expressions.name(self.target.nan if value != value else infinity)
        return expressions.literal(value)

    def fill(self, template: str, /, **arguments: Any) -> ast.expr:
        return expressions.fill(template, **{k: None if v is None else self(v) for k, v in arguments.items()})

    def body(self, block: Block, name: str, star: bool = False) -> ast.expr:
        inner = Writer(self.target)
        inner.names = self.names  # sees what is around it
        names = []
        for tree in block.parameters:
            if type(tree) is Var:
                names.append(self.new(tree))
                continue
            whole = f"t{len(self.names)}_{len(names)}"
            names.append(whole)
            if tree:
                inner.lines.append(f"{', '.join(self.new(v) for v in tree)}{',' * (len(tree) == 1)} = {whole}")
        for call in block.calls:
            inner.write(call)
        inner.lines.append(f"return {expressions.text(inner(block.result))}")
        name = f"{name}_{len(self.names)}"
        self.lines.append(f"def {name}({'*' * star}{', '.join(names)}):")
        self.lines.append(textwrap.indent("\n".join(inner.lines), "    "))
        return expressions.name(name)

    def call_outcome(self) -> Any:
        return self.outcome

    # ---- writing ---------------------------------------------------------------------------------------------------

    def constant(self, value: np.ndarray) -> ast.expr:
        return expressions.fill(self.target.constant, x=expressions.literal(value.tolist()), dtype=self(value.dtype))

    def new(self, var: Var) -> str:
        self.names[var] = f"v{len(self.names)}"
        return self.names[var]

    def write(self, call: Call) -> None:
        rule = self.target.rules.get(call.method)
        if rule is None:
            self.expand(call)
            return
        arguments = bound(call)
        self.outcome = call.results
        if isinstance(rule, str):
            filled = {k: None if is_default(call, k, v) else v for k, v in arguments.items()}
            expression = self.fill(rule, **filled)
        else:
            expression = rule(self, **arguments)
        left = self.named(call.results)
        self.lines.append(f"{left} = {expressions.text(expression)}")

    def named(self, tree: Any) -> str:
        if type(tree) is Var:
            return self.new(tree)
        inside = ", ".join(self.named(v) for v in tree)
        return f"({inside}{',' * (len(tree) == 1)})"

    def expand(self, call: Call) -> None:
        """The call as what it means."""
        xp = program_backend()
        definition = WORDS.get(call.method) or getattr(Operations, call.method)
        if getattr(definition, "is_primitive", False):
            raise NotImplementedError(f"{self.target.name} has no {call.method}")
        with xp.recording() as calls:
            result = definition(xp, *call.args, **call.kwargs)
        for inner in calls:
            self.write(inner)
        for ours, theirs in zip(leaves(call.results), leaves(result), strict=True):
            self.names[ours] = expressions.text(self(theirs))


def leaves(tree: Any) -> list[Any]:
    return [x for t in tree for x in leaves(t)] if isinstance(tree, tuple | list) else [tree]


def signature(method: str) -> inspect.Signature:
    return inspect.signature(WORDS.get(method) or OPERATIONS[method])


def bound(call: Call) -> dict[str, Any]:
    arguments = signature(call.method).bind(None, *call.args, **call.kwargs)
    arguments.apply_defaults()
    return dict(list(arguments.arguments.items())[1:])


def is_default(call: Call, name: str, value: Any) -> bool:
    default = signature(call.method).parameters[name].default
    return default is not inspect.Parameter.empty and type(value) is type(default) and value == default


def program(target: Target, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Var]]:
    """(the text of a function `program` of the Vars among the arguments, these Vars)."""
    writer = Writer(target)
    found = [v for v in leaves([list(args), list(kwargs.values())]) if type(v) is Var]
    parameters = list(dict.fromkeys(found))
    names = [writer.new(v) for v in parameters]
    xp = program_backend()
    with xp.recording() as calls:
        if method == "nonzero":
            result = tuple(Var((0,), np.dtype(np.int64)) for _ in args[0].shape)
            calls.append(Call(method, args, kwargs, result))
        else:
            result = (getattr(xp, method) if method in OPERATIONS else WORDS[method].__get__(xp))(*args, **kwargs)
    if method in WORDS:  # its outcome looks like what the definition gives
        calls = [Call(method, args, kwargs, result)]
    for call in calls:
        writer.write(call)
    writer.lines.append(f"return {expressions.text(writer(_tuple(result)))}")
    return f"def program({', '.join(names)}):\n" + textwrap.indent("\n".join(writer.lines), "    "), parameters


def _tuple(tree: Any) -> Any:
    return tuple(map(_tuple, tree)) if isinstance(tree, list | tuple) else tree
