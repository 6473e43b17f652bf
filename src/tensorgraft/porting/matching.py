"""The search for the source's parameter that each of the target's is, from the inputs forward.

The source runs with random weights, so its values tell its arrays apart. The target is computed node by node; what
equals a value of the source, in whatever layout, is known to correspond. Where an unknown parameter meets such a
value, the source's parameters that meet the same value are candidates. A choice is a decision; the next values show
whether it was right, and if not the latest decision that they depend on is changed. If none helps, the programs differ
there: the difference is kept, and the search goes on with the source's value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorgraft.porting import candidates
from tensorgraft.porting.binding import Alternative
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.labels import RANGE
from tensorgraft.porting.nodes import ValueNode, evaluate
from tensorgraft.porting.state import UNKNOWN, State
from tensorgraft.porting.terms import PRODUCTS
from tensorgraft.porting.values import ValueClass, fingerprint, orders, relative_difference

MOST_TRIALS = 96  # changes of decisions for one value
MOST_IN_ALL = 600
MOST_IN_VAIN = 2  # searches in a row that end without a value that corresponds: from then on each has half the changes
MOST_CHANGED = 6  # decisions that are changed for it: the latest with another choice


@dataclass(eq=False)
class Decision:
    """A choice among the ways in which a node's parameters may correspond."""

    node: ValueNode
    alternatives: Sequence[Alternative]
    index: int = 0
    applied: list[tuple[str, np.ndarray]] = field(default_factory=list)  # what it has bound: (parameter, positions)

    @property
    def chosen(self) -> Alternative:
        return self.alternatives[self.index]


@dataclass(eq=False)
class Divergence:
    """A value of the target that no value of the source equals, where one was expected."""

    target: ValueNode
    source: ValueNode | None
    site: ValueNode | None  # the node of the target that needed it; None for an output
    explained: bool = False  # a change of the operations makes the values equal


@dataclass(eq=False)
class Search:
    """Changes of decisions that are tried for a value that does not correspond."""

    blocked: ValueNode
    site: ValueNode  # what needs the value
    changeable: frozenset[ValueNode]
    choices: dict[ValueNode, int] = field(default_factory=dict)  # those with the most values that are equal
    most: int = -1  # how many these are
    trials: int = 0


