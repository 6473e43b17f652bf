"""ElementLabels: which element of which parameter each element of a static array is.

A label is `parameter * RANGE + position`, with the position in the parameter's flat memory; -1 is what is of none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode, evaluate

RANGE = 1 << 40
_MOVING = MOVEMENT | {"concat", "gather", "pad"}


class ElementLabels:
    """The labels of a graph's static nodes."""

    def __init__(self, graph: ProgramGraph) -> None:
        self.names = list(graph.parameters)
        self._number = {name: k for k, name in enumerate(self.names)}
        self._pure: dict[ValueNode, np.ndarray | None] = {}

    def of(self, node: ValueNode) -> np.ndarray | None:
        """The labels of a node that only moves elements of parameters; None for others."""
        if node not in self._pure:
            if len(self._pure) > 64:  # they are as large as the weights
                self._pure.clear()
            self._pure[node] = self._labels(node)
        return self._pure[node]

    def atoms(self, node: ValueNode) -> list[np.ndarray] | None:
        """The labels, in the node's shape, of each array that it is computed from element by element: those of `bias`
        and of `other` in `bias + other`. None for what is computed otherwise."""
        if not node.parameters:
            return []
        pure = self.of(node)
        if pure is not None:
            return [pure]
        if node.op in MOVEMENT:
            inner = self.atoms(node.args[0])
            return None if inner is None else [np.asarray(evaluate(node.op, (a, *node.args[1:]), {})) for a in inner]
        if node.op not in POINTWISE:
            return None
        found: list[np.ndarray] = []
        for x in node.inputs():
            inner = self.atoms(x)
            if inner is None:
                return None
            found += [np.broadcast_to(a, node.shape) for a in inner]
        return found

    def _labels(self, node: ValueNode) -> np.ndarray | None:
        if node.op == "parameter":
            return self._number[node.name] * RANGE + np.arange(node.size).reshape(node.shape)
        if not node.parameters or node.op not in _MOVING:
            return None
        failed = False

        def operand(x: object) -> object:
            nonlocal failed
            if type(x) is not ValueNode:
                return x
            if x.value is not None and (node.op == "gather" and x is not node.args[0]):
                return x.value
            labels = np.full(x.shape, -1) if x.value is not None else self._labels(x)
            failed |= labels is None
            return labels

        args = mapped(operand, node.args)
        if failed:
            return None
        if node.op == "pad":
            args = (args[0], -1, *args[2:])
        return np.asarray(evaluate(node.op, args, node.kwargs))


def take(values: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """The values of labelled elements; `values` are those of each parameter, flat; 0 for the label -1."""
    out = np.zeros(labels.shape)
    which = labels // RANGE
    for k in np.unique(which):
        if k >= 0:
            chosen = which == k
            out[chosen] = values[k][labels[chosen] % RANGE]
    return out
