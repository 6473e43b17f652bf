"""Graphs of raw operations, as data: what is read of TensorFlow's, and what rules and plans work on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
        """Return the origin of a value, through nodes that pass it on."""
        node = self.nodes[value[0]]
        while node.op in ("Identity", "IdentityN", "StopGradient", "PreventGradient"):
            value = node.inputs[value[1] if node.op == "IdentityN" else 0]
            node = self.nodes[value[0]]
        return value

    def argument(self, value: Value) -> int | None:
        """Return the number of the argument that a value is, through nodes that pass it on; None if it is computed."""
        place = self.source(value)[0]
        return self._arguments.get(place)

    @functools.cached_property
    def _arguments(self) -> dict[int, int]:
        return {place: i for i, place in enumerate(self.inputs)}

    def part(self, outputs: Sequence[Value], effects: bool = True) -> FunctionGraph:
        """Return the function of the same arguments that computes these values alone; with `effects`, also what has to
        happen before them."""
        wanted = {place for place, _ in outputs}
        for place in reversed(range(len(self.nodes))):
            if place in wanted:
                node = self.nodes[place]
                wanted |= {p for p, _ in node.inputs} | (set(node.controls) if effects else set())
        kept = sorted(wanted | set(self.inputs))
        at = {old: new for new, old in enumerate(kept)}
        nodes = [_renumbered(self.nodes[old], at) for old in kept]
        return FunctionGraph(self.name, nodes, [at[i] for i in self.inputs], [(at[p], k) for p, k in outputs])

    def split(self, late: Sequence[int]) -> tuple[FunctionGraph, FunctionGraph, list[int]]:
        """Split in two, for arguments that come later: (the function of the others, which gives what the second one
        reads of it; the second one, of that and of the late arguments; the positions of outputs of the second). Outputs
        that are not late are the first ones of the first."""
        behind = {self.inputs[i] for i in late}
        for place, node in enumerate(self.nodes):
            if any(p in behind for p, _ in node.inputs):
                behind.add(place)
        ends = [k for k, (place, _) in enumerate(self.outputs) if place in behind]
        asked = [v for p in sorted(behind) for v in self.nodes[p].inputs]
        cut = list(dict.fromkeys(v for v in asked if v[0] not in behind))
        early = [place for place in range(len(self.nodes)) if place not in behind]
        at = {old: new for new, old in enumerate(early)}
        first = FunctionGraph(
            self.name,
            [_renumbered(self.nodes[old], at) for old in early],
            [at[place] for i, place in enumerate(self.inputs) if i not in late],
            [(at[p], k) for p, k in (*(v for v in self.outputs if v[0] not in behind), *cut)],
        )
        handed = [_placeholder(self.nodes[p], k) for p, k in cut]
        order = sorted(behind)
        places: dict[Value, Value] = {v: (i, 0) for i, v in enumerate(cut)}
        for new, old in enumerate(order):
            places |= {(old, k): (len(cut) + new, k) for k in range(len(self.nodes[old].dtypes))}
        nodes = [*handed, *(_with_inputs(self.nodes[old], places) for old in order)]
        inputs = [*range(len(cut)), *(places[self.inputs[i], 0][0] for i in late)]
        return first, FunctionGraph(self.name, nodes, inputs, [places[self.outputs[k]] for k in ends]), ends


def _placeholder(node: GraphNode, k: int) -> GraphNode:
    return GraphNode(f"{node.name}:{k}", "Placeholder", (), (), {}, (node.shapes[k],), (node.dtypes[k],), node.place)


def _with_inputs(node: GraphNode, places: dict[Value, Value]) -> GraphNode:
    return replace(node, inputs=tuple(places[v] for v in node.inputs), controls=())


def _renumbered(node: GraphNode, at: dict[int, int]) -> GraphNode:
    inputs = tuple((at[p], k) for p, k in node.inputs)
    return replace(node, inputs=inputs, controls=tuple(at[p] for p in node.controls if p in at))
