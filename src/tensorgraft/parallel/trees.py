"""Names of the arrays of a pytree: their paths, with dots."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import optree

from tensorgraft.arrays import framework_of


def jax_of(tree: Any) -> ModuleType | None:
    """Return JAX if a tree contains arrays of it, and is therefore to be flattened by JAX; otherwise None."""
    jax = sys.modules.get("jax")
    holds = jax is not None and any(framework_of(x) == "jax" for x in jax.tree.leaves(tree))
    return jax if holds else None


def flatten(tree: Any) -> tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]:
    """Return ((name, leaf) in order, a function that rebuilds the tree of leaves)."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.Module):  # objects, which may be shared: in place
        named, unflatten = flatten(nnx.state(tree))

        def update(leaves: list[Any]) -> Any:
            nnx.update(tree, unflatten(leaves))
            return tree

        return named, update
    if (jax := jax_of(tree)) is not None:
        pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
        # the last part of a variable's path is its value
        suffix_length = 1 if nnx is not None and isinstance(tree, nnx.State) else 0
        return [
            (_dotted(path[: len(path) - suffix_length]), x) for path, x in pairs
        ], lambda leaves: jax.tree.unflatten(structure, leaves)
    paths, leaves, spec = optree.tree_flatten_with_path(tree)
    named = [(".".join(map(str, path)), x) for path, x in zip(paths, leaves, strict=True)]
    return named, lambda new: optree.tree_unflatten(spec, new)


def _dotted(path: Any) -> str:
    parts = [next((getattr(k, a) for a in ("key", "name", "idx") if hasattr(k, a)), k) for k in path]
    return ".".join(map(str, parts))
