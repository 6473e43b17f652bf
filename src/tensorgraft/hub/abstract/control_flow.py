"""Rules of control flow: every branch is taken once, and results must agree in structure, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.hub.abstract.array import ShapeDtype, check, check_kinds, fail, show


def _check_alike(op: str, result: Any, expected: Any, label: str) -> None:
    leaves, structure = optree.tree_flatten(result)
    expected_leaves, other = optree.tree_flatten(expected)
    if structure != other or any(_described(a) != _described(b) for a, b in zip(leaves, expected_leaves, strict=True)):
        fail(op, (leaves, expected_leaves), f"{label} of one structure, with equal shapes and dtypes", TypeError)


def _described(leaf: Any) -> Any:
    return leaf if isinstance(leaf, ShapeDtype) else type(leaf)


def _check_predicate(op: str, predicate: Any) -> None:
    check_kinds(op, "b", predicate)
    check(not predicate.shape, op, (predicate,), "a 0-dimensional predicate")


def cond(op: str, predicate: ShapeDtype, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *xs: Any) -> Any:
    _check_predicate(op, predicate)
    out = true_fn(*xs)
    _check_alike(op, false_fn(*xs), out, "results of both branches")
    return out


def while_loop(op: str, condition: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    _check_predicate(op, condition(init))
    _check_alike(op, body(init), init, "a state before and after a step")
    return init


def scan(
    op: str, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int, reverse: bool = False
) -> tuple[Any, Any]:
    def first(x: ShapeDtype) -> ShapeDtype:
        check(x.shape and x.shape[0] == length, op, (show(x), length), f"leaves with a first axis of {length}")
        return x.like(*x.shape[1:])

    carry, ys = body(init, optree.tree_map(first, xs))
    _check_alike(op, carry, init, "a carry before and after a step")
    return carry, optree.tree_map(lambda y: y.like(length, *y.shape), ys)


RULES: dict[str, Callable[..., Any]] = {"cond": cond, "while_loop": while_loop, "scan": scan}
