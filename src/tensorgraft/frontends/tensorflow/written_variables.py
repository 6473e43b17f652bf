"""The variables that a graph writes, which a loop or a branch has to hand on."""

from __future__ import annotations

from tensorgraft.frontends.tensorflow.graph import FunctionGraph, Value
from tensorgraft.frontends.tensorflow.planning import functions
from tensorgraft.frontends.tensorflow.rule import RULES

_LOOPS = ("While", "StatelessWhile")


def written_arguments(graph: FunctionGraph) -> frozenset[int]:
    """Return the numbers of the arguments that are variables which the graph, or a function that it calls, may
    write."""
    known = graph.memory.get("written")
    if known is None:
        known = graph.memory["written"] = frozenset(_written_arguments(graph))
    return known


def _written_arguments(graph: FunctionGraph) -> set[int]:
    arguments: set[int | None] = set()
    for node in graph.nodes:
        row = RULES.get(node.op)
        if row is not None and row.writes:
            arguments |= {_argument(graph, v) for v in node.inputs if graph.nodes[v[0]].dtypes[v[1]] is None}
        for inner in functions(node):
            before = len(node.inputs) - len(inner.inputs)  # the condition of a branch
            arguments |= {_argument(graph, node.inputs[before + i]) for i in written_arguments(inner)}
    return {i for i in arguments if i is not None}


def _argument(graph: FunctionGraph, value: Value) -> int | None:
    index, k = graph.source(value)
    while graph.nodes[index].op in _LOOPS:
        index, k = graph.source(graph.nodes[index].inputs[k])
    return graph.argument((index, k))
