"""Candidates for scales and shifts: `core * scale + shift` of both programs, for the same core."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorgraft.porting.binding import Binding, Bound
from tensorgraft.porting.graph import Node
from tensorgraft.porting.labels import RANGE, Labels, take
from tensorgraft.porting.values import Evaluator, relative_difference

if TYPE_CHECKING:
    from tensorgraft.porting.binding import Alternative
    from tensorgraft.porting.matching import Matcher

MOST = 5040  # assignments of parameters that are tried at one place
EQUAL = 1e-7  # of the largest: factors are computed in float64 from the same numbers


class _Side:
    """The factors of an affine node, and its parameters' labels at each element."""

    def __init__(self, node: Node, order: np.ndarray) -> None:
        self.node, self._order = node, order
        self.factors = node.args[1:]

    def values(self, evaluator: Evaluator) -> tuple[np.ndarray, np.ndarray]:
        """(scale, shift) at the elements in the common order."""
        neutral = (1.0, 0.0)
        return tuple(  # type: ignore[return-value]
            np.full(self._order.shape, empty) if f is None else self.ordered(evaluator(f))
            for f, empty in zip(self.factors, neutral, strict=True)
        )

    def ordered(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.node.shape).ravel()[self._order]

    def atoms(self, labels: Labels) -> list[np.ndarray] | None:
        """The labels of the arrays that the factors are computed from, each once."""
        found: dict[bytes, np.ndarray] = {}
        for f in self.factors:
            inner = [] if f is None else labels.atoms(f)
            if inner is None:
                return None
            for a in inner:
                ordered = self.ordered(a)
                found.setdefault(ordered.tobytes(), ordered)
        return list(found.values())

    def parameters(self) -> frozenset[str]:
        return frozenset().union(*(f.parameters for f in self.factors if f is not None))


def alternatives(matcher: Matcher, node: Node, sites: Sequence[Node]) -> list[Alternative]:
    """The assignments for which scale and shift are those of a site of the source."""
    exact: list[tuple[float, Alternative]] = []
    rough: list[tuple[float, Alternative]] = []
    for site in sites:
        sides = _sides(matcher, node, site)
        if sides is None:
            continue
        for error, bindings in _assignments(matcher, *sides):
            (exact if error <= EQUAL else rough).append((error, Bound([site], bindings)))
            if error <= EQUAL:
                break
    if exact:
        return [a for _, a in exact]
    return [a for _, a in sorted(rough, key=lambda r: r[0])[:1]]


def _sides(matcher: Matcher, node: Node, site: Node) -> tuple[_Side, _Side] | None:
    """Both, with elements in the order of the target's, one for each combination of labels."""
    if node.size != site.size or node.args[0].size != node.size or site.args[0].size != site.size:
        return None
    if node.args[0] in matcher.class_of:
        mine, theirs = matcher.positions(node.args[0]), matcher.pool.positions(site.args[0])
        if mine is None or theirs is None:
            return None
        where = np.empty(theirs.size, np.int64)
        where[theirs.ravel()] = np.arange(theirs.size)
        order = where[mine.ravel()]
    else:
        order = np.arange(node.size)
    return _Side(node, np.arange(node.size)), _Side(site, order)


def _assignments(matcher: Matcher, mine: _Side, theirs: _Side) -> list[tuple[float, list[Binding]]]:
    """(how far scale and shift are off, the bindings), for each assignment; the first that fits is the last."""
    t, s = mine.atoms(matcher.target_labels), theirs.atoms(matcher.source_labels)
    if t is None or s is None:
        return []
    unknown = [a for a in t if matcher.is_unknown(a)]
    trial = _Trial(matcher, mine, theirs.values(matcher.source_values))
    spare: list[np.ndarray | None] = [None] * max(len(unknown) - len(s), 0)
    for chosen in itertools.islice(itertools.permutations([*s, *spare], len(unknown)), MOST):
        bindings = _bindings(unknown, chosen)
        if bindings is not None and trial.fits(bindings):
            return trial.found
    if len(unknown) == 1:
        trial.with_offset(unknown[0], s)
    return trial.found


def _bindings(unknown: Sequence[np.ndarray], chosen: Sequence[np.ndarray | None]) -> list[Binding] | None:
    out = []
    for at, labels in zip(unknown, chosen, strict=True):
        first, index = np.unique(at, return_index=True)
        if labels is None:  # what is neutral in a sum
            out.append(Binding(first[first >= 0], np.full(int((first >= 0).sum()), -1)))
            continue
        source = labels[index]
        if not np.array_equal(source[np.searchsorted(first, at)], labels):
            return None  # one element of the target would be several of the source
        ok = (first >= 0) & (source >= 0)
        out.append(Binding(first[ok], source[ok]))
    return out


class _Trial:
    """Tries bindings: how far the factors are from those that are wanted. `found` has all, the last is the best."""

    def __init__(self, matcher: Matcher, mine: _Side, wanted: tuple[np.ndarray, np.ndarray]) -> None:
        self.matcher, self.mine, self.wanted = matcher, mine, wanted
        self.found: list[tuple[float, list[Binding]]] = []

    def fits(self, bindings: list[Binding]) -> bool:
        matcher = self.matcher
        parameters = {n: matcher.bound[n].copy() for n in self.mine.parameters()}
        for b in bindings:
            for k in np.unique(b.target // RANGE):
                here = b.target // RANGE == k
                flat = parameters[matcher.target_labels.names[int(k)]].reshape(-1)
                flat[b.target[here] % RANGE] = b.values(matcher.weights)[here]
        values = self.mine.values(Evaluator(matcher.target, parameters))
        error = max(relative_difference(w, v) for w, v in zip(self.wanted, values, strict=True))
        self.found.append((error, bindings))
        return error <= EQUAL

    def with_offset(self, at: np.ndarray, sources: Sequence[np.ndarray]) -> None:
        """Try what one array would have to be: the sum of the source's (both biases of a recurrent layer), one of them
        and a number (the forget gate's 1, scales counted from 0 or 1), or a number alone."""
        first, index = np.unique(at, return_index=True)
        needed = self._needed(first)
        if needed is None:
            return
        needed, ok = needed[index], first >= 0
        weights = self.matcher.weights
        rows = [labels[index][ok] for labels in sources if (labels[index][ok] >= 0).all()]
        for n in range(len(rows), 0, -1):
            for chosen in itertools.combinations(rows, n):
                offset = needed[ok] - sum(take(weights, r) for r in chosen)
                rounded = np.round(offset, 6)
                if np.allclose(offset, rounded, atol=1e-9) and np.unique(rounded).size <= 2:
                    if self.fits([Binding(first[ok], chosen[0], rounded, tuple(chosen[1:]))]):
                        return
        if ok.any() and np.ptp(needed[ok]) <= EQUAL:
            self.fits([Binding(first[ok], np.full(int(ok.sum()), -1), float(np.round(needed[ok][0], 9)))])

    def _needed(self, labels: np.ndarray) -> np.ndarray | None:
        """The values of the unknown elements for which the factors are as wanted, if they are linear in them."""
        results = []
        for value in (0.0, 1.0):
            parameters = {n: np.nan_to_num(self.matcher.bound[n], nan=value) for n in self.mine.parameters()}
            results.append(self.mine.values(Evaluator(self.matcher.target, parameters)))
        for which in (1, 0):
            zero, one = results[0][which], results[1][which]
            with np.errstate(all="ignore"):
                needed = (self.wanted[which] - zero) / (one - zero)
            if np.isfinite(needed).all():
                return np.asarray(needed)
        return None
