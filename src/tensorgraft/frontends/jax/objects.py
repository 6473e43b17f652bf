"""Objects among the arguments of a JAX function that it may write: Flax's nnx modules, variables, optimizers, streams
of random keys. They are taken apart into the arrays that they hold, and brought to what the function has made of them.
"""

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
    answer = _known.get(kind)
    if answer is None:
        nnx = sys.modules.get("flax.nnx")
        if nnx is None:
            return False
        answer = _known[kind] = kind in nnx.graphlib.GRAPH_REGISTRY or isinstance(x, nnx.Variable)
    return answer


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Call `jax.tree.flatten` with such objects as leaves."""
    return jax.tree.flatten(tree, is_leaf=is_object if "flax.nnx" in sys.modules else None)


class Key:
    """Something to look up by, whose hash is computed once."""

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
    """Some objects, taken apart together: what several of them hold is one value.

    `values` are arrays, numbers, and whatever else is held; `key` is everything but these.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        graphlib = sys.modules["flax.nnx"].graphlib
        self.nodes = list(nodes)
        self._refs = graphlib.RefMap()
        self.graphdef, held = graphlib.flatten(self.nodes, ref_index=self._refs, with_paths=False, graph=True)
        self.values, self.structure = jax.tree.flatten(held)
        self.key = Key((self.graphdef, self.structure))

    def inside(self, values: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], ObjectsAfter]]:
        """Return (the same objects with other values, what tells what became of them once more objects are results)."""
        graphlib = sys.modules["flax.nnx"].graphlib
        places = graphlib.IndexMap()
        held = jax.tree.unflatten(self.structure, list(values))
        nodes = graphlib.unflatten(self.graphdef, held, index_ref=places)
        variable = sys.modules["flax.nnx"].Variable
        before: dict[int, list[int]] = {}  # the values of each variable
        count = 0
        for x in graphlib.flatten(nodes, graph=True)[1].leaves:
            n = len(jax.tree.leaves(_raw(x, variable)))
            before[id(x)] = list(range(count, count + n))
            count += n

        def outcome(results: Sequence[Any]) -> ObjectsAfter:
            now, after = graphlib.flatten(nodes, with_paths=False, graph=True)
            same = not results and (now, jax.tree.structure(after)) == (self.graphdef, self.structure)
            known = graphlib.RefMap.from_indexmap(places)
            graphdef, state = graphlib.flatten(
                [*nodes, *results], ref_index=graphlib.RefMap(), ref_outer_index=known, graph=True
            )
            leaves = list(state.leaves)
            after, structure = jax.tree.flatten([_raw(x, variable) for x in leaves])
            old: list[int | None] = []
            for x in leaves:
                n, was = len(jax.tree.leaves(_raw(x, variable))), before.get(id(x), [])
                old += was if len(was) == n else [None] * n
            return ObjectsAfter(graphdef, structure, after, list(range(len(after))) if same else old, same)

        return list(nodes), outcome

    def update(self, outcome: ObjectsAfter, values: Sequence[Any]) -> list[Any]:
        """Bring the objects to an outcome, with these values; then the results that are objects."""
        graphlib = sys.modules["flax.nnx"].graphlib
        held = jax.tree.unflatten(outcome.structure, list(values))
        places = graphlib.IndexMap.from_refmap(self._refs)
        updated = graphlib.unflatten(outcome.graphdef, held, outer_index_outer_ref=places)
        return list(updated[len(self.nodes) :])

    def without_objects(self) -> Objects:
        """Return a copy that holds no objects, enough to call a function again."""
        held = object.__new__(Objects)
        held.nodes, held._refs, held.values = [], None, [0] * len(self.values)
        held.graphdef, held.structure, held.key = self.graphdef, self.structure, self.key
        return held

    def again(self) -> list[Any]:
        """Objects of the same kind."""
        graphlib = sys.modules["flax.nnx"].graphlib
        return list(graphlib.unflatten(self.graphdef, jax.tree.unflatten(self.structure, self.values)))


@dataclass
class ObjectsAfter:
    """The objects as a function has left them, with those that are its results."""

    graphdef: Any
    structure: Any
    values: list[Any]
    old: list[int | None]  # of each value: which it was before, None where that was held by nothing
    same: bool  # objects hold what they held, other values perhaps, and no result is one


def _raw(x: Any, variable: Any) -> Any:
    return x.get_raw_value() if isinstance(x, variable) else x
