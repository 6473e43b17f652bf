"""Partition of a graph into stages that TensorFlow computes (iterators, strings, checks, operations without a rule) and
stages that the backend computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Value
from tensorgraft.frontends.tensorflow.planning import CALLS, HANDED_ON, UnsupportedOperationError, functions, has_effect
from tensorgraft.frontends.tensorflow.rule import RULES
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import BY_TENSORFLOW
from tensorgraft.frontends.tensorflow.states import OWN_STATE

BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
# Their rules return the operand, as a compiled program raises no exceptions. TensorFlow checks, unless XLA compiles it.
CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2")
ASKED_OF_TENSORFLOW = ("VarIsInitializedOp",)
_OBJECTS = ("Table", "Iterator", "Dataset")  # TensorFlow's, whatever rules there are for graphs
_ITERATES = "iterates"
_ELSEWHERE = (*CALLS, *HANDED_ON, "IdentityN", "Const", "Placeholder", "NoOp", "ControlTrigger")
_SAME = ("Identity", "IdentityN", "StopGradient", "PreventGradient")
_NOTHING = ("NoOp", "ControlTrigger")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_LIGHT = 16  # elements, at most, of a result that either side computes for itself


class Level(NamedTuple):
    """The position of a stage: stages of TensorFlow and of the backend alternate, TensorFlow's first."""

    turn: int
    on_backend: bool


_END = Level(-1, True)  # the reader of the graph's results


def note_iterators(graph: FunctionGraph) -> None:
    """Note whether a function reads an iterator. If so, its optionals hold elements of the iterator, and TensorFlow
    computes them. (Other optionals hold residuals of branches.)"""
    graphs = [graph]
    for g in graphs:
        graphs += [inner for node in g.nodes for inner in functions(node) if inner not in graphs]
    if any("Iterator" in node.op for g in graphs for node in g.nodes):
        for g in graphs:
            g.memory[_ITERATES] = True


def is_left(graph: FunctionGraph, node: GraphNode, compiled: bool) -> bool:
    """Return True if TensorFlow computes the node. Checks do not count if `compiled` (by XLA), since XLA drops them."""
    if node.op in CHECKS:
        return not compiled
    if node.op in ASKED_OF_TENSORFLOW or any(kind in node.op for kind in _OBJECTS):
        return True
    if "Optional" in node.op and graph.memory.get(_ITERATES, False):
        return True
    if node.op in _ELSEWHERE:
        return False
    if node.op not in RULES or node.op in BY_TENSORFLOW or node.op in OWN_STATE:  # states are shared with other graphs
        return True
    return any(_is_text(graph.nodes[p].dtypes[k]) for p, k in node.inputs) or any(map(_is_text, node.dtypes))


def _is_text(dtype: np.dtype | None) -> bool:
    return dtype is not None and dtype.kind in "OSU"


def is_mixed(graph: FunctionGraph, compiled: bool, of_call: Callable[[GraphNode], bool]) -> bool:
    """Return True if TensorFlow computes some node of the graph. `of_call`: whether XLA compiles the function that a
    node calls."""
    key = "mixed", compiled
    if key not in graph.memory:
        graph.memory[key] = any(is_left(graph, n, compiled) or calls_mixed(n, compiled, of_call) for n in graph.nodes)
    return graph.memory[key]


def calls_mixed(node: GraphNode, compiled: bool, of_call: Callable[[GraphNode], bool]) -> bool:
    return any(is_mixed(inner, compiled or of_call(node), of_call) for inner in functions(node))


@dataclass
class ProgramStage:
    """Nodes that are computed together. A stage of the backend is a separate graph of `arguments`, first arrays, then
    resources; `results` are the values that other stages read."""

    nodes: list[int]
    graph: FunctionGraph | None = None  # None: TensorFlow's
    arguments: Sequence[Value] = ()
    arrays: int = 0
    results: Sequence[Value] = ()


def single_stage(graph: FunctionGraph) -> list[ProgramStage]:
    """Return the single stage of a graph that the backend computes; no stage if the graph only returns its arguments.
    Raises UnsupportedOperationError for results that are no arrays."""
    inputs: list[Value] = [(index, 0) for index in graph.inputs]
    order = [v for v in inputs if _is_array(graph, v)] + [v for v in inputs if not _is_array(graph, v)]
    results = [
        v
        for v in dict.fromkeys(map(graph.source, graph.outputs))
        if graph.argument(v) is None and graph.nodes[v[0]].op != "Const"
    ]
    if not results and not any(map(has_effect, graph.nodes)):
        return []
    _refuse_lists(graph, results)
    backend_graph = FunctionGraph(graph.name, graph.nodes, [index for index, _ in order], results)
    return [ProgramStage([], backend_graph, order, sum(_is_array(graph, v) for v in order), results)]


