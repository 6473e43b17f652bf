"""Control flow of `lax` on pytrees of optree, which knows other containers than JAX does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
from jax import lax

Array = Any


class JaxControlFlow:
    barriers = 0  # how many there have been: programs with one are compiled otherwise

    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        leaves: list[Any]
        leaves, tree = optree.tree_flatten(operands)  # type: ignore[arg-type]
        trees: list[Any] = []

        def flat(fn: Callable[..., Any]) -> Callable[..., Any]:
            def branch(*leaves: Array) -> list[Array]:
                out, out_tree = optree.tree_flatten(fn(*optree.tree_unflatten(tree, leaves)))
                trees.append(out_tree)
                return out

            return branch

        out = lax.cond(predicate, flat(true_fn), flat(false_fn), *leaves)
        if trees[0] != trees[-1]:
            raise TypeError(f"cond: the branches return different structures: {trees[0]} and {trees[-1]}")
        return optree.tree_unflatten(trees[0], out)

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        leaves, tree = optree.tree_flatten(init)

        def step(leaves: list[Array]) -> list[Array]:
            return _leaves("while_loop", tree, body(optree.tree_unflatten(tree, leaves)))

        out = lax.while_loop(lambda leaves: condition(optree.tree_unflatten(tree, leaves)), step, leaves)
        return optree.tree_unflatten(tree, out)

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        leaves, tree = optree.tree_flatten(init)
        x_leaves, x_tree = optree.tree_flatten(xs)
        y_trees: list[Any] = []

        def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
            after, y = body(optree.tree_unflatten(tree, carry), optree.tree_unflatten(x_tree, x))
            y_leaves, y_tree = optree.tree_flatten(y)
            y_trees.append(y_tree)
            return _leaves("scan", tree, after), y_leaves

        carry, ys = lax.scan(step, leaves, x_leaves, length=length, reverse=reverse)
        return optree.tree_unflatten(tree, carry), optree.tree_unflatten(y_trees[0], ys)

    def optimization_barrier(self, x: Array, after: Array, /) -> Array:
        self.barriers += 1
        return lax.optimization_barrier((x, after))[0]


def _leaves(name: str, tree: Any, carry: Any) -> list[Array]:
    leaves, after = optree.tree_flatten(carry)
    if after != tree:
        raise TypeError(f"{name}: the body returns the structure {after}, but the loop began with {tree}")
    return leaves
