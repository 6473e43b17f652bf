"""Expressions of generated source, as Python's syntax trees: templates with holes, and values as literals.

    fill("jnp.sum(x, axis=axis)", x=a, axis=literal((0, 1)))     # -> jnp.sum(h, axis=(0, 1))

A template is Python; each name in it that is filled is a hole. Brackets follow from the tree, so that none is missing
and none is too much. A keyword argument whose hole is filled with None is left out.
"""

from __future__ import annotations

import ast
import contextvars
import copy
import functools
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

# Helpers of the file that have another name there, because a function of the program has theirs
renamed: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("renamed", default=MappingProxyType({}))


@functools.cache
def _parsed(template: str) -> ast.expr:
    return ast.parse(template.strip(), mode="eval").body


@functools.cache
def repeated(template: str) -> tuple[str, ...]:
    """Return the names that occur more than once in it."""
    names = [node.id for node in ast.walk(_parsed(template)) if isinstance(node, ast.Name)]
    return tuple({n for n in names if names.count(n) > 1})


class _Fill(ast.NodeTransformer):
    def __init__(self, holes: dict[str, ast.expr | None]) -> None:
        self.holes = holes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.holes:
            node.id = renamed.get().get(node.id, node.id)
            return node
        value = self.holes[node.id]
        if value is None:
            return ast.Constant(None)
        return value

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [k for k in node.keywords if not self._left_out(k.value)]
        self.generic_visit(node)
        args: list[ast.expr] = []
        for a in node.args:  # f(*(1, 2)) is f(1, 2)
            args += a.value.elts if isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) else [a]
        node.args = args
        return node

    def _left_out(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and value.id in self.holes and self.holes[value.id] is None


def fill(template: str, /, **holes: ast.expr | None) -> ast.expr:
    """Return the template with its holes filled. Raises SyntaxError for a text that is no expression."""
    return _Fill(holes).visit(copy.deepcopy(_parsed(template)))


def words(text: str) -> str:
    """Return a text of a file, such as a name of a weight, with `_` for what cannot stand in an identifier."""
    return re.sub(r"\W+", "_", text) or "_"


def attribute_names(paths: Iterable[str]) -> dict[str, str]:
    """Return an identifier for each part of the paths of weights and modules that is neither one nor a number."""
    parts = dict.fromkeys(part for path in paths for part in path.split("."))
    taken = {part for part in parts if part.isidentifier()}
    found: dict[str, str] = {}
    for part in parts:
        if part.isidentifier() or part.isdigit():
            continue
        first = words(part).strip("_") or "weight"
        first = identifier = first if first.isidentifier() else f"weight_{first}"
        count = 1
        while identifier in taken:
            count += 1
            identifier = f"{first}_{count}"
        taken.add(identifier)
        found[part] = identifier
    return found


def name(text: str) -> ast.expr:
    """Return the expression `x`, or `np.pi`."""
    return _Fill({}).visit(copy.deepcopy(_parsed(text)))


def literal(value: Any) -> ast.expr:
    """Numbers, strings, None, booleans, slices, and tuples, lists and dictionaries of them and of expressions.

    Infinities and NaN are `float("inf")`; a target that has a name for them says so where it writes numbers.
    """
    if isinstance(value, ast.expr):
        return value
    if type(value) is tuple:
        return ast.Tuple([literal(v) for v in value], ast.Load())
    if type(value) is list:
        return ast.List([literal(v) for v in value], ast.Load())
    if type(value) is dict:
        return ast.Dict([literal(k) for k in value], [literal(v) for v in value.values()])
    if isinstance(value, slice):
        if value.start is None and value.stop is None and value.step is None:
            return ast.Slice()
        parts = [None if v is None else literal(v) for v in (value.start, value.stop, value.step)]
        return ast.Slice(*parts)
    if isinstance(value, float) and not isinstance(value, bool) and not math.isfinite(value):
        sign = "-" if value < 0 else ""
        return name(f'float("{"nan" if math.isnan(value) else sign + "inf"}")')
    if value is None or isinstance(value, bool | str) or value is Ellipsis:
        return ast.Constant(value)
    if isinstance(value, int | float):
        number = int(value) if isinstance(value, int) else float(value)
        positive = ast.Constant(abs(number))
        return ast.UnaryOp(ast.USub(), positive) if math.copysign(1, number) < 0 else positive
    if isinstance(value, complex):
        return fill("complex(real, imag)", real=literal(value.real), imag=literal(value.imag))
    raise TypeError(f"a {type(value).__name__} cannot be written as Python: {value!r}")


def call(function: str, *args: ast.expr, **kwargs: ast.expr | None) -> ast.expr:
    """Return the expression `function(*args, **kwargs)`; keywords with None are left out."""
    keywords = [ast.keyword(k, v) for k, v in kwargs.items() if v is not None]
    return ast.Call(name(function), list(args), keywords)


def arguments() -> ast.arguments:
    """Return the empty parameter list of a lambda."""
    return ast.arguments([], [], None, [], [], None, [])


def text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))