def stages(graph: FunctionGraph, hosted: Sequence[bool]) -> list[ProgramStage]:
    """Return the stages of a graph in order; `hosted` tells for each node whether TensorFlow computes it.

    Shapes and small integers belong to no stage: each stage that reads them computes them again, so that shapes are
    known when it is planned. Raises UnsupportedOperationError if values other than arrays would pass between the two.
    """
    inputs = set(graph.inputs)
    cheap = _cheap_nodes(graph, hosted)
    level: list[Level] = []
    for index, node in enumerate(graph.nodes):
        earliest = max((level[p] for p in (*(p for p, _ in node.inputs), *node.controls)), default=Level(0, False))
        if index not in inputs and index not in cheap and node.op not in (*_SAME, *_NOTHING):
            after_backend = hosted[index] and earliest.on_backend
            earliest = Level(earliest.turn + after_backend, on_backend=not hosted[index])
        level.append(earliest)

    real = [
        index
        for index, node in enumerate(graph.nodes)
        if index not in inputs and index not in cheap and node.op not in (*_SAME, *_NOTHING)
    ]
    readers: dict[int, set[Level]] = {}  # cheap node -> the levels that read it
    users: dict[Value, set[Level]] = {}

    def add_user(value: Value, by: set[Level]) -> None:
        source = graph.source(value)
        users.setdefault(source, set()).update(by)
        if source[0] in cheap:
            readers.setdefault(source[0], set()).update(by)

    for value in graph.outputs:
        add_user(value, {_END})
    computed = set(real)
    for index in reversed(range(len(graph.nodes))):
        by = {level[index]} if index in computed else readers.get(index, set())
        if by and (index in computed or index in cheap):
            for value in graph.nodes[index].inputs:
                add_user(value, by)
    out = []
    for k in sorted({level[index] for index in real}):
        indices = [index for index in real if level[index] == k]
        out.append(_of_backend(graph, indices, cheap, users, k) if k.on_backend else ProgramStage(indices))
    return out


def _cheap_nodes(graph: FunctionGraph, hosted: Sequence[bool]) -> set[int]:
    """Return constants, shapes, and small integers computed from these, from arguments or TensorFlow's results."""
    inputs, cheap = set(graph.inputs), set()
    for index, node in enumerate(graph.nodes):
        if index in inputs or hosted[index]:
            continue
        if node.op == "Const" or node.op in _SHAPES:
            cheap.add(index)
        elif node.op in RULES and RULES[node.op].folds and not node.stateful and _is_small(node):
            sources = [graph.source(v)[0] for v in node.inputs]
            if all(p in cheap or p in inputs or hosted[p] for p in sources) and not functions(node):
                cheap.add(index)
    return cheap


def _is_small(node: GraphNode) -> bool:
    return all(
        dtype is not None
        and dtype.kind in "biu"
        and shape is not None
        and None not in shape
        and math.prod(n or 0 for n in shape) <= _LIGHT
        for shape, dtype in zip(node.shapes, node.dtypes, strict=True)
    )


def _of_backend(
    graph: FunctionGraph, indices: list[int], cheap: set[int], users: dict[Value, set[Level]], level: Level
) -> ProgramStage:
    included, stack = set(indices), list(indices)
    while stack:  # add cheap nodes that these read
        for value in graph.nodes[stack.pop()].inputs:
            index = graph.source(value)[0]
            if index in cheap and index not in included:
                included.add(index)
                stack.append(index)
    order = sorted(included)
    inputs_read = [graph.source(v) for p in order for v in graph.nodes[p].inputs]
    crossing = list(dict.fromkeys(v for v in inputs_read if v[0] not in included))
    arguments = [v for v in crossing if _is_array(graph, v)] + [v for v in crossing if not _is_array(graph, v)]
    results = [
        v for p in indices for v in ((p, k) for k in range(len(graph.nodes[p].dtypes))) if users.get(v, set()) - {level}
    ]
    _refuse_lists(graph, results)
    at = {v: (i, 0) for i, v in enumerate(arguments)}
    for new, old in enumerate(order, len(arguments)):
        at |= {(old, k): (new, k) for k in range(len(graph.nodes[old].dtypes))}
    placeholders = [_argument(graph.nodes[p], k) for p, k in arguments]
    nodes = [
        replace(graph.nodes[p], inputs=tuple(at[graph.source(v)] for v in graph.nodes[p].inputs), controls=())
        for p in order
    ]
    inner = FunctionGraph(graph.name, [*placeholders, *nodes], [*range(len(arguments))], [at[v] for v in results])
    return ProgramStage(indices, inner, arguments, sum(_is_array(graph, v) for v in arguments), results)


def _argument(node: GraphNode, k: int) -> GraphNode:
    return GraphNode(f"{node.name}:{k}", "Placeholder", (), (), {}, (node.shapes[k],), (node.dtypes[k],), node.place)


def _is_array(graph: FunctionGraph, value: Value) -> bool:
    return graph.nodes[value[0]].dtypes[value[1]] is not None


def _refuse_lists(graph: FunctionGraph, values: Sequence[Value]) -> None:
    for index, k in values:
        if graph.nodes[index].dtypes[k] is None:
            raise UnsupportedOperationError(
                f"{graph.nodes[index]} passes a tensor list, or another variant, from TensorFlow to the backend or back"
            )
