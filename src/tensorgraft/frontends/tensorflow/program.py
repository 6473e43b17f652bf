"""A graph as a function of flat arrays: the values of its variables, and the arguments. TensorFlow creates the
derivatives, which are graphs, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.compiled.steps import CompiledPart
from tensorgraft.errors import DerivativeError, TracedValueError
from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.tensorflow.batches import Batched
from tensorgraft.frontends.tensorflow.graph import FunctionGraph
from tensorgraft.frontends.tensorflow.planning import UnsupportedOperationError, plan
from tensorgraft.frontends.tensorflow.residuals import Residuals
from tensorgraft.frontends.tensorflow.tables import LookupTable
from tensorgraft.frontends.tensorflow.values import CountedRows, VariableCell, lifted
from tensorgraft.frontends.tensorflow.written_variables import written_arguments
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.precision import Region, with_region


@dataclass(frozen=True)
class CapturedGraph:
    """A graph and its captures: its last arguments are variables, by name, and values."""

    graph: FunctionGraph
    captures: tuple[str | np.ndarray | LookupTable, ...]

    @property
    def count(self) -> int:
        """The number of arguments that are no captures."""
        return len(self.graph.inputs) - len(self.captures)

    def written(self) -> list[str]:
        """Return the names of the variables that the graph writes."""
        writes = written_arguments(self.graph)
        names = [c for i, c in enumerate(self.captures) if isinstance(c, str) and self.count + i in writes]
        return list(dict.fromkeys(names))

    def run(
        self, xp: Backend, variables: Sequence[str], values: Sequence[Array], arguments: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return (results, the final values of all variables)."""
        cells = {name: VariableCell(x, name) for name, x in zip(variables, values, strict=True)}
        captured = [cells[c] if isinstance(c, str) else c for c in self.captures]
        results = plan(self.graph)(xp, *arguments, *captured)
        return results, {name: cell.value for name, cell in cells.items()}


# {(kind: "gradient", "pullback" or "pushforward", and positions of arguments; or "batched", and the size and axes of
# the arguments): a graph with more arguments, or more axes}
# axes of the arguments) -> a graph of more arguments, or of more axes
Derive = Callable[[str, tuple[int | None, ...]], tuple[CapturedGraph, "Derive"]]


class GraphPart(CompiledPart):
    """Rules of operations ask for values where there are some: in a compiled program arguments have none."""

    def _operands(self, xp: Backend, stand_ins: Sequence[Array]) -> Sequence[Array]:
        return [xp.as_traced(x) for x in stand_ins]