class Matcher(State):
    """The search. `run` fills `origins`, `divergences` and `pairs`."""

    def __init__(
        self,
        source: ProgramGraph,
        target: ProgramGraph,
        weights: Mapping[str, np.ndarray],
        hints: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(source, target, weights, hints or {})
        self.decisions: list[Decision] = []
        self.divergences: list[Divergence] = []
        self.failed: set[ValueNode] = set()  # nodes whose parameters nothing corresponds to
        self._forced: dict[ValueNode, tuple[np.ndarray, ValueClass | None, np.ndarray | None]] = {}
        self._decided: set[ValueNode] = set()
        self.trials = 0  # decisions that were changed
        self.vain = 0  # searches in a row that no change has ended
        self.rounding: dict[ValueNode, float] = {}  # of values that were taken from the source, as they are equal
        self._search: Search | None = None
        self._given_up: set[ValueNode] = set()  # values for which no choice helps
        self._fixed: dict[ValueNode, int] = {}
        self._complete: set[str] = set()  # parameters of which every element is known
        self._compares = False
        self._skipped: set[ValueNode] = set()  # values that differ, and are left as they are
        self._statics: dict[str, list[ValueNode]] = {}
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
            has_value = node in self.target_values.values
            if blocked is None and has_value and node in self.target.outputs and not self._is_settled(node):
                blocked = node
            if blocked is None:
                if self._search is not None and node.number >= self._search.site.number:
                    self._search, self.vain = None, 0
                at += 1
                continue
            again = self._changed_decision(blocked, node)
            if again is not None:
                at = index[again]
            elif blocked is node:
                self._diverge_at_output(node)
                at += 1
            else:
                base = self._force(blocked, node)
                at = at if base is None else index[base]

    def _is_settled(self, node: ValueNode) -> bool:
        """A known value, or one that cannot be compared."""
        if node in self._forced:
            return True
        return (node in self.target_values.values or node.value is not None) and self.corresponds(node)

    def _step(self, node: ValueNode) -> ValueNode | None:
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
        elif any(x.static for x in node.inputs()) and (self._compares or node.op in PRODUCTS):
            operand = next(x for x in node.inputs() if x.dynamic)
            if operand in self.target_values.values and operand not in self._skipped and not self.corresponds(operand):
                return operand
        value = self._result(node)
        if value is None:
            return None
        self.target_values.values[node] = value
        self._classify(node, value)
        return None

    def _is_known(self, static: ValueNode) -> bool:
        for name in static.parameters - self._complete:
            if np.isnan(self.bound[name]).any():
                return False
            self._complete.add(name)
        return True

    def _result(self, node: ValueNode) -> np.ndarray | None:
        """The value of a node; None while something in it is unknown."""
        if any(x.dynamic and x.value is None and x not in self.target_values.values for x in node.inputs()):
            return None
        value = self.target_values.compute(node) if node.value is None else node.value
        if node.op in PRODUCTS and node in self._decided and np.isnan(value).any():
            x, w = (self.target_values(n) for n in node.args[:2])  # what is unknown meets the padding alone
            value = np.asarray(evaluate(node.op, (x, np.nan_to_num(w), *node.args[2:]), node.kwargs))
        if value.dtype.kind in "fc" and np.isnan(value).any() and any(x.static for x in node.inputs()):
            return None
        return value

    def _classify(self, node: ValueNode, value: np.ndarray) -> None:
        found = self.pool.find(node.size, fingerprint(value))
        if found is not None:
            self.class_of[node] = found
        elif value.dtype.kind == "f" and any(x.any() for x in self.negative.values()):
            found = self.pool.find(node.size, fingerprint(-value))
            positions = None if found is None else self.pool.located(-value, found)
            if found is not None and positions is not None:
                self.negated[node] = found, positions

    def corresponds(self, node: ValueNode) -> bool:
        """A computed value of the target that is one of the source's, or is the same number everywhere."""
        if node in self.class_of and self.positions(node) is None:
            del self.class_of[node]
        return node in self.class_of or fingerprint(self.target_values(node)) is None

    def _round(self, node: ValueNode) -> None:
        """Go on from the source's value, to which this one is equal to rounding: so that rounding does not add up."""
        positions = self._positions.get(node)
        if self._compares or node not in self.class_of or positions is None or node in self.rounding:
            return
        of_source = self.source_values(self.class_of[node].reference).ravel()[positions]
        self.rounding[node] = relative_difference(of_source, self.target_values(node))
        self.target_values.values[node] = of_source

    def _decide(self, node: ValueNode) -> ValueNode | None:
        operands = [x for x in node.inputs() if x.dynamic]
        for x in operands:
            known = x in self.target_values.values or x.value is not None
            is_negated = node.op == "affine" and x in self.negated
            if not known or not (is_negated or self.corresponds(x)):
                return x
            self._round(x)
        alternatives = candidates.alternatives(self, node)
        if not alternatives:
            return operands[0]
        index = self._fixed.get(node, 0)
        decision = Decision(node, alternatives, index if index < len(alternatives) else 0)
        self.decisions.append(decision)
        self._decided.add(node)
        self._apply(decision)
        return None

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _apply(self, decision: Decision) -> None:
        chosen = decision.chosen
        for binding in chosen.bindings():
            which = binding.target // RANGE
            values = binding.values(self.weights)
            for k in np.unique(which[binding.target >= 0]):
                name = self.target_labels.names[int(k)]
                selected = which == k
                positions = binding.target[selected] % RANGE
                flat = self.bound[name].reshape(-1)
                new = np.isnan(flat[positions])
                fresh = positions[new]
                flat[fresh] = values[selected][new]
                self.origins[name][fresh] = binding.source[selected][new]
                if np.any(binding.offset):
                    offsets = self.offsets.setdefault(name, np.zeros(flat.size))
                    offsets[fresh] = np.broadcast_to(binding.offset, selected.shape)[selected][new]
                if binding.sign < 0:
                    self.negative.setdefault(name, np.zeros(flat.size, bool))[fresh] = True
                if binding.more:
                    self.added.setdefault(name, []).extend((fresh, m[selected][new]) for m in binding.more)
                decision.applied.append((name, fresh))
                self._outdated(name)
        self.used.update(chosen.sites)
        self.used_names.update(n for s in chosen.sites for n in candidates.parameter_names(s))

    def _undo(self, decision: Decision) -> None:
        for name, positions in decision.applied:
            self.bound[name].reshape(-1)[positions] = np.nan
            self.origins[name][positions] = UNKNOWN
            self._complete.discard(name)
            if name in self.offsets:
                self.offsets[name][positions] = 0.0
            if name in self.negative:
                self.negative[name][positions] = False
            self.added[name] = [a for a in self.added.get(name, ()) if not np.isin(a[0], positions).any()]
            self._outdated(name)
        decision.applied = []
        self._decided.discard(decision.node)
        self.used.subtract(decision.chosen.sites)
        self.used_names.subtract(n for s in decision.chosen.sites for n in candidates.parameter_names(s))

    def _outdated(self, name: str) -> None:
        for node in self._statics.get(name, ()):
            self.target_values.values.pop(node, None)

    def _changed_decision(self, blocked: ValueNode, node: ValueNode) -> ValueNode | None:
        """Modification the latest decision that a value depends on; returns the node to go on from, None if there is no
        other choice."""
        if self._search is None:
            if blocked in self._given_up:
                return None
            before = self._ancestors(blocked)
            open_ = [d.node for d in self.decisions if d.node in before and len(d.alternatives) > 1]
            changeable = frozenset(n for n in open_[-MOST_CHANGED:] if n not in self._fixed)
            self._search = Search(blocked, node, changeable)
        search = self._search
        if len(self.class_of) > search.most:
            search.most, search.choices = len(self.class_of), {d.node: d.index for d in self.decisions}
        before, most = self._ancestors(blocked), MOST_TRIALS >> max(self.vain - MOST_IN_VAIN, 0)
        for k in range(len(self.decisions) - 1, -1, -1):
            decision = self.decisions[k]
            if (
                max(search.trials - most, self.trials - MOST_IN_ALL) >= 0
                or decision.node not in before & search.changeable
            ):
                continue
            if decision.index + 1 < len(decision.alternatives):
                search.trials += 1
                self.trials += 1
                self._rewind(k)
                decision.index += 1
                self.decisions.append(decision)
                self._decided.add(decision.node)
                self._apply(decision)
                return self._recompute(decision.node)
        return self._restored(search)

    def _rewind(self, k: int) -> None:
        """Take back the decisions from the k-th on."""
        for later in reversed(self.decisions[k:]):
            self._undo(later)
        del self.decisions[k:]

    def _recompute(self, node: ValueNode) -> ValueNode:
        """Forget what was found from a node on; returns it."""
        self.target_values.forget(node.number)
        for cache in (self.class_of, self.negated, self._positions, self._forced, self.rounding):
            for other in [n for n in cache if n.number >= node.number]:
                del cache[other]
        self.failed = {n for n in self.failed if n.number < node.number}
        self._skipped = {n for n in self._skipped if n.number < node.number}
        self.divergences = [d for d in self.divergences if d.target.number < node.number]
        return node

    def _restored(self, search: Search) -> ValueNode | None:
        """Go back to the choices with the most equal values, for good; None if that is where it is."""
        self._search = None
        self.vain += 1
        self._given_up.add(search.blocked)
        self._fixed.update(search.choices)
        for k, decision in enumerate(self.decisions):
            if search.choices.get(decision.node, decision.index) != decision.index:
                self._rewind(k)
                return self._recompute(decision.node)
        return None

    @functools.cache  # noqa: B019
    def _ancestors(self, node: ValueNode) -> frozenset[ValueNode]:
        found: set[ValueNode] = set()
        waiting = [node]
        while waiting:
            x = waiting.pop()
            if x not in found:
                found.add(x)
                waiting.extend(n for n in x.inputs() if n.dynamic)
        return frozenset(found)

    # ---- differences -----------------------------------------------------------------------------------------------

    def _force(self, blocked: ValueNode, node: ValueNode) -> ValueNode | None:
        """Go on with the source's value of the operand that differs, from the node that is returned: None is where the
        search is."""
        if not self._compares and all(self._is_known(x) for x in node.inputs() if x.static):
            self._skipped.add(blocked)  # it served to choose among decisions
            return None
        source = candidates.expected_site(self, node, blocked)
        if source is None or blocked in self._forced:
            self.failed.add(node)
            self._skipped.add(blocked)
            return None
        if blocked in self.class_of:  # the same value, which nothing of the source meets in this way
            self.failed.add(node)
            self.divergences.append(Divergence(node, None, node))
            return None
        base = blocked
        while base.op in ("permute_dims", "reshape") and base.args[0].op != "input":
            base = base.args[0]  # other uses of the value go on with the source's as well
        positions = _by_shape(base.shape, source.shape)
        divergence = Divergence(base, source, node)
        if positions is None or base in self._forced:
            self.divergences.append(divergence)
            self.failed.add(node)
            self._skipped.add(blocked)
            return None
        value_class = self.pool.class_of.get(source)
        located = self.pool.positions(source)
        within = None if located is None else located.ravel()[positions]
        self._recompute(base)
        self.divergences.append(divergence)
        self._forced[base] = (self.source_values(source).ravel()[positions], value_class, within)
        return base

    def is_forced(self, node: ValueNode) -> bool:
        """Its value was taken from the source, where the programs differ."""
        return node in self._forced

    def _take_forced(self, node: ValueNode) -> None:
        value, value_class, positions = self._forced[node]
        self.target_values.values[node] = value
        if value_class is not None:
            self.class_of[node] = value_class
            self._positions[node] = positions

    def _diverge_at_output(self, node: ValueNode) -> None:
        where = self.target.outputs.index(node)
        outputs = self.source.outputs
        self.divergences.append(Divergence(node, outputs[where] if where < len(outputs) else None, None))
        self._given_up.add(node)


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
