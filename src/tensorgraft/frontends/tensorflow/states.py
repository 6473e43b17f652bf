"""Random operations of which TensorFlow's kernels hold the state: here it is a variable of the program.

Each kernel has a Philox generator, which begins with the seeds of its node and goes on from call to call, and from one
step of a loop to the next. `with_states` hands such a node one more operand, the state, from an argument of the graph;
bodies of loops and branches get theirs handed in. What is called twice has two kernels.
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
        """A counter of 128 bits and a key, as those of `tf.random.Generator`."""
        seed, second = self.seeds if any(self.seeds) else np.frombuffer(os.urandom(16), np.int64).tolist()
        return np.asarray([0, second, seed], np.int64)


def with_states(graph: FunctionGraph) -> tuple[FunctionGraph, tuple[KernelState, ...]]:
    """A graph of more arguments, at the end, which are the states that its nodes, and those inside, read and write."""
    known = graph.memory.get("states")
    if known is None:
        known = graph.memory["states"] = _with_states(graph)
    return known


def _with_states(graph: FunctionGraph) -> tuple[FunctionGraph, tuple[KernelState, ...]]:
    states: list[KernelState] = []
    nodes: list[GraphNode] = []
    count = len(graph.nodes)
    for node in graph.nodes:
        own, attributes = _states_of(node)
        if own:
            handed = tuple((count + len(states) + i, 0) for i in range(len(own)))
            more = len(own) if node.op in _LOOPS else 0
            node = replace(
                node,
                inputs=node.inputs + handed,
                attributes=attributes,
                shapes=node.shapes + ((),) * more,
                dtypes=node.dtypes + (None,) * more,
            )
            states += own
        nodes.append(node)
    if not states:
        return graph, ()
    return _extended(replace(graph, nodes=nodes, memory={}), states), tuple(states)


def _extended(graph: FunctionGraph, states: Sequence[KernelState]) -> FunctionGraph:
    """Return the graph with an argument for each state."""
    count = len(graph.nodes)
    more = [GraphNode(s.name, "Placeholder", (), (), {}, ((),), (None,), str) for s in states]
    inputs = [*graph.inputs, *range(count, count + len(more))]
    return FunctionGraph(graph.name, [*graph.nodes, *more], inputs, graph.outputs)


def _states_of(node: GraphNode) -> tuple[list[KernelState], dict[str, Any]]:
    """The states of a node and of the functions that it calls, and its attributes with functions that take all."""
    if node.op in OWN_STATE:
        seeds = (int(node.attributes.get("seed", 0)), int(node.attributes.get("seed2", 0)))
        return [KernelState(node.name, seeds)], node.attributes
    parts: list[tuple[FunctionGraph, FunctionGraph, tuple[KernelState, ...]]] = []
    for value in node.attributes.values():
        for f in value if isinstance(value, tuple) else (value,):
            if isinstance(f, FunctionGraph):
                parts.append((f, *with_states(f)))
    everything = [s for _, _, own in parts for s in own]
    if not everything:
        return [], node.attributes
    widened: dict[int, FunctionGraph] = {}
    before = 0
    for original, inner, own in parts:
        widened[id(original)] = _with_sibling_states(original, inner, own, everything, before, node.op in _LOOPS)
        before += len(own)

    def other(value: Any) -> Any:
        return widened[id(value)] if isinstance(value, FunctionGraph) else value

    attributes = {
        name: tuple(map(other, value)) if isinstance(value, tuple) else other(value)
        for name, value in node.attributes.items()
    }
    return everything, attributes


def _with_sibling_states(
    original: FunctionGraph,
    inner: FunctionGraph,
    own: Sequence[KernelState],
    everything: Sequence[KernelState],
    before: int,
    loops: bool,
) -> FunctionGraph:
    """A function that takes the states of its siblings, too, and hands all on where it is the body of a loop."""
    takes = len(original.inputs)
    front = _extended(inner, everything[:before])
    whole = _extended(front, everything[before + len(own) :])
    inputs = whole.inputs
    mine = inputs[takes : takes + len(own)]
    others = inputs[takes + len(own) :]
    states = [*others[:before], *mine, *others[before:]]
    outputs = list(whole.outputs)
    if loops and len(outputs) == takes:  # the body; the condition gives a truth
        outputs += [(place, 0) for place in states]
    return FunctionGraph(whole.name, whole.nodes, [*inputs[:takes], *states], outputs)
