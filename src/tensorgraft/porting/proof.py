"""Proof: which of the parameters that a search has found are shown to be right by a value that is equal.

A value proves the choices that it depends on if it equals one of the source's and was not itself chosen: a sum, a
product with another weight, a softmax, or a result of the program. What was computed from a value that was taken from
the source, as the programs differ there, proves nothing, unless the difference has a reason, or all that follows fits:
every parameter of the source is used once, up to equal results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tensorgraft.porting.labels import RANGE
from tensorgraft.porting.matching import Divergence, Matcher
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode

_ELEMENTWISE = POINTWISE | MOVEMENT | {"affine", "concat"}


def unproved(matcher: Matcher) -> set[str]:
    """The parameters of the target that no value proves."""
    proof = _Proof(matcher)
    confirmed = proof.confirmed()
    return {name for d in matcher.decisions if d.node not in confirmed for name, _ in d.applied}


class _Proof:
    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.forced: dict[ValueNode, Divergence] = {
            d.target: d for d in matcher.divergences if matcher.is_forced(d.target)
        }
        outputs = (matcher.pool.class_of.get(n) for n in matcher.source.outputs)
        self.results = {id(c): n for n, c in zip(matcher.source.outputs, outputs, strict=True) if c is not None}
        self.consistent = self._is_consistent()

    def confirmed(self) -> set[ValueNode]:
        """The nodes of the target on which a value that proves depends."""
        doubtful: set[ValueNode] = set()  # computed from a value that was taken from the source without a reason
        found: set[ValueNode] = set()
        for node in self.matcher.target.nodes:
            if not node.dynamic:
                continue
            difference = self.forced.get(node)
            if difference is None:
                if not doubtful.isdisjoint(node.inputs()):
                    doubtful.add(node)
                elif self._is_result(node):
                    found |= self._computed_from([node])
                elif self._mixes(node) and self._is_equal(node):
                    found |= self._computed_from(_dynamic(node))
            else:
                if difference.explained and doubtful.isdisjoint(node.inputs()):
                    found |= self._computed_from([node])
                if not (difference.explained or self.consistent):
                    doubtful.add(node)
        return found

    def _computed_from(self, nodes: Iterable[ValueNode]) -> set[ValueNode]:
        """The nodes and what they are computed from, up to values that were taken from the source."""
        found: set[ValueNode] = set()
        first = list(nodes)
        waiting = list(first)
        while waiting:
            node = waiting.pop()
            if node in found or (node in self.forced and node not in first):
                continue
            found.add(node)
            waiting += _dynamic(node)
        return found

    def _is_equal(self, node: ValueNode) -> bool:
        return node in self.matcher.class_of and self.matcher.positions(node) is not None

    def _is_result(self, node: ValueNode) -> bool:
        matcher = self.matcher
        return node in matcher.target.outputs and self._is_equal(node) and id(matcher.class_of[node]) in self.results

    def _mixes(self, node: ValueNode) -> bool:
        """Its elements are made of several: but a product of two values is the same for exchanged ones."""
        return node.op not in _ELEMENTWISE and (node.op != "dot_general" or not node.args[1].dynamic)

    def _is_consistent(self) -> bool:
        """All parameters are known, results are equal, and what they depend on in the source is used."""
        matcher = self.matcher
        outputs = matcher.target.outputs
        if matcher.failed or len(self.forced) < len(matcher.divergences) or not all(map(self._is_result, outputs)):
            return False
        needed: set[str] = set()
        visited: set[ValueNode] = set()
        waiting = [self.results[id(matcher.class_of[n])] for n in outputs]
        while waiting:
            node = waiting.pop()
            if node not in visited:
                visited.add(node)
                needed |= node.parameters
                waiting += node.inputs()
        return needed <= _used(matcher)


def _dynamic(node: ValueNode) -> Iterator[ValueNode]:
    return (x for x in node.inputs() if x.dynamic)


def _used(matcher: Matcher) -> set[str]:
    """The source's parameters of which elements are known to be the target's."""
    labels = [*matcher.origins.values(), *(more for rows in matcher.added.values() for _, more in rows)]
    return {matcher.source_labels.names[k] for x in labels for k in np.unique(x[x >= 0] // RANGE).tolist()}
