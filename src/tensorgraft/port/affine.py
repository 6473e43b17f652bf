"""Candidates for scales and shifts: `core * scale + shift` of both programs, for the same core."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft.port.graph import Node
from tensorgraft.port.labels import RANGE, take
from tensorgraft.port.values import Evaluator, relative_difference

if TYPE_CHECKING:
    from tensorgraft.port.candidates import Alternative
    from tensorgraft.port.matching import Binding, Matcher

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

    def leaves(self) -> list[str]:
        return list(dict.fromkeys(n for f in self.factors if f is not None for n in sorted(f.parameters)))

    def labels(self, labels: Any, name: str) -> np.ndarray | None:
        for f in self.factors:
            if f is not None and name in f.parameters:
                found = labels.of_leaf(f, name)
                return None if found is None else self.ordered(found)
        return None


def alternatives(matcher: Matcher, node: Node, sites: Sequence[Node]) -> list[Alternative]:
    """The assignments for which scale and shift are those of a site of the source."""
    from tensorgraft.port.candidates import Bound

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
    unknown = [n for n in mine.leaves() if np.isnan(matcher.bound[n]).any()]
    t = {n: mine.labels(matcher.target_labels, n) for n in unknown}
    s = {n: theirs.labels(matcher.source_labels, n) for n in theirs.leaves()}
    s = {n: labels for n, labels in s.items() if labels is not None}
    if any(labels is None for labels in t.values()):
        return []
    wanted = theirs.values(matcher.source_values)
    spare = max(len(unknown) - len(s), 0)
    found: list[tuple[float, list[Binding]]] = []
    choices = itertools.permutations([*_by_name(s), *[""] * spare], len(unknown))
    for chosen in itertools.islice(dict.fromkeys(itertools.islice(choices, MOST)), MOST):
        bindings = _bindings(matcher, t, s, dict(zip(unknown, chosen, strict=True)))
        if bindings is None:
            continue
        error = _error(matcher, mine, wanted, bindings, found)
        if error <= EQUAL:
            break
    if len(unknown) == 1 and not (found and found[-1][0] <= EQUAL):
        _with_offset(matcher, mine, theirs, wanted, unknown[0], t, s, found)
    return found


def _by_name(names: Mapping[str, Any]) -> list[str]:
    return list(names)


def _bindings(
    matcher: Matcher, t: Mapping[str, Any], s: Mapping[str, Any], chosen: Mapping[str, str]
) -> list[Binding] | None:
    from tensorgraft.port.matching import Binding

    out = []
    for name, other in chosen.items():
        at, labels = t[name], s.get(other)
        if labels is None:  # what is neutral in a sum
            inside = np.unique(at[at >= 0])
            out.append(Binding(inside, np.full(inside.shape, -1)))
            continue
        first, index = np.unique(at, return_index=True)
        source = labels[index]
        if not np.array_equal(source[np.searchsorted(first, at)], labels):
            return None  # one element of the target would be several of the source
        ok = (first >= 0) & (source >= 0)
        out.append(Binding(first[ok], source[ok]))
    return out


def _error(
    matcher: Matcher, mine: _Side, wanted: Any, bindings: list[Binding], found: list[tuple[float, list[Binding]]]
) -> float:
    """Try bindings: how far the factors are from those that are wanted. Adds it to `found`."""
    parameters = {n: matcher.bound[n].copy() for n in mine.leaves()}
    for b in bindings:
        if not b.target.size:
            continue
        name = matcher.target_labels.names[int(b.target[0] // RANGE)]
        parameters[name].reshape(-1)[b.target % RANGE] = take(matcher.weights, b.source) + b.offset
    values = mine.values(Evaluator(matcher.target, parameters))
    error = max(relative_difference(w, v) for w, v in zip(wanted, values, strict=True))
    found.append((error, bindings))
    return error


def _with_offset(
    matcher: Matcher, mine: _Side, theirs: _Side, wanted: Any, name: str, t: Any, s: Any,
    found: list[tuple[float, list[Binding]]],
) -> None:  # fmt: skip
    """A parameter that is the source's plus a number: the forget gate's 1, scales counted from 0 or 1; or a number
    that the source has no parameter for."""
    from tensorgraft.port.matching import Binding

    results = []
    for trial in (0.0, 1.0):
        values = {n: matcher.bound[n] for n in mine.leaves()} | {name: np.full_like(matcher.bound[name], trial)}
        results.append(mine.values(Evaluator(matcher.target, values)))
    which = 0 if mine.factors[0] is not None and name in mine.factors[0].parameters else 1
    zero, one = results[0][which], results[1][which]
    with np.errstate(all="ignore"):
        needed = (wanted[which] - zero) / (one - zero)
    if not np.isfinite(needed).all():
        return
    at = t[name]
    first, index = np.unique(at, return_index=True)
    needed, at = needed[index], first
    ok = at >= 0
    for labels in s.values():
        source = labels[index]
        offset = needed - take(matcher.weights, source)
        rounded = np.round(offset, 6)
        if np.allclose(offset, rounded, atol=1e-9) and np.unique(rounded[ok]).size <= 2 and (source[ok] >= 0).all():
            bindings = [Binding(at[ok], source[ok], rounded[ok])]
            if _error(matcher, mine, wanted, bindings, found) <= EQUAL:
                return
    if np.ptp(needed[ok]) <= EQUAL:
        bindings = [Binding(at[ok], np.full(int(ok.sum()), -1), float(np.round(needed[ok][0], 9)))]
        _error(matcher, mine, wanted, bindings, found)
