"""Candidates for scales and shifts: `core * scale + shift` of both programs, for the same core."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tensorgraft.porting.binding import Alternative, Binding, Bound
from tensorgraft.porting.labels import RANGE, ElementLabels, take
from tensorgraft.porting.masks import MASKED
from tensorgraft.porting.nodes import ValueNode, number_of
from tensorgraft.porting.state import State
from tensorgraft.porting.values import Evaluator, relative_difference

MOST = 5040  # assignments of parameters that are tried at one place
EQUAL = 1e-7  # of the largest: factors are computed in float64 from the same numbers


class _Side:
    """The factors of an affine node, and its parameters' labels at each element."""

    def __init__(self, node: ValueNode, order: np.ndarray) -> None:
        self.node, self.order = node, order
        self.factors = node.args[1:]

    def values(self, evaluator: Evaluator) -> tuple[np.ndarray, np.ndarray]:
        """(scale, shift) at the elements in the common order."""
        neutral = (1.0, 0.0)
        return tuple(  # type: ignore[return-value]
            np.full(self.order.shape, empty) if f is None else self.ordered(evaluator(f))
            for f, empty in zip(self.factors, neutral, strict=True)
        )

    def ordered(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.node.shape).ravel()[self.order]

    def atoms(self, labels: ElementLabels) -> list[np.ndarray] | None:
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


def alternatives(matcher: State, node: ValueNode, sites: Sequence[ValueNode]) -> list[Alternative]:
    """The assignments for which scale and shift are those of a site of the source, or with a number that is added to
    one of both values later: a forget gate's 1 may be of the bias."""
    exact: list[Alternative] = []
    with_number: list[Alternative] = []
    rough: list[tuple[float, Alternative]] = []
    of_target, after = _added_numbers(node), {x.op for use in node.uses for x in use.uses}
    for site in sites:
        sides = _sides(matcher, node, site)
        if sides is None:
            continue
        for error, bindings in _assignments(matcher, *sides):
            choice = Bound([site], bindings)
            if error <= EQUAL:
                exact.append(choice)
                break
            rough.append((error, choice))
        numbers = {y - x for x in (0.0, *of_target) for y in (0.0, *_added_numbers(site))}
        for number in sorted(numbers - {0.0}):
            found = _assignments(matcher, *sides, number)
            with_number += [Bound([site], bindings) for error, bindings in found[-1:] if error <= EQUAL]
    if len(of_target) == len(node.uses) and after & {x.op for site in sites for x in site.uses}:
        exact, with_number = with_number, exact  # a gate takes the sum
    return [*exact, *with_number] or [a for _, a in sorted(rough, key=lambda r: r[0])[:1]]


def _added_numbers(node: ValueNode) -> list[float]:
    """The numbers that are added to a value where it is used."""
    found = []
    for use in node.uses:
        if use.op in ("add", "subtract") and len(use.args) == 2:
            numbers = [number_of(x) for x in use.args]
            if use.op == "add" and numbers != [None, None]:
                found.append(next(x for x in numbers if x is not None))
            elif use.op == "subtract" and numbers[1] is not None:
                found.append(-numbers[1])
    return found


def _sides(matcher: State, node: ValueNode, site: ValueNode) -> tuple[_Side, _Side] | None:
    """Both, with elements in the order of the target's, one for each combination of labels."""
    if node.size != site.size or node.args[0].size != node.size or site.args[0].size != site.size:
        return None
    core = node.args[0]
    if core in matcher.class_of or core in matcher.negated:
        of_target = matcher.positions(core) if core in matcher.class_of else matcher.negated[core][1]
        of_source = matcher.pool.positions(site.args[0])
        if of_target is None or of_source is None:
            return None
        where = np.empty(of_source.size, np.int64)
        where[of_source.ravel()] = np.arange(of_source.size)
        order = where[of_target.ravel()]
    else:
        order = np.arange(node.size)
    return _Side(node, np.arange(node.size)), _Side(site, order)


