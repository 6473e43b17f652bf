"""`State`: what a search knows of two programs, from which candidates are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.labels import RANGE, ElementLabels
from tensorgraft.porting.nodes import ValueNode
from tensorgraft.porting.values import Evaluator, Pool, ValueClass

UNKNOWN = -2  # as an origin: nothing is known of the element


class State:
    """The source with its values, and the target as far as it is known."""

    def __init__(
        self, source: ProgramGraph, target: ProgramGraph, weights: Mapping[str, np.ndarray], hints: Mapping[str, str]
    ) -> None:
        self.source, self.target, self.hints = source, target, dict(hints)
        self.weights = [weights[name].ravel() for name in source.parameters]
        self.source_values = Evaluator(source, weights)
        self.pool = Pool(self.source_values)
        self.source_labels, self.target_labels = ElementLabels(source), ElementLabels(target)
        self.bound = {name: np.full(node.shape, np.nan) for name, node in target.parameters.items()}
        self.origins = {name: np.full(node.size, UNKNOWN) for name, node in target.parameters.items()}
        self.offsets: dict[str, np.ndarray] = {}
        self.negative: dict[str, np.ndarray] = {}  # bool: elements that have the other sign
        self.added: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}  # (positions, labels) of what is added to them
        self.target_values = Evaluator(target, self.bound)
        self.target_values.in_order = True
        self.class_of: dict[ValueNode, ValueClass] = {}
        self.negated: dict[ValueNode, tuple[ValueClass, np.ndarray]] = {}  # values of the other sign, with positions
        self.used: Counter[ValueNode] = Counter()  # how many choices each node of the source has been part of
        self.used_names: Counter[str] = Counter()  # and each of its parameters
        self.aligned: dict[Any, list[Any]] = {}  # by pairs of products
        self._positions: dict[ValueNode, np.ndarray | None] = {}

    def positions(self, node: ValueNode) -> np.ndarray | None:
        """The positions in its class's reference of the elements of a target's node."""
        if node not in self._positions:
            value_class = self.class_of.get(node)
            value = self.target_values.values.get(node, node.value)
            found = None if value_class is None or value is None else self.pool.located(value, value_class)
            self._positions[node] = found
        return self._positions[node]

    def is_unknown(self, labels: np.ndarray) -> bool:
        """Some of the elements have no value yet."""
        labels = np.unique(labels[labels >= 0])
        which = labels // RANGE
        return any(
            np.isnan(self.bound[self.target_labels.names[k]].reshape(-1)[labels[which == k] % RANGE]).any()
            for k in np.unique(which).tolist()
        )
