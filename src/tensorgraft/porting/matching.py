"""Which parameter of a target network is which of a source's, found from the inputs forward.

The source runs with random weights, so its values tell its arrays apart. The target is computed node by node; what
equals a value of the source, in whatever layout, is known to correspond. Where an unknown parameter meets such a
value, the source's parameters that meet the same value are candidates. A choice is a decision; the next values show
whether it was right, and if not the latest decision that they depend on is changed. If none helps, the programs differ
there: the difference is kept, and the search goes on with the source's value.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.porting import candidates
from tensorgraft.porting.binding import Alternative
from tensorgraft.porting.graph import Graph, Node
from tensorgraft.porting.labels import RANGE, Labels
from tensorgraft.porting.values import Evaluator, Pool, ValueClass, fingerprint, orders

UNKNOWN = -2  # as an origin: nothing is known of the element
MOST_TRIALS = 200  # changes of decisions for one value


@dataclass(eq=False)
class Decision:
    """A choice among the ways in which a node's parameters may correspond."""

    node: Node
    alternatives: Sequence[Alternative]
    index: int = 0
    applied: list[tuple[str, np.ndarray]] = field(default_factory=list)  # what it has bound: (parameter, positions)

    @property
    def chosen(self) -> Alternative:
        return self.alternatives[self.index]


@dataclass(eq=False)
class Divergence:
    """A value of the target that no value of the source equals, where one was expected."""

    target: Node
    source: Node | None
    site: Node | None  # the node of the target that needed it; None for an output


