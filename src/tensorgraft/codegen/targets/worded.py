"""Rules of words that several targets have."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tensorgraft.codegen import expressions
from tensorgraft.codegen.targets import Var, Writing, rules


def resize(w: Writing, x: Any, size: Any, method: str = "nearest", corners: bool = False) -> ast.expr:
    operands = [w(x), w(tuple(size))] + ([] if method == "nearest" else [w(method)])
    return expressions.call("resize", *operands, corners=w(True) if corners else None)


def arange(name: str) -> Callable[..., ast.expr]:
    """Write `name(stop)`, `name(start, stop)` or `name(start, stop, step)`; of ints these make int64."""

    def rule(w: Writing, start: Any, stop: Any, step: Any, dtype: Any) -> ast.expr:
        numbers = [stop] if rules.same(step, 1) and rules.same(start, 0) else [start, stop]
        numbers = [start, stop, step] if not rules.same(step, 1) else numbers
        plain = dtype.name == "int64" and all(isinstance(n, int) for n in numbers)
        return expressions.call(name, *map(w, numbers), dtype=None if plain else w(dtype))

    return rule


def einsum(name: str) -> Callable[..., ast.expr]:
    return lambda w, equation, operands: expressions.call(name, w(equation), *map(w, operands))


def index_of(indices: Any) -> list[Any]:
    return [slice(None) if i is None else i for i in indices]


def index(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, index_of(indices))
