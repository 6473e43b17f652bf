"""Objects among the arguments of a JAX function that it may write: Flax's nnx modules, variables, optimizers, streams
of random keys. They are flattened to their arrays, and updated to the state in which the function leaves them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

_known: dict[type, bool] = {}


def is_object(x: Any) -> bool:
    """Return True for objects of nnx. A class is registered with nnx when it is made, so the answer is cached by
    class."""
    kind = type(x)
    cached = _known.get(kind)
    if cached is None:
        nnx = sys.modules.get("flax.nnx")
        if nnx is None:
            return False
        cached = _known[kind] = kind in nnx.graphlib.GRAPH_REGISTRY or isinstance(x, nnx.Variable)
    return cached


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Call `jax.tree.flatten` with such objects as leaves."""
    return jax.tree.flatten(tree, is_leaf=is_object if "flax.nnx" in sys.modules else None)


class Key:
    """A key whose hash is computed once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self.value is other.value or self.value == other.value)

    def __reduce__(self) -> Any:  # the hash is one of this process
        return Key, (self.value,)


class Objects:
    """Several objects that are flattened together: a value that several of them hold occurs once.

    `values` are arrays, numbers and other leaves; `key` is everything else.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        graphlib = sys.modules["flax.nnx"].graphlib
        self.nodes = list(nodes)
        self._refs = graphlib.RefMap()
        self.graphdef, state = graphlib.flatten(self.nodes, ref_index=self._refs, with_paths=False, graph=True)
        self.values, self.structure = jax.tree.flatten(state)
        self.key = Key((self.graphdef, self.structure))

    def with_values(self, values: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], ObjectsAfter]]:
        """Return (copies of the objects with other values, a function that returns their state after the call, given
        the objects among the results)."""
        graphlib = sys.modules["flax.nnx"].graphlib
        index_map = graphlib.IndexMap()
        leaves_tree = jax.tree.unflatten(self.structure, list(values))
        nodes = graphlib.unflatten(self.graphdef, leaves_tree, index_ref=index_map)
        variable = sys.modules["flax.nnx"].Variable
        before: dict[int, list[int]] = {}  # the values of each variable
        count = 0
        for x in graphlib.flatten(nodes, graph=True)[1].leaves:
            n = len(jax.tree.leaves(_raw(x, variable)))
            before[id(x)] = list(range(count, count + n))
            count += n

        def outcome_of(results: Sequence[Any]) -> ObjectsAfter:
            after, new_leaves = graphlib.flatten(nodes, with_paths=False, graph=True)
            unchanged = not results and (after, jax.tree.structure(new_leaves)) == (self.graphdef, self.structure)
            known = graphlib.RefMap.from_indexmap(index_map)
            graphdef, state = graphlib.flatten(
                [*nodes, *results], ref_index=graphlib.RefMap(), ref_outer_index=known, graph=True
            )
            leaves = list(state.leaves)
            new_leaves, structure = jax.tree.flatten([_raw(x, variable) for x in leaves])
            old: list[int | None] = []
            for x in leaves:
                n, old_positions = len(jax.tree.leaves(_raw(x, variable))), before.get(id(x), [])
                old += old_positions if len(old_positions) == n else [None] * n
            return ObjectsAfter(
                graphdef, structure, new_leaves, list(range(len(new_leaves))) if unchanged else old, unchanged
            )

        return list(nodes), outcome_of

    def update(self, after_call: ObjectsAfter, values: Sequence[Any]) -> list[Any]:
        """Bring the objects to an outcome, with these values; then the results that are objects."""
        graphlib = sys.modules["flax.nnx"].graphlib
        state = jax.tree.unflatten(after_call.structure, list(values))
        index_map = graphlib.IndexMap.from_refmap(self._refs)
        updated = graphlib.unflatten(after_call.graphdef, state, outer_index_outer_ref=index_map)
        return list(updated[len(self.nodes) :])

    def without_objects(self) -> Objects:
        """Return a copy that holds no objects, enough to call a function again."""
        template = object.__new__(Objects)
        template.nodes, template._refs, template.values = [], None, [0] * len(self.values)
        template.graphdef, template.structure, template.key = self.graphdef, self.structure, self.key
        return template

    def attributes(self) -> list[Any]:
        """Return the classes of the objects and of those in them, and their attributes other than variables."""
        nnx = sys.modules["flax.nnx"]
        nodes = [x for _, x in nnx.iter_graph(self.nodes or self.rebuild(), graph=True)]
        values = [value for x in nodes if isinstance(x, nnx.Module) for value in vars(x).values()]
        return [
            *{type(x): None for x in nodes if is_object(x)},
            *(x for x in values if callable(x) and not is_object(x)),
        ]

    def rebuild(self) -> list[Any]:
        """Objects of the same kind."""
        graphlib = sys.modules["flax.nnx"].graphlib
        return list(graphlib.unflatten(self.graphdef, jax.tree.unflatten(self.structure, self.values)))


@dataclass
class ObjectsAfter:
    """The objects as a function has left them, with those that are its results."""

    graphdef: Any
    structure: Any
    values: list[Any]
    old: list[int | None]  # for each value, its position before; None if no object held it
    is_unchanged: bool  # objects hold the same objects, perhaps with other values, and no result is one of them


def _raw(x: Any, variable: Any) -> Any:
    return x.get_raw_value() if isinstance(x, variable) else x
