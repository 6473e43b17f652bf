"""Comparison of whole programs: results at several sizes, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.program import SourceProgram, by_path
from tensorgraft.codegen.trace import SourceTrace, Var, variables
from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.computed import Computations, fold
from tensorgraft.porting.expressions import Concatenation, Expression, Negative, Sum, View
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.nodes import ValueNode, evaluate, numpy_backend
from tensorgraft.porting.report import Comparison
from tensorgraft.porting.values import layouts, relative_difference

FORWARD, GRADIENT = 1e-5, 1e-4  # of the largest value, as for generated source


class ProgramAtSizes:
    """A program with an example of its arguments, and graphs of it at several sizes."""

    def __init__(
        self, program: SourceProgram, args: tuple[Any, ...], takes_weights: bool = False, folds: bool = False
    ) -> None:
        """`takes_weights`: the first argument is a pytree of the weights. `folds`: weights that the program computes of
        its parameters are parameters of the graph."""
        self.program, self._takes_weights, self._folds = program, takes_weights, folds
        self.names: list[str] = []  # of the program's parameters
        self.computed: Computations = {}  # those of the graph that the program computes
        self._arrays, self._rebuild = program.flatten(args, {})
        self.trace = program.trace(args, {})
        self.graph = self._graph(self.trace, self._arrays)
        self.weights = {k: np.asarray(v) for k, v in self.trace.weights.items()}
        self.aliases = dict(self.trace.aliases)

    def _graph(self, trace: SourceTrace, arrays: list[Any]) -> ProgramGraph:
        values = [self.program.numpy(x) for x in arrays]
        if self._takes_weights and not trace.weights:
            (_, tree), *trace.arguments = trace.arguments
            named = {id(var): name for name, var in by_path(tree).items() if type(var) is Var}
            leaves = list(variables(tree))
            trace.parameters = {named[id(var)]: var for var in leaves}
            trace.weights = {named[id(var)]: x for var, x in zip(leaves, values, strict=False)}
            values = values[len(leaves) :]
        graph = ProgramGraph(trace, values)
        self.names = list(graph.parameters)
        if self._folds:
            self.computed = fold(graph)
        return graph

    def with_computed(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Weights by name, and those that the program computes of them."""
        return {**weights, **{name: e(weights.__getitem__) for name, e in self.computed.items()}}

    def with_batch(self, more: int) -> tuple[ProgramGraph, int] | None:
        """The program with a batch of so many more, and its size; None for a program without a batch."""
        sizes = {x.shape[0] for x in self._arrays if len(x.shape) > 1}
        if len(sizes) != 1:
            return None
        size = sizes.pop() + more
        arrays = [self.program.resized(x, (size, *x.shape[1:])) if len(x.shape) > 1 else x for x in self._arrays]
        args, kwargs = self._rebuild(arrays)
        return self._graph(self.program.trace(args, kwargs), arrays), size


def outputs(graph: ProgramGraph, parameters: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a program."""
    found = _run(graph, parameters, numpy_backend())
    return [np.asarray(found[n]) for n in graph.outputs]


def _run(graph: ProgramGraph, parameters: Mapping[str, Any], xp: Any) -> dict[ValueNode, Any]:
    values: dict[ValueNode, Any] = {}
    computed_calls: dict[int, Any] = {}
    for node in graph.nodes:
        if node.op == "parameter":
            values[node] = parameters.get(node.name)  # None for one that has no use
        elif node.value is not None:
            values[node] = xp.asarray(node.value)
        else:
            if not node.output or id(node.args) not in computed_calls:
                operands = mapped(lambda x: values[x] if type(x) is ValueNode else x, (node.args, node.kwargs))
                computed_calls[id(node.args)] = evaluate(node.op, operands[0], operands[1], xp)
            out = computed_calls[id(node.args)]
            values[node] = out[node.output] if isinstance(out, tuple | list) else out
    return values


def compared(what: str, sizes: str, of_source: list[np.ndarray], of_target: list[np.ndarray]) -> Comparison:
    """Results of both programs, in whatever layout and order they are; one of them may have more."""
    largest, detail, found = 0.0, "", 0
    for k, b in enumerate(of_target):
        distances = [_distance(a, b) for a in of_source if a.size == b.size]
        if not distances:
            continue
        found += 1
        if min(distances) > largest:
            largest, detail = min(distances), f"result {k} of the target, {b.dtype}{list(b.shape)}"
    if not found:
        largest, detail = float("inf"), "no result of one has the size of one of the other"
    return Comparison(what, sizes, largest, FORWARD, detail)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape == b.shape:
        return relative_difference(a, b)
    return 0.0 if next(layouts(b, a), None) is not None else float("inf")


def common(of_source: list[np.ndarray], of_target: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """The results of both programs that correspond: their places in each."""
    pairs: dict[int, int] = {}
    for k, b in enumerate(of_target):
        distances = {j: _distance(a, b) for j, a in enumerate(of_source) if a.size == b.size and j not in pairs}
        if distances:
            pairs[min(distances, key=distances.__getitem__)] = k
    return list(pairs), list(pairs.values())


def gradients(
    graph: ProgramGraph, parameters: Mapping[str, np.ndarray], results: Sequence[int]
) -> dict[str, np.ndarray]:
    """The gradients, of half the sum of the squares of some results, with respect to the parameters."""
    xp, names = numpy_backend(), [n for n in graph.parameters if n in parameters]
    with xp.scope():

        def run(tape: Any, *arrays: Any) -> list[Any]:
            found = _run(graph, dict(zip(names, arrays, strict=True)), tape)
            return [found[graph.outputs[k]] for k in results if graph.outputs[k].dtype.kind == "f"]

        values, pull = xp.vjp(run, *(parameters[n] for n in names))
        return dict(zip(names, map(np.asarray, pull(values)), strict=True))


def compared_gradients(
    expressions: Mapping[str, Expression | None],
    of_source: Mapping[str, np.ndarray],
    of_target: Mapping[str, np.ndarray],
) -> Comparison:
    """Gradients of the source's parameters: those of the target, through the steps of the mapping, which are linear."""
    through: dict[str, np.ndarray] = {}
    for name, e in expressions.items():
        if e is not None:
            _add_gradient(e, of_target[name], through)
    scale = max((float(np.max(np.abs(g), initial=0.0)) for g in of_source.values()), default=0.0) or 1.0
    largest, detail = 0.0, ""
    for name, g in through.items():
        d = float(np.max(np.abs(g - of_source[name]), initial=0.0)) / scale
        if d > largest:
            largest, detail = d, name
    return Comparison("gradients", "as the example", largest, GRADIENT, detail)


def _add_gradient(e: Expression, g: np.ndarray, out: dict[str, np.ndarray]) -> None:
    """Add the gradient of an expression to those of the arrays that it is made of."""
    if isinstance(e, View):
        total = out.setdefault(e.source, np.zeros(e.source_shape))
        positions = e(lambda _: np.arange(total.size).reshape(total.shape))
        np.add.at(total.reshape(-1), positions.ravel(), g.ravel())
    elif isinstance(e, Concatenation):
        sizes = [p.shape[e.axis] for p in e.parts]
        joined = list(e.parts[0].shape)
        joined[e.axis] = sum(sizes)
        for p, part in zip(e.parts, np.split(g.reshape(joined), np.cumsum(sizes)[:-1], e.axis), strict=True):
            _add_gradient(p, part, out)
    elif isinstance(e, Negative):
        _add_gradient(e.term, -g, out)
    elif isinstance(e, Sum):
        for t in e.terms:
            _add_gradient(t, g, out)
