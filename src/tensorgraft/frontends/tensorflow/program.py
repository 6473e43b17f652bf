"""A graph as a function of flat arrays: the arguments, and what the variables that it captures hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.compiled.steps import CompiledPart
from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.tensorflow.cells import written
from tensorgraft.frontends.tensorflow.graph import FunctionGraph
from tensorgraft.frontends.tensorflow.planning import plan
from tensorgraft.frontends.tensorflow.values import VariableCell, lifted
from tensorgraft.hub.backend import Backend

Array = Any


class GraphProgram:
    """Takes the values of variables, then arguments, and gives results, then those values that were written.

    Arguments:
        graph: its arguments come first, then what it captures.
        captures: for each of these the name of a variable, or a value. A variable may be captured twice.
        compiled: whether it is one compiled program of the backend.

    Raises UnsupportedOperationError where a node, also in the body of a loop, has no rule.
    """

    def __init__(self, graph: FunctionGraph, captures: Sequence[str | np.ndarray], compiled: bool) -> None:
        self.graph, self.captures = graph, list(captures)
        self.count = len(graph.inputs) - len(self.captures)
        self.variables = list(dict.fromkeys(c for c in self.captures if isinstance(c, str)))
        self._plan = plan(graph)
        writes = written(graph)
        self.written = [
            name
            for name in self.variables
            if any(c is not None and c == name for i, c in enumerate(self.names) if self.count + i in writes)
        ]
        self.part = CompiledPart(self.evaluate, compiled)

    @property
    def names(self) -> list[str | None]:
        """For each capture the variable that it is."""
        return [c if isinstance(c, str) else None for c in self.captures]

    def evaluate(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        n = len(self.variables)
        cells = {name: VariableCell(x, name) for name, x in zip(self.variables, arrays[:n], strict=True)}
        captured = [cells[c] if isinstance(c, str) else c for c in self.captures]
        results = self._plan(xp, *arrays[n:], *captured)
        return [lifted(xp, x) for x in (*results, *(cells[name].value for name in self.written))]

    def __call__(
        self, xp: Backend, values: Sequence[Array], arrays: Sequence[Array]
    ) -> tuple[list[Array], dict[str, Array]]:
        """(results, what variables have become)."""
        outputs = self.part(xp, [*values, *arrays])
        n = len(outputs) - len(self.written)
        return outputs[:n], dict(zip(self.written, outputs[n:], strict=True))
