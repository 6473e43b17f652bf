"""Filtering, partitioning and combining of pytrees by their leaves (after Equinox: Kidger and Garcia 2021, arXiv
2111.00254)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.arrays import is_array

IsLeaf = Callable[[Any], bool] | None


def filter(tree: Any, filter_spec: Any, inverse: bool = False, replace: Any = None, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with leaves that do not pass replaced by `replace`.

    Arguments:
        filter_spec: a prefix of the tree whose leaves are bools, for all leaves below, and functions (leaf -> bool).
        inverse: keep the leaves that do not pass.
        is_leaf: a function that returns True for nodes to be treated as leaves.

    Raises ValueError for a `filter_spec` that is not a prefix, or has other leaves.

        params = tg.transforms.filter(model, tg.transforms.is_inexact_array)
    """
    mask = _mask(tree, filter_spec, is_leaf)
    return optree.tree_map(lambda keep, x: x if keep != bool(inverse) else replace, mask, tree)


def partition(tree: Any, filter_spec: Any, replace: Any = None, is_leaf: IsLeaf = None) -> tuple[Any, Any]:
    """Return (the tree with the leaves that pass, the tree with the others), with `replace` in place of missing leaves.
    `combine` is the inverse. Arguments and exceptions are those of `filter`. Raises ValueError.

    >>> import tensorgraft as tg
    >>> tg.transforms.partition({"rate": 0.5, "name": "a"}, lambda x: isinstance(x, float))
    ({'rate': 0.5, 'name': None}, {'rate': None, 'name': 'a'})
    """
    mask = _mask(tree, filter_spec, is_leaf)
    left = optree.tree_map(lambda keep, x: x if keep else replace, mask, tree)
    right = optree.tree_map(lambda keep, x: replace if keep else x, mask, tree)
    return left, right


def combine(*trees: Any, is_leaf: IsLeaf = None) -> Any:
    """Combine trees of one structure: each leaf is the first one that is not None.

    Raises ValueError for trees of different structures, TypeError without trees.

    >>> import tensorgraft as tg
    >>> tg.transforms.combine({"rate": 0.5, "name": None}, {"rate": None, "name": "a"})
    {'rate': 0.5, 'name': 'a'}
    """

    def leaf(x: Any) -> bool:
        return x is None or (is_leaf is not None and is_leaf(x))

    return optree.tree_map(lambda *xs: next((x for x in xs if x is not None), None), *trees, is_leaf=leaf)


def _mask(tree: Any, filter_spec: Any, is_leaf: IsLeaf) -> Any:
    def below(spec: Any, part: Any) -> Any:
        if isinstance(spec, bool):
            return optree.tree_map(lambda _: spec, part, is_leaf=is_leaf)
        if callable(spec) and not is_array(spec):
            return optree.tree_map(lambda x: bool(spec(x)), part, is_leaf=is_leaf)
        raise ValueError(f"filter_spec must consist of bools and functions, got a {type(spec).__qualname__}: {spec!r}")

    try:
        return optree.tree_map(below, filter_spec, tree)
    except ValueError as error:
        if "filter_spec" in str(error):
            raise
        raise ValueError(f"filter_spec is not a prefix of the tree: {error}") from None