class Matcher:
    """The search. `run` fills `origins`, `divergences` and `pairs`."""

    def __init__(
        self, source: Graph, target: Graph, weights: Mapping[str, np.ndarray], hints: Mapping[str, str] | None = None
    ) -> None:
        self.source, self.target, self.hints = source, target, dict(hints or {})
        self.weights = [weights[name].ravel() for name in source.parameters]
        self.source_values = Evaluator(source, weights)
        self.pool = Pool(self.source_values)
        self.source_labels, self.target_labels = Labels(source), Labels(target)
        self.bound = {name: np.full(node.shape, np.nan) for name, node in target.parameters.items()}
        self.origins = {name: np.full(node.size, UNKNOWN) for name, node in target.parameters.items()}
        self.offsets: dict[str, np.ndarray] = {}
        self.added: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}  # (positions, labels) of what is added to them
        self.target_values = Evaluator(target, self.bound)
        self.class_of: dict[Node, ValueClass] = {}
        self.decisions: list[Decision] = []
        self.used: Counter[Node] = Counter()
        self.divergences: list[Divergence] = []
        self.failed: set[Node] = set()  # nodes whose parameters nothing corresponds to
        self.habits: dict[Any, tuple[int, ...]] = {}  # of the pieces of products: the order that was right
        self._positions: dict[Node, np.ndarray | None] = {}
        self._forced: dict[Node, tuple[np.ndarray, ValueClass | None, np.ndarray | None]] = {}
        self._trials: Counter[Node] = Counter()
        self._first_choices: dict[Node, dict[Node, int]] = {}
        self._fixed: dict[Node, int] = {}
        self._compares = False
        self._skipped: set[Node] = set()  # values that differ, and are left as they are
        self._statics: dict[str, list[Node]] = {}
        for node in target.nodes:
            if node.static and node.op != "parameter":
                for name in node.parameters:
                    self._statics.setdefault(name, []).append(node)

    def know(self, parameters: Mapping[str, np.ndarray]) -> None:
        """The target has these weights: what is compared are values alone."""
        for name, value in parameters.items():
            self.bound[name][...] = value
        self._compares = True

    # ---- the search ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        order = [n for n in self.target.nodes if n.dynamic]
        index = {n: i for i, n in enumerate(order)}
        at = 0
        while at < len(order):
            node = order[at]
            blocked = self._step(node)
            if blocked is None and node in self.target.outputs and not self._is_settled(node):
                blocked = node
            if blocked is None:
                at += 1
                continue
            again = self._changed_decision(blocked, node)
            if again is not None:
                at = index[again]
            elif blocked is node and node in self.target.outputs and node in self.target_values.values:
                self._diverge_at_output(node)
                at += 1
            else:
                self._force(blocked, node)

    def _is_settled(self, node: Node) -> bool:
        """A known value, or one that cannot be compared."""
        if node in self._forced:
            return True
        return (node in self.target_values.values or node.value is not None) and self.corresponds(node)

    def _step(self, node: Node) -> Node | None:
        """Compute a node, with a decision if it has unknown parameters. Returns the operand that is not known to
        correspond, if the decision needs it."""
        if node in self._forced:
            self._take_forced(node)
            return None
        unknown = [x for x in node.inputs() if x.static and not self._is_known(x)]
        if unknown and node not in self.failed and self._result(node) is None:
            blocked = self._decide(node)
            if blocked is not None:
                return blocked
        elif self._compares and any(x.static for x in node.inputs()):
            operand = next(x for x in node.inputs() if x.dynamic)
            if operand in self.target_values.values and operand not in self._skipped and not self.corresponds(operand):
                return operand
        value = self._result(node)
        if value is None:
            return None
        self.target_values.values[node] = value
        self._classify(node, value)
        return None

    def _is_known(self, static: Node) -> bool:
        return not any(np.isnan(self.bound[name]).any() for name in static.parameters)

    def _result(self, node: Node) -> np.ndarray | None:
        """The value of a node; None while something in it is unknown."""
        if any(x.dynamic and x.value is None and x not in self.target_values.values for x in node.inputs()):
            return None
        value = self.target_values.compute(node) if node.value is None else node.value
        if value.dtype.kind in "fc" and np.isnan(value).any() and any(x.static for x in node.inputs()):
            return None
        return value

    def _classify(self, node: Node, value: np.ndarray) -> None:
        found = self.pool.find(node.size, fingerprint(value))
        if found is not None:
            self.class_of[node] = found

    def positions(self, node: Node) -> np.ndarray | None:
        """The positions in its class's reference of the elements of a target's node."""
        if node not in self._positions:
            value_class = self.class_of.get(node)
            value = self.target_values.values.get(node, node.value)
            found = None if value_class is None or value is None else self.pool.located(value, value_class)
            self._positions[node] = found
        return self._positions[node]

    def corresponds(self, node: Node) -> bool:
        """A computed value of the target that is one of the source's, or is the same number everywhere."""
        if node in self.class_of and self.positions(node) is None:
            del self.class_of[node]
        return node in self.class_of or fingerprint(self.target_values(node)) is None

    def _decide(self, node: Node) -> Node | None:
        operands = [x for x in node.inputs() if x.dynamic]
        for x in operands:
            known = x in self.target_values.values or x.value is not None
            if not known or not self.corresponds(x):
                return x
        alternatives = candidates.alternatives(self, node)
        if not alternatives:
            return operands[0]
        index = self._fixed.get(node, 0)
        decision = Decision(node, alternatives, index if index < len(alternatives) else 0)
        self.decisions.append(decision)
        self._apply(decision)
        return None

    def is_unknown(self, labels: np.ndarray) -> bool:
        """Some of the elements have no value yet."""
        labels = np.unique(labels[labels >= 0])
        which = labels // RANGE
        return any(
            np.isnan(self.bound[self.target_labels.names[k]].reshape(-1)[labels[which == k] % RANGE]).any()
            for k in np.unique(which).tolist()
        )

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _apply(self, decision: Decision) -> None:
        chosen = decision.chosen
        for binding in chosen.bindings():
            which = binding.target // RANGE
            values = binding.values(self.weights)
            for k in np.unique(which[binding.target >= 0]):
                name = self.target_labels.names[int(k)]
                here = which == k
                positions = binding.target[here] % RANGE
                flat = self.bound[name].reshape(-1)
                new = np.isnan(flat[positions])
                fresh = positions[new]
                flat[fresh] = values[here][new]
                self.origins[name][fresh] = binding.source[here][new]
                if np.any(binding.offset):
                    offsets = self.offsets.setdefault(name, np.zeros(flat.size))
                    offsets[fresh] = np.broadcast_to(binding.offset, here.shape)[here][new]
                if binding.more:
                    self.added.setdefault(name, []).extend((fresh, m[here][new]) for m in binding.more)
                decision.applied.append((name, fresh))
                self._outdated(name)
        self.used.update(chosen.sites)

    def _undo(self, decision: Decision) -> None:
        for name, positions in decision.applied:
            self.bound[name].reshape(-1)[positions] = np.nan
            self.origins[name][positions] = UNKNOWN
            if name in self.offsets:
                self.offsets[name][positions] = 0.0
            self.added[name] = [a for a in self.added.get(name, ()) if not np.isin(a[0], positions).any()]
            self._outdated(name)
        decision.applied = []
        self.used.subtract(decision.chosen.sites)

    def _outdated(self, name: str) -> None:
        for node in self._statics.get(name, ()):
            self.target_values.values.pop(node, None)

    def _changed_decision(self, blocked: Node, node: Node) -> Node | None:
        """Change the latest decision that a value depends on; returns the node to go on from, None if there is no
        other choice."""
        if blocked in self._fixed or self._trials[blocked] >= MOST_TRIALS:
            return self._first_choice(blocked)
        if blocked not in self._first_choices:
            self._first_choices[blocked] = {d.node: d.index for d in self.decisions}
        before = self._ancestors(blocked)
        for k in range(len(self.decisions) - 1, -1, -1):
            decision = self.decisions[k]
            if decision.node not in before or decision.index + 1 >= len(decision.alternatives):
                continue
            if decision.node in self._fixed:
                continue
            self._trials[blocked] += 1
            self._rewind(k)
            decision.index += 1
            self.decisions.append(decision)
            self._apply(decision)
            return self._recompute(decision.node)
        return self._first_choice(blocked)

    def _rewind(self, k: int) -> None:
        """Take back the decisions from the k-th on."""
        for later in reversed(self.decisions[k:]):
            self._undo(later)
        del self.decisions[k:]

    def _recompute(self, node: Node) -> Node:
        """Forget the values from a node on; returns it."""
        self.target_values.forget(node.number)
        for cache in (self.class_of, self._positions):
            for other in [n for n in cache if n.number >= node.number]:
                del cache[other]  # type: ignore[attr-defined]
        self.failed = {n for n in self.failed if n.number < node.number}
        self.divergences = [d for d in self.divergences if d.target.number < node.number or d.target in self._forced]
        return node

    def _first_choice(self, blocked: Node) -> Node | None:
        """Go back to what was chosen before a value was found to differ, for good; None if that is where it is."""
        first = self._first_choices.pop(blocked, None)
        if first is None:
            return None
        self._fixed.update(first)
        for k, decision in enumerate(self.decisions):
            if first.get(decision.node, decision.index) != decision.index:
                self._rewind(k)
                return self._recompute(decision.node)
        self._fixed.setdefault(blocked, 0)
        return None

    @functools.cache  # noqa: B019
    def _ancestors(self, node: Node) -> frozenset[Node]:
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            x = waiting.pop()
            if x not in found:
                found.add(x)
                waiting.extend(n for n in x.inputs() if n.dynamic)
        return frozenset(found)

    # ---- differences -----------------------------------------------------------------------------------------------

    def _force(self, blocked: Node, node: Node) -> None:
        """Go on with the source's value of the operand that differs."""
        source = candidates.expected_site(self, node, blocked)
        if source is None or blocked in self._forced:
            self.failed.add(node)
            self._skipped.add(blocked)
            return
        if blocked in self.class_of:  # the same value, which nothing of the source meets in this way
            self.failed.add(node)
            self.divergences.append(Divergence(node, None, node))
            return
        value = self.source_values(source)
        positions = _by_shape(blocked.shape, source.shape)
        self.divergences.append(Divergence(blocked, source, node))
        if positions is None:
            self.failed.add(node)
            self._skipped.add(blocked)
            return
        value_class = self.pool.class_of.get(source)
        located = self.pool.positions(source)
        inside = None if located is None else located.ravel()[positions]
        self._forced[blocked] = (value.ravel()[positions], value_class, inside)
        self._take_forced(blocked)

    def _take_forced(self, node: Node) -> None:
        value, value_class, positions = self._forced[node]
        self.target_values.values[node] = value
        if value_class is not None:
            self.class_of[node] = value_class
            self._positions[node] = positions

    def _diverge_at_output(self, node: Node) -> None:
        where = self.target.outputs.index(node)
        outputs = self.source.outputs
        self.divergences.append(Divergence(node, outputs[where] if where < len(outputs) else None, None))
        self._fixed.setdefault(node, 0)

    # ---- results ---------------------------------------------------------------------------------------------------

    def unmatched(self) -> list[str]:
        """Parameters of the target of which no element is known."""
        return [name for name, origin in self.origins.items() if (origin == UNKNOWN).all() and origin.size]


def _by_shape(x: tuple[int, ...], y: tuple[int, ...]) -> np.ndarray | None:
    """Positions in an array of shape y for one of shape x, in the first layout that their shapes allow."""
    size = int(np.prod(y))
    if int(np.prod(x)) != size:
        return None
    if x == y:
        return np.arange(size).reshape(x)
    for of_x, axes in orders(x, y):
        if not of_x and tuple(y[a] for a in axes) == x:
            return np.arange(size).reshape(y).transpose(axes)
    return np.arange(size).reshape(x)


__all__ = ["UNKNOWN", "Decision", "Divergence", "Matcher"]
