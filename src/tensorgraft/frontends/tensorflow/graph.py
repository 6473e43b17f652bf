"""Graphs of raw operations, as data. They are read from graphs of TensorFlow; rules and plans work on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Shape = tuple[int | None, ...] | None  # None: not even the number of axes is known
Value = tuple[int, int]  # (position of a node in its graph, number of the node's result)


@dataclass(eq=False)
class GraphNode:
    """A raw operation. `dtypes` has None for results that are no arrays (resources, lists)."""

    name: str
    op: str
    inputs: tuple[Value, ...]
    controls: tuple[int, ...]  # control inputs: nodes that have to run before
    attributes: dict[str, Any]
    shapes: tuple[Shape, ...]
    dtypes: tuple[np.dtype | None, ...]
    place: Callable[[], str]  # returns the file and line of the user's program that created the operation
    stateful: bool = False

    def __str__(self) -> str:
        where = self.place()
        return f"{self.op} {self.name!r}" + (f" ({where})" if where else "")


@dataclass(eq=False)
class FunctionGraph:
    """A function of TensorFlow: its nodes in an order in which they can be run, without those that nothing uses."""

    name: str
    nodes: list[GraphNode]
    inputs: list[int]  # the nodes that represent the arguments
    outputs: list[Value]
    memory: dict[Any, Any] = field(default_factory=dict)  # results of analyses of the graph, such as its plan

    def source(self, value: Value) -> Value:
        """Return the value that was computed, if nodes such as Identity have passed it on."""
        node = self.nodes[value[0]]
        while node.op in ("Identity", "IdentityN", "StopGradient", "PreventGradient"):
            value = node.inputs[value[1] if node.op == "IdentityN" else 0]
            node = self.nodes[value[0]]
        return value

    def argument(self, value: Value) -> int | None:
        """Return the number of the argument that a value is (see `source`), or None for a value that is computed."""
        index = self.source(value)[0]
        return self._arguments.get(index)

    @functools.cached_property
    def _arguments(self) -> dict[int, int]:
        return {index: i for i, index in enumerate(self.inputs)}

    def part(self, outputs: Sequence[Value], effects: bool = True) -> FunctionGraph:
        """Return the function of the same arguments that computes only these values; with `effects`, it also runs the
        control inputs of their nodes."""
        live = {index for index, _ in outputs}
        for index in reversed(range(len(self.nodes))):
            if index in live:
                node = self.nodes[index]
                live |= {p for p, _ in node.inputs} | (set(node.controls) if effects else set())
        kept_indices = sorted(live | set(self.inputs))
        new_index = {old: new for new, old in enumerate(kept_indices)}
        nodes = [_renumbered(self.nodes[old], new_index) for old in kept_indices]
        inputs = [new_index[i] for i in self.inputs]
        return FunctionGraph(self.name, nodes, inputs, [(new_index[p], k) for p, k in outputs])

    def split(self, late_inputs: Sequence[int]) -> tuple[FunctionGraph, FunctionGraph, list[int]]:
        """Split the function at arguments that are known later than the others.

        Returns (first, second, positions). `first` takes the early arguments, and returns the outputs that depend on
        these only, followed by the values that `second` reads. `second` takes these values and the late arguments, and
        returns the remaining outputs, whose positions among all outputs are `positions`.
        """
        late_nodes = {self.inputs[i] for i in late_inputs}
        for index, node in enumerate(self.nodes):
            if any(p in late_nodes for p, _ in node.inputs):
                late_nodes.add(index)
        ends = [k for k, (index, _) in enumerate(self.outputs) if index in late_nodes]
        values_read = [v for p in sorted(late_nodes) for v in self.nodes[p].inputs]
        passed_values = list(dict.fromkeys(v for v in values_read if v[0] not in late_nodes))
        early_nodes = [index for index in range(len(self.nodes)) if index not in late_nodes]
        new_index = {old: new for new, old in enumerate(early_nodes)}
        early_outputs = [v for v in self.outputs if v[0] not in late_nodes]
        first = FunctionGraph(
            self.name,
            [_renumbered(self.nodes[old], new_index) for old in early_nodes],
            [new_index[index] for i, index in enumerate(self.inputs) if i not in late_inputs],
            [(new_index[p], k) for p, k in (*early_outputs, *passed_values)],
        )
        placeholders = [_placeholder(self.nodes[p], k) for p, k in passed_values]
        order = sorted(late_nodes)
        new_values: dict[Value, Value] = {v: (i, 0) for i, v in enumerate(passed_values)}
        for new, old in enumerate(order):
            new_values |= {(old, k): (len(passed_values) + new, k) for k in range(len(self.nodes[old].dtypes))}
        nodes = [*placeholders, *(_with_inputs(self.nodes[old], new_values) for old in order)]
        inputs = [*range(len(passed_values)), *(new_values[self.inputs[i], 0][0] for i in late_inputs)]
        return first, FunctionGraph(self.name, nodes, inputs, [new_values[self.outputs[k]] for k in ends]), ends


def _placeholder(node: GraphNode, k: int) -> GraphNode:
    """Return a node that represents result `k` of another graph's node."""
    return GraphNode(f"{node.name}:{k}", "Placeholder", (), (), {}, (node.shapes[k],), (node.dtypes[k],), node.place)


def _with_inputs(node: GraphNode, new_values: dict[Value, Value]) -> GraphNode:
    return replace(node, inputs=tuple(new_values[v] for v in node.inputs), controls=())


def _renumbered(node: GraphNode, new_index: dict[int, int]) -> GraphNode:
    inputs = tuple((new_index[p], k) for p, k in node.inputs)
    return replace(node, inputs=inputs, controls=tuple(new_index[p] for p in node.controls if p in new_index))
