"""Graphs of raw operations, as data: what is read of TensorFlow's, and what rules and plans work on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int | None, ...] | None  # None: not even the number of axes is known
Value = tuple[int, int]  # a node's place in its graph, and which of its results


@dataclass(eq=False)
class GraphNode:
    """A raw operation. `dtypes` has None for results that are no arrays (resources, lists)."""

    name: str
    op: str
    inputs: tuple[Value, ...]
    controls: tuple[int, ...]
    attributes: dict[str, Any]
    shapes: tuple[Shape, ...]
    dtypes: tuple[np.dtype | None, ...]
    place: Callable[[], str]  # file and line of the user's that made it
    stateful: bool = False

    def __str__(self) -> str:
        where = self.place()
        return f"{self.op} {self.name!r}" + (f" ({where})" if where else "")


@dataclass(eq=False)
class FunctionGraph:
    """A function of TensorFlow: nodes in an order in which they can be run, those that nothing asks for left out."""

    name: str
    nodes: list[GraphNode]
    inputs: list[int]  # the nodes that stand for arguments
    outputs: list[Value]
    memory: dict[Any, Any] = field(default_factory=dict)  # what was found out about it

    def source(self, value: Value) -> Value:
        """Where a value comes from, through nodes that hand it on."""
        node = self.nodes[value[0]]
        while node.op in ("Identity", "IdentityN", "StopGradient", "PreventGradient"):
            value = node.inputs[value[1] if node.op == "IdentityN" else 0]
            node = self.nodes[value[0]]
        return value

    def argument(self, value: Value) -> int | None:
        """Which argument a value is, handed on; None for what is computed."""
        place = self.source(value)[0]
        return self._arguments.get(place)

    @functools.cached_property
    def _arguments(self) -> dict[int, int]:
        return {place: i for i, place in enumerate(self.inputs)}

    def part(self, outputs: Sequence[Value], effects: bool = True) -> FunctionGraph:
        """The function of the same arguments that computes these values alone; with what has to happen before, if
        there are to be `effects`."""
        wanted = {place for place, _ in outputs}
        for place in reversed(range(len(self.nodes))):
            if place in wanted:
                node = self.nodes[place]
                wanted |= {p for p, _ in node.inputs} | (set(node.controls) if effects else set())
        kept = sorted(wanted | set(self.inputs))
        at = {old: new for new, old in enumerate(kept)}
        nodes = [_moved(self.nodes[old], at) for old in kept]
        return FunctionGraph(self.name, nodes, [at[i] for i in self.inputs], [(at[p], k) for p, k in outputs])


def _moved(node: GraphNode, at: dict[int, int]) -> GraphNode:
    return GraphNode(
        node.name,
        node.op,
        tuple((at[p], k) for p, k in node.inputs),
        tuple(at[p] for p in node.controls if p in at),
        node.attributes,
        node.shapes,
        node.dtypes,
        node.place,
        node.stateful,
    )
