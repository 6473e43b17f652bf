"""Pytrees compared, and changed in places."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.arrays import framework_of, is_inexact_array

_NONE: Any = object()


class _Leaf:
    """A leaf that is a distinct object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Empty(tuple):
    """An empty tuple that is a distinct object."""

    __slots__ = ()


def tree_at(
    where: Callable[[Any], Any],
    tree: Any,
    replace: Any = _NONE,
    replace_fn: Callable[[Any], Any] = _NONE,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return a copy of a pytree that differs in the nodes that `where` picks.

        tree_at(lambda m: m.layers[0].weight, model, weight)
        tree_at(lambda m: (m.a, m.b), model, replace=(a, b))
        tree_at(lambda m: m.bias, model, bias, is_leaf=lambda x: x is None)  # a place that holds None

    Arguments:
        where: the tree -> one of its nodes, or a sequence of nodes.
        replace: what comes in the place of the node, or a sequence of as many.
        replace_fn: instead of `replace`, a function of the node that was there.
        is_leaf: what counts as a leaf, None for example.

    Raises TypeError unless one of `replace` and `replace_fn` is given; ValueError where `where` picks what is no node
    of the tree (a static field, a value computed from leaves), a node twice, or not as many as `replace` has.
    """
    if (replace is _NONE) == (replace_fn is _NONE):
        raise TypeError("tree_at: pass either replace or replace_fn")
    tree = optree.tree_map(lambda x: _Empty() if _is_empty(x) else x, tree, is_leaf=_is_empty)
    leaves, structure = optree.tree_flatten(tree, is_leaf=is_leaf)
    marked = optree.tree_unflatten(structure, [_Leaf(x) for x in leaves])
    picked, single = _picked(where, marked)
    positions = {id(node): k for k, node in enumerate(picked)}
    if replace is not _NONE:
        new = [replace] if single else replace
        if not isinstance(new, list | tuple) or len(new) != len(picked):
            description = f"{len(new)}" if isinstance(new, list | tuple) else f"a {type(new).__qualname__}"
            raise ValueError(f"tree_at: where picked {len(picked)} nodes, replace has {description}")
    used = set()

    def renewed(x: Any) -> Any:
        k = positions.get(id(x))
        if k is None:
            return x.value if isinstance(x, _Leaf) else x
        used.add(k)
        return replace_fn(_plain(x)) if replace is _NONE else new[k]

    out = optree.tree_map(renewed, marked, is_leaf=lambda x: id(x) in positions)
    if len(used) != len(picked):
        raise ValueError("tree_at: where picked a node and a part of it")
    return optree.tree_map(lambda x: () if isinstance(x, _Empty) else x, out, is_leaf=lambda x: isinstance(x, _Empty))


def _picked(where: Callable[[Any], Any], marked: Any) -> tuple[Sequence[Any], bool]:
    """Return (the nodes of a tree that `where` picks, each once; it gives one alone, not a sequence). Raises ValueError
    for what is none."""
    try:
        pointed = where(marked)
    except (TypeError, ValueError) as error:
        if "_Leaf" in str(error):
            raise ValueError(f"tree_at: where must pick nodes, and cannot compute with leaves: {error}") from None
        raise
    nodes = _nodes(marked)
    single = id(pointed) in nodes
    picked: Sequence[Any] = [pointed] if single else pointed
    if not isinstance(picked, list | tuple):
        raise ValueError(
            f"tree_at: where picked a {type(pointed).__qualname__} that is not a node of the tree; neither are"
            " static fields, and None without is_leaf=lambda x: x is None"
        )
    positions: dict[int, int] = {}
    for k, node in enumerate(picked):
        if id(node) not in nodes:
            raise ValueError(
                f"tree_at: what where picked{'' if single else f' at {k}'} is not a node of the tree, but"
                f" {_node_text(node)}; neither are static fields, and None without is_leaf=lambda x: x is None"
            )
        if positions.setdefault(id(node), k) != k:
            raise ValueError(f"tree_at: where picked the same node twice, at {positions[id(node)]} and {k}")
    return picked, single


def _is_empty(x: Any) -> bool:
    return type(x) is tuple and not x


def _node_text(node: Any) -> str:
    return repr(node.value) if isinstance(node, _Leaf) else repr(node)


def _plain(marked: Any) -> Any:
    return optree.tree_map(lambda x: x.value if isinstance(x, _Leaf) else x, marked)


def _nodes(tree: Any) -> set[int]:
    """Return the identities of all nodes, leaves included, that have one."""
    ids: set[int] = set()

    def visit(x: Any) -> bool:
        if x is not None:
            ids.add(id(x))
        return False

    optree.tree_flatten(tree, is_leaf=visit)
    return ids


def tree_equal(*trees: Any, typematch: bool = False, rtol: float = 0.0, atol: float = 0.0) -> Any:
    """Pytrees have one structure and equal leaves: arrays of one shape and dtype, equal in each element.

    Arguments:
        typematch: leaves have to be of one type.
        rtol, atol: floating-point elements may differ by `atol + rtol * abs(other)`.

    Returns a bool; inside a compiled function a traced array of one, where values decide. Raises IndexError for no
    tree.
    """
    first, structure = optree.tree_flatten(trees[0])
    out: Any = True
    for tree in trees[1:]:
        leaves, other = optree.tree_flatten(tree)
        if other != structure:
            return False
        for a, b in zip(first, leaves, strict=True):
            is_equal = _equal(a, b, rtol, atol) if not typematch or type(a) is type(b) else False
            if is_equal is False:
                return False
            out = is_equal if out is True else (out if is_equal is True else out & is_equal)
    return out


def _equal(a: Any, b: Any, rtol: float, atol: float) -> Any:
    framework_a, framework_b = framework_of(a), framework_of(b)
    if framework_a is None or framework_b is None:
        return framework_a is framework_b and bool(a == b)
    if tuple(a.shape) != tuple(b.shape) or str(getattr(a.dtype, "name", a.dtype)) != str(
        getattr(b.dtype, "name", b.dtype)
    ):
        return False
    xp = _functions(framework_a)
    if framework_a != framework_b:
        a, b, xp = np.asarray(a), np.asarray(b), np
    all_of = getattr(xp, "all", None) or xp.reduce_all
    near = (rtol or atol) and is_inexact_array(a)
    is_equal = all_of((a == b) | (abs(a - b) <= atol + rtol * abs(b)) if near else a == b)
    try:
        return bool(is_equal)
    except Exception:  # each framework has its own error for a traced value
        return is_equal


def _functions(framework: str) -> Any:
    """Return the module with `all` (TensorFlow: `reduce_all`) of a framework that is imported."""
    if framework == "tensorgraft":
        import tensorgraft.array_api

        return tensorgraft.array_api
    return sys.modules["jax.numpy" if framework == "jax" else framework]
