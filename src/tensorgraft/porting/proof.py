"""Proof: which of the parameters that a search has found are shown to be right by values that are equal.

A parameter is chosen so that what it is multiplied with or added to becomes a value of the source: this value proves
nothing. A later one does, if every place of the source at which the parameter could be has an effect on it: exchanged
layers are equal up to there. It has to meet what does not depend on it alone. Results of the program prove all.

What was computed from a value that was taken from the source, as the programs differ there, proves nothing, unless the
difference has a reason, or all that follows fits: every parameter of the source is used, up to results that are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tensorgraft.porting.labels import RANGE
from tensorgraft.porting.matching import Decision, Divergence, Matcher
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode

Nodes = frozenset[ValueNode]
_NONE: Nodes = frozenset()


def unproved(matcher: Matcher) -> set[str]:
    """The parameters of the target that no value proves."""
    confirmed = _Proof(matcher).confirmed()
    return {name for d in matcher.decisions if d.node not in confirmed for name, _ in d.applied}


@dataclass(frozen=True)
class _Basis:
    """The decisions that a value depends on: all, those that another value meets in it, and those of a product of two
    values, which is the same for exchanged ones until its elements are mixed."""

    all_: Nodes = _NONE
    joined: Nodes = _NONE
    exchangeable: Nodes = _NONE
    doubtful: bool = False  # computed from a value that was taken from the source, and was not shown to be right


class _Proof:
    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.decisions: dict[ValueNode, Decision] = {d.node: d for d in matcher.decisions}
        self.forced: dict[ValueNode, Divergence] = {
            d.target: d for d in matcher.divergences if matcher.is_forced(d.target)
        }
        self.reached = _reached(matcher)
        outputs = (matcher.pool.class_of.get(n) for n in matcher.source.outputs)
        self.results = {id(c): n for n, c in zip(matcher.source.outputs, outputs, strict=True) if c is not None}
        self.consistent = self._is_consistent()

    def confirmed(self) -> set[ValueNode]:
        """The nodes whose decisions are shown to be right."""
        bases: dict[ValueNode, _Basis] = {}
        found: set[ValueNode] = set()
        before: dict[ValueNode, Nodes] = {}
        for node in self.matcher.target.nodes:
            if node.dynamic:
                bases[node] = basis = self._basis(node, [bases[x] for x in node.inputs() if x.dynamic])
                before[node] = basis.all_ - {node}
                difference = self.forced.get(node)
                if difference is not None:
                    found |= basis.all_ if difference.explained and not basis.doubtful else _NONE
                    bases[node] = _Basis(doubtful=not (difference.explained or self.consistent))
                elif not basis.doubtful:
                    found |= self._shown(node, basis)
        confirmed: set[ValueNode] = set()
        for node in self.decisions:  # in the order of the program
            if node in found and before[node] <= confirmed:
                confirmed.add(node)
        return confirmed

    def _basis(self, node: ValueNode, operands: list[_Basis]) -> _Basis:
        every = _union(b.all_ for b in operands)
        joined, exchangeable = _union(b.joined for b in operands), _union(b.exchangeable for b in operands)
        if len({b.all_ for b in operands}) > 1:
            known = any(b.all_ and b.all_ <= b.joined for b in operands)
            if node.op in POINTWISE or known:
                joined |= every
            else:
                exchangeable |= every
        elif node.op not in POINTWISE | MOVEMENT | {"affine", "concat"}:
            joined |= exchangeable
        own = frozenset([node]) if node in self.decisions else _NONE
        return _Basis(every | own, joined, exchangeable, any(b.doubtful for b in operands))

    def _shown(self, node: ValueNode, basis: _Basis) -> Nodes:
        """The decisions that are shown to be right if the value of a node is equal."""
        if not self._is_equal(node):
            return _NONE
        if self._is_result(node):
            return basis.all_
        shown = set(basis.joined)
        if node not in self.decisions and node.op not in MOVEMENT:
            shown |= {n for n in basis.all_ if len(self.decisions[n].alternatives) == 1}
        members = self.matcher.class_of[node].members
        reached = [self.reached[m] for m in members]
        return frozenset(n for n in shown if any(r.issuperset(self._possible(n)) for r in reached))

    @functools.cache  # noqa: B019
    def _possible(self, node: ValueNode) -> frozenset[ValueNode]:
        """The places of the source that a decision has to choose from."""
        return frozenset(s for a in self.decisions[node].alternatives for s in a.sites)

    def _is_equal(self, node: ValueNode) -> bool:
        return node in self.matcher.class_of and self.matcher.positions(node) is not None

    def _is_result(self, node: ValueNode) -> bool:
        matcher = self.matcher
        return node in matcher.target.outputs and self._is_equal(node) and id(matcher.class_of[node]) in self.results

    def _is_consistent(self) -> bool:
        """All parameters are known, results are equal, and what they depend on in the source is used."""
        matcher = self.matcher
        outputs = matcher.target.outputs
        if matcher.failed or len(self.forced) < len(matcher.divergences) or not all(map(self._is_result, outputs)):
            return False
        required: set[str] = set()
        visited: set[ValueNode] = set()
        waiting = [self.results[id(matcher.class_of[n])] for n in outputs]
        while waiting:
            node = waiting.pop()
            if node not in visited:
                visited.add(node)
                required |= node.parameters
                waiting += node.inputs()
        return required <= _used(matcher)


def _reached(matcher: Matcher) -> dict[ValueNode, Nodes]:
    """The places with parameters that have an effect on each of the source's values."""
    places = {s for d in matcher.decisions for a in d.alternatives for s in a.sites}
    found: dict[ValueNode, Nodes] = {}
    for node in matcher.source.nodes:
        own = frozenset([node]) if node in places else _NONE
        found[node] = _union([*(found[x] for x in node.inputs()), own])
    return found


def _union(sets: Iterable[Nodes]) -> Nodes:
    found = _NONE
    for s in sets:
        found = s if found <= s else found if s <= found else found | s
    return found


def _used(matcher: Matcher) -> set[str]:
    """The source's parameters of which elements are known to be the target's."""
    labels = [*matcher.origins.values(), *(more for rows in matcher.added.values() for _, more in rows)]
    return {matcher.source_labels.names[k] for x in labels for k in np.unique(x[x >= 0] // RANGE).tolist()}
