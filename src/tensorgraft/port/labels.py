"""Labels: which element of which parameter each element of a static array is.

A label is `parameter * RANGE + position`, with the position in the parameter's flat memory; -1 is what is of none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.port.graph import MOVEMENT, POINTWISE, Graph, Node, evaluate

RANGE = 1 << 40
_MOVING = MOVEMENT | {"concat", "gather", "pad"}


class Labels:
    """The labels of a graph's static nodes."""

    def __init__(self, graph: Graph) -> None:
        self.names = list(graph.parameters)
        self._number = {name: k for k, name in enumerate(self.names)}
        self._pure: dict[Node, np.ndarray | None] = {}

    def of(self, node: Node) -> np.ndarray | None:
        """The labels of a node that only moves elements of parameters; None for others."""
        if node not in self._pure:
            if len(self._pure) > 64:  # they are as large as the weights
                self._pure.clear()
            self._pure[node] = self._labels(node, None)
        return self._pure[node]

    def of_leaf(self, node: Node, name: str) -> np.ndarray | None:
        """The labels that a parameter's elements have in a node that computes element by element."""
        return self._labels(node, name)

    def _labels(self, node: Node, leaf: str | None) -> np.ndarray | None:
        if node.op == "parameter":
            if leaf is not None and node.name != leaf:
                return np.full(node.shape, -1)
            return self._number[node.name] * RANGE + np.arange(node.size).reshape(node.shape)
        if not node.parameters:
            return np.full(node.shape, -1) if leaf is not None else None
        if node.op in _MOVING:
            return self._moved(node, leaf)
        if leaf is not None and node.op in POINTWISE:
            found = [x for x in node.inputs() if leaf in x.parameters]
            labels = self._labels(found[0], leaf) if found else None
            return None if labels is None else np.broadcast_to(labels, node.shape)
        return None

    def _moved(self, node: Node, leaf: str | None) -> np.ndarray | None:
        failed = False

        def operand(x: object) -> object:
            nonlocal failed
            if type(x) is not Node:
                return x
            if x.value is not None and (node.op == "gather" and x is not node.args[0]):
                return x.value
            labels = np.full(x.shape, -1) if x.value is not None else self._labels(x, leaf)
            failed |= labels is None
            return labels

        args = mapped(operand, node.args)
        if failed:
            return None
        if node.op == "pad":
            args = (args[0], -1, *args[2:])
        return np.asarray(evaluate(node.op, args, node.kwargs))

    def name(self, label: int) -> str:
        return self.names[label // RANGE]

    def parameters(self, labels: np.ndarray) -> Sequence[str]:
        """The names of the parameters that labels are of."""
        return [self.names[k] for k in np.unique(labels[labels >= 0] // RANGE)]


def take(values: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """The values of labelled elements; `values` are those of each parameter, flat; 0 for the label -1."""
    out = np.zeros(labels.shape)
    which = labels // RANGE
    for k in np.unique(which):
        if k >= 0:
            chosen = which == k
            out[chosen] = values[k][labels[chosen] % RANGE]
    return out