def _assignments(
    matcher: State, of_target: _Side, of_source: _Side, number: float = 0.0
) -> list[tuple[float, list[Binding]]]:
    """(how far scale and shift are off, the bindings), for each assignment; the first that fits is the last.

    `number` is added to the source's shift, which has the other sign where the core has.
    """
    t, s = of_target.atoms(matcher.target_labels), of_source.atoms(matcher.source_labels)
    if t is None or s is None:
        return []
    masked = np.abs(of_source.values(matcher.source_values)[1]) >= MASKED
    if masked.any() and not masked.all():
        for side in (of_target, of_source):
            side.order = side.order[~masked]
        t, s = of_target.atoms(matcher.target_labels) or [], of_source.atoms(matcher.source_labels) or []
    unknown = [a for a in t if matcher.is_unknown(a)]
    scale, shift = of_source.values(matcher.source_values)
    sign = -1 if of_target.node.args[0] in matcher.negated else 1
    trial = _Trial(matcher, of_target, (scale, sign * shift + number), sign)
    spare: list[np.ndarray | None] = [None] * max(len(unknown) - len(s), 0)
    for chosen in itertools.islice(itertools.permutations([*s, *spare], len(unknown)), MOST):
        bindings = _bindings(unknown, chosen, sign)
        if bindings is not None and trial.fits(bindings):
            return trial.found
    if len(unknown) == 1:
        trial.with_offset(unknown[0], s)
    return trial.found


def _bindings(unknown: Sequence[np.ndarray], chosen: Sequence[np.ndarray | None], sign: int) -> list[Binding] | None:
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
        out.append(Binding(first[ok], source[ok], sign=sign))
    return out


class _Trial:
    """Tries bindings: how far the factors are from those that are wanted. `found` has all, the last is the best."""

    def __init__(self, matcher: State, of_target: _Side, wanted: tuple[np.ndarray, np.ndarray], sign: int) -> None:
        self.matcher, self.of_target, self.wanted, self.sign = matcher, of_target, wanted, sign
        self.found: list[tuple[float, list[Binding]]] = []

    def fits(self, bindings: list[Binding]) -> bool:
        matcher = self.matcher
        parameters = {n: matcher.bound[n].copy() for n in self.of_target.parameters()}
        for b in bindings:
            for k in np.unique(b.target // RANGE):
                selected = b.target // RANGE == k
                flat = parameters[matcher.target_labels.names[int(k)]].reshape(-1)
                flat[b.target[selected] % RANGE] = b.values(matcher.weights)[selected]
        values = self.of_target.values(Evaluator(matcher.target, parameters))
        error = max(relative_difference(w, v) for w, v in zip(self.wanted, values, strict=True))
        self.found.append((error, bindings))
        return error <= EQUAL

    def with_offset(self, at: np.ndarray, sources: Sequence[np.ndarray]) -> None:
        """Try what one array would have to be: the sum of the source's (both biases of a recurrent layer), one of them
        and a number (the forget gate's 1, scales counted from 0 or 1), or a number alone."""
        first, index = np.unique(at, return_index=True)
        required = self._required(first)
        if required is None:
            return
        required, ok = required[index], first >= 0
        weights = self.matcher.weights
        rows = [labels[index][ok] for labels in sources if (labels[index][ok] >= 0).all()]
        for n in range(len(rows), 0, -1):
            for chosen in itertools.combinations(rows, n):
                offset = required[ok] - self.sign * sum(take(weights, r) for r in chosen)
                rounded = np.round(offset, 6)
                is_number = np.allclose(offset, rounded, atol=1e-9) and np.unique(rounded).size <= 2
                if is_number and self.fits([Binding(first[ok], chosen[0], rounded, tuple(chosen[1:]), self.sign)]):
                    return
        if ok.any() and np.ptp(required[ok]) <= EQUAL:
            self.fits([Binding(first[ok], np.full(int(ok.sum()), -1), float(np.round(required[ok][0], 9)))])

    def _required(self, labels: np.ndarray) -> np.ndarray | None:
        """The values of the unknown elements for which the factors are as wanted, if they are linear in them."""
        results = []
        for value in (0.0, 1.0):
            parameters = {n: np.nan_to_num(self.matcher.bound[n], nan=value) for n in self.of_target.parameters()}
            results.append(self.of_target.values(Evaluator(self.matcher.target, parameters)))
        for which in (1, 0):
            zero, one = results[0][which], results[1][which]
            with np.errstate(all="ignore"):
                required = (self.wanted[which] - zero) / (one - zero)
            if np.isfinite(required).all():
                return np.asarray(required)
        return None
