"""Arguments and results in plain containers, which every format can store: tuples, lists and dictionaries of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

OMITTED: Any = object()  # the plain form of what is no array and contains none


class ArrayPosition(int):
    """The position of an array among the arrays of a program's arguments."""


def plain(tree: Any, is_leaf: Callable[[Any], bool]) -> Any:
    """Return the leaves of a tree in tuples, lists and dictionaries. Named tuples, dataclasses and other nodes that are
    registered with JAX become dictionaries of their fields. Other values are left out: `OMITTED` if nothing is left."""
    if is_leaf(tree):
        return tree
    if isinstance(tree, Mapping):
        return _entries(tree.items(), is_leaf)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _entries(zip(tree._fields, tree, strict=True), is_leaf)
    if isinstance(tree, tuple | list):
        parts = [p for x in tree if (p := plain(x, is_leaf)) is not OMITTED]
        return OMITTED if tree and not parts else type(tree)(parts)
    return _entries(_fields(tree), is_leaf)


def _entries(pairs: Any, is_leaf: Callable[[Any], bool]) -> Any:
    pairs = [*pairs]
    kept = {str(name): p for name, x in pairs if (p := plain(x, is_leaf)) is not OMITTED}
    return kept or (OMITTED if pairs else {})


def _fields(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, child) of a node that is registered with JAX."""
    jax = sys.modules.get("jax")
    if jax is not None and x is not None:
        for path, child in jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]:
            if path:
                yield jax.tree_util.keystr(path, simple=True), child


def taken(structure: Any, tree: Any) -> dict[int, Any]:
    """Return {position: array} for the arrays in a tree that has a structure of `ArrayPosition`s."""
    if isinstance(structure, ArrayPosition):
        return {int(structure): tree}
    if isinstance(structure, Mapping):
        return {k: x for name, s in structure.items() for k, x in taken(s, tree[name]).items()}
    return {k: x for s, t in zip(structure, tree, strict=True) for k, x in taken(s, t).items()}


def filled(structure: Any, arrays: Sequence[Any]) -> Any:
    """Return a structure of `ArrayPosition`s with arrays in their places."""
    if isinstance(structure, ArrayPosition):
        return arrays[structure]
    if isinstance(structure, Mapping):
        return {name: filled(s, arrays) for name, s in structure.items()}
    return type(structure)(filled(s, arrays) for s in structure)


def encoded(structure: Any) -> Any:
    """Return a structure of `ArrayPosition`s as JSON."""
    if isinstance(structure, ArrayPosition):
        return int(structure)
    if isinstance(structure, Mapping):
        return {"dict": {name: encoded(s) for name, s in structure.items()}}
    return {type(structure).__name__: [encoded(s) for s in structure]}