class GraphProgram:
    """A function of flat arrays (`hub.interchange.Differentiable`): the values of variables, then the arguments. It
    gives the results, then the values of those variables that it writes, by which nothing is differentiated.

    Arguments:
        captured: the graph.
        variables: the names of the variables, in order; it may capture fewer.
        compiled: whether each part is one compiled program of the backend.
        derive: what makes graphs of derivatives.
        region: of autocast, whose casts it computes with, in its derivatives too.

    Raises UnsupportedOperationError where a node, also in the body of a loop, has no rule.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        variables: Sequence[str],
        compiled: bool,
        derive: Derive | None = None,
        region: Region | None = None,
    ) -> None:
        plan(captured.graph)
        self.captured, self.variables, self.is_compiled = captured, list(variables), compiled
        self.written = captured.written()
        self.writes = tuple(map(self.variables.index, self.written))  # places of these
        self._derive, self.region = derive, region
        self._derived: dict[Any, Any] = {}
        self._vectorised: dict[Any, GraphProgram | None] = {}
        self.main = GraphPart(self._evaluate, compiled)

    def _evaluate(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        n = len(self.variables)
        results, values = self.captured.run(with_region(xp, self.region), self.variables, arrays[:n], arrays[n:])
        graph = self.captured.graph
        for x, value in zip(results, graph.outputs, strict=True):
            if isinstance(x, CountedRows):
                node = graph.nodes[graph.source(value)[0]]
                raise TracedValueError(
                    f"the program returns the result of TensorFlow's {node}, whose shape depends on values that"
                    " are being traced: call it without compiling it, or return a value of known shape"
                )
        return [lifted(xp, x) for x in (*results, *(values[name] for name in self.written))]

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        return self.main(xp, arrays)

    # ---- derivatives -----------------------------------------------------------------------------------------------

    def forward(
        self, xp: Backend, arrays: Sequence[Array], argnums: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        halves = self._halves(argnums)
        outputs = halves.first(xp, arrays)
        return outputs[: halves.results], outputs[halves.results :]

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], argnums: tuple[int, ...]
    ) -> Sequence[Array]:
        halves = self._halves(argnums)
        return halves.second(xp, [*residuals, *cotangents[: halves.cotangents]])

    def _cached(self, kind: str, argnums: tuple[int | None, ...], make: Callable[[CapturedGraph, Derive], Any]) -> Any:
        if (kind, argnums) not in self._derived:
            if self._derive is None:
                raise DerivativeError("programs read from a file have no derivative")
            try:
                self._derived[kind, argnums] = make(*self._derive(kind, argnums))
            except UnsupportedOperationError as error:  # an error only if a derivative is requested
                raise DerivativeError(f"the {kind} cannot be computed: {error}") from error
        return self._derived[kind, argnums]

    def _halves(self, argnums: tuple[int, ...]) -> ForwardAndBackward:
        return self._cached("gradient", argnums, lambda captured, _: ForwardAndBackward(self, captured, len(argnums)))

    def _program(self, kind: str, argnums: tuple[int | None, ...]) -> GraphProgram:
        def make(captured: CapturedGraph, derive: Derive) -> GraphProgram:
            return GraphProgram(captured, self.variables, self.is_compiled, derive, self.region)

        return self._cached(kind, argnums, make)

    def pullback(self, argnums: tuple[int, ...]) -> GraphProgram:
        return self._program("pullback", argnums)

    def pushforward(self, argnums: tuple[int, ...]) -> GraphProgram:
        return self._program("pushforward", argnums)

    def batched(self, axes: tuple[int | None, ...], size: int) -> Batched:
        return Batched(self, axes, size)

    def vectorised(self, axes: tuple[int | None, ...], size: int) -> GraphProgram | None:
        """Return the function of rows along axes, as `tf.vectorized_map` has it; None where that has no rule, where
        rows have variables of their own, or write some."""
        count = len(self.variables)
        if self.written or self._derive is None or any(axis is not None for axis in axes[:count]):
            return None
        key = (size, *axes[count:])
        if key not in self._vectorised:
            try:
                self._vectorised[key] = self._program("batched", key)
            except DerivativeError:
                self._vectorised[key] = None
        return self._vectorised[key]


class ForwardAndBackward:
    """The graph of results and derivatives, split where the cotangents are used."""

    def __init__(self, program: GraphProgram, captured: CapturedGraph, gradient_count: int) -> None:
        graph = captured.graph
        late_arguments = range(program.captured.count, captured.count)
        self.cotangents = len(late_arguments)
        early_graph, self._late_graph, self._ends = graph.split(late_arguments)
        self._early_graph = CapturedGraph(early_graph, captured.captures)
        self._program, self._gradient_count = program, gradient_count
        self._plain = len(graph.outputs) - gradient_count  # outputs that are results
        plan(early_graph), plan(self._late_graph)
        self.results = self._plain + len(program.written)
        self._residuals = Residuals()
        self.first = GraphPart(self._forward, program.is_compiled)
        self.second = GraphPart(self._backward, program.is_compiled)

    def _forward(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        program = self._program
        xp = with_region(xp, program.region)
        n = len(program.variables)
        outputs, values = self._early_graph.run(xp, program.variables, arrays[:n], arrays[n:])
        count = self._plain + self._gradient_count - len(self._ends)
        results = [*outputs[: self._plain], *(values[name] for name in program.written)]
        gradients = outputs[self._plain : count]  # gradients that depend on no cotangent are zero
        return [*(lifted(xp, x) for x in results), *self._residuals.flat(xp, [*gradients, *outputs[count:]])]

    def _backward(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        xp = with_region(xp, self._program.region)
        n = len(arrays) - self.cotangents
        residual_values = self._residuals.values(xp, arrays[:n])
        fixed = self._gradient_count - len(self._ends)
        late = iter(plan(self._late_graph)(xp, *residual_values[fixed:], *arrays[n:]))
        early = iter(residual_values[:fixed])
        return [
            lifted(xp, next(late) if self._plain + k in self._ends else next(early))
            for k in range(self._gradient_count)
        ]


def is_smooth(dtype: np.dtype | None) -> bool:
    return dtype is not None and dtypes.is_inexact(dtype)
