"""Random operations whose state TensorFlow's kernels hold: here it is a variable of the program.

Each kernel has a Philox generator, which starts with the seeds of its node and continues from call to call, and from
one step of a loop to the next. `with_states` adds the state to the operands of such a node, as an argument of the
graph; bodies of loops and branches receive it as an argument. A function that is called twice has two kernels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode

OWN_STATE = frozenset(
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "Multinomial",
        "NonDeterministicInts",
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "UniformCandidateSampler",
        "FractionalAvgPool",
        "FractionalMaxPool",
        "ParameterizedTruncatedNormal",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
    ]
)
_LOOPS = ("While", "StatelessWhile")


@dataclass(frozen=True)
class KernelState:
    """The state of one node: its name, and the seeds that it begins with. (0, 0) is another beginning each time."""

    name: str
    seeds: tuple[int, int]

    def first(self) -> np.ndarray:
        """Return a counter of 128 bits and a key, as those of `tf.random.Generator`."""
        seed, second = self.seeds if any(self.seeds) else np.frombuffer(os.urandom(16), np.int64).tolist()
        return np.asarray([0, second, seed], np.int64)


def with_states(graph: FunctionGraph) -> tuple[FunctionGraph, tuple[KernelState, ...]]:
    """Return a graph of more arguments, at the end, which are the states that its nodes, and those inside, read and
    write."""
    known = graph.memory.get("states")
    if known is None:
        known = graph.memory["states"] = _with_states(graph)
    return known


def _with_states(graph: FunctionGraph) -> tuple[FunctionGraph, tuple[KernelState, ...]]:
    states: list[KernelState] = []
    nodes: list[GraphNode] = []
    count = len(graph.nodes)
    for node in graph.nodes:
        own_states, attributes = _states_of(node)
        if own_states:
            state_inputs = tuple((count + len(states) + i, 0) for i in range(len(own_states)))
            extra = len(own_states) if node.op in _LOOPS else 0
            node = replace(
                node,
                inputs=node.inputs + state_inputs,
                attributes=attributes,
                shapes=node.shapes + ((),) * extra,
                dtypes=node.dtypes + (None,) * extra,
            )
            states += own_states
        nodes.append(node)
    if not states:
        return graph, ()
    return _extended(replace(graph, nodes=nodes, memory={}), states), tuple(states)


def _extended(graph: FunctionGraph, states: Sequence[KernelState]) -> FunctionGraph:
    """Return the graph with an argument for each state."""
    count = len(graph.nodes)
    state_nodes = [GraphNode(s.name, "Placeholder", (), (), {}, ((),), (None,), str) for s in states]
    inputs = [*graph.inputs, *range(count, count + len(state_nodes))]
    return FunctionGraph(graph.name, [*graph.nodes, *state_nodes], inputs, graph.outputs)


def _states_of(node: GraphNode) -> tuple[list[KernelState], dict[str, Any]]:
    """Return the states of a node and of the functions that it calls, and its attributes with functions that take
    all."""
    if node.op in OWN_STATE:
        seeds = (int(node.attributes.get("seed", 0)), int(node.attributes.get("seed2", 0)))
        return [KernelState(node.name, seeds)], node.attributes
    parts: list[tuple[FunctionGraph, FunctionGraph, tuple[KernelState, ...]]] = []
    for value in node.attributes.values():
        for f in value if isinstance(value, tuple) else (value,):
            if isinstance(f, FunctionGraph):
                parts.append((f, *with_states(f)))
    all_states = [s for _, _, own_states in parts for s in own_states]
    if not all_states:
        return [], node.attributes
    widened: dict[int, FunctionGraph] = {}
    before = 0
    for original, inner, own_states in parts:
        widened[id(original)] = _with_sibling_states(original, inner, own_states, all_states, before, node.op in _LOOPS)
        before += len(own_states)

    def other(value: Any) -> Any:
        return widened[id(value)] if isinstance(value, FunctionGraph) else value

    attributes = {
        name: tuple(map(other, value)) if isinstance(value, tuple) else other(value)
        for name, value in node.attributes.items()
    }
    return all_states, attributes


def _with_sibling_states(
    original: FunctionGraph,
    inner: FunctionGraph,
    own_states: Sequence[KernelState],
    all_states: Sequence[KernelState],
    before: int,
    loops: bool,
) -> FunctionGraph:
    """Return a function that takes the states of its siblings, too, and hands all on where it is the body of a loop."""
    takes = len(original.inputs)
    front = _extended(inner, all_states[:before])
    extended = _extended(front, all_states[before + len(own_states) :])
    inputs = extended.inputs
    own_inputs = inputs[takes : takes + len(own_states)]
    sibling_inputs = inputs[takes + len(own_states) :]
    states = [*sibling_inputs[:before], *own_inputs, *sibling_inputs[before:]]
    outputs = list(extended.outputs)
    if loops and len(outputs) == takes:  # the body; the condition gives a truth
        outputs += [(index, 0) for index in states]
    return FunctionGraph(extended.name, extended.nodes, [*inputs[:takes], *states], outputs)
