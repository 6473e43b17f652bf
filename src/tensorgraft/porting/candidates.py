"""Candidates: the ways in which the parameters that a node of the target uses may be parameters of the source."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.porting import affine
from tensorgraft.porting.binding import Alternative, Binding, Bound
from tensorgraft.porting.nodes import MOVEMENT, ValueNode
from tensorgraft.porting.pieces import complements, pieces
from tensorgraft.porting.state import State
from tensorgraft.porting.terms import PRODUCTS, Rows, rows
from tensorgraft.porting.values import fingerprint

MOST_ALTERNATIVES = 128
MOST_ROWS = 64  # of a product, that are looked at until every weight has occurred


def alternatives(matcher: State, node: ValueNode) -> list[Alternative]:
    """The ways for a node of the target, the likeliest first."""
    if node.op in PRODUCTS and node.args[0].dynamic:
        return _products(matcher, node)
    if node.op == "affine":
        return affine.alternatives(matcher, node, sites(matcher, node, ("affine",)))
    if node.op == "gather" and node.args[0].static:
        return _gathers(matcher, node)
    return _others(matcher, node)


def sites(matcher: State, node: ValueNode, ops: Sequence[str]) -> list[ValueNode]:
    """The nodes of the source that combine the value that `node` takes with parameters, the likeliest first: those that
    nothing corresponds to yet, then by their names, then in the order of the program."""
    operand = next(x for x in node.inputs() if x.dynamic)
    value_class = matcher.class_of.get(operand) or matcher.negated.get(operand, (None,))[0]
    found = []
    for other in matcher.source.nodes:
        if other.op not in ops or not other.dynamic or not any(x.static for x in other.inputs()):
            continue
        of_target = next(x for x in other.inputs() if x.dynamic)
        if value_class is not None:
            same = matcher.pool.class_of.get(of_target) is value_class
        else:  # zeros: the first state of a recurrent layer
            same = of_target.size == operand.size and fingerprint(matcher.source_values(of_target)) is None
        if same:
            found.append(other)
    return ordered(matcher, node, found)


def ordered(matcher: State, node: ValueNode, found: Sequence[ValueNode]) -> list[ValueNode]:
    """Source nodes, the likeliest first."""
    of_target = parameter_names(node)
    hinted = {matcher.hints[n] for n in of_target if n in matcher.hints}

    def key(other: ValueNode) -> tuple[Any, ...]:
        names = parameter_names(other)
        is_used = matcher.used[other] > 0 or all(matcher.used_names[n] > 0 for n in names)  # by a step of a loop
        return (not hinted & names, is_used, -likeness(of_target, names), other.number)

    return sorted(found, key=key)


def parameter_names(node: ValueNode) -> frozenset[str]:
    return frozenset().union(*(x.parameters for x in node.inputs() if x.static))


_WORDS = {"kernel": "weight", "gamma": "scale", "beta": "bias", "offset": "bias", "w": "weight", "b": "bias",
          "embeddings": "embedding", "q": "query", "k": "key", "v": "value", "wq": "query", "wk": "key",
          "wv": "value", "moving": "running", "variance": "var", "backward": "reverse"}  # fmt: skip


def likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """The share of words that names have in common."""
    x, y = (_words(names) for names in (a, b))
    return len(x & y) / max(len(x | y), 1)


def _words(names: frozenset[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        for word in re.findall(r"[A-Z]?[a-z]+|\d+|[A-Z]+(?![a-z])", name):
            lower = word.lower()
            found.add(_WORDS.get(lower, lower))
    return found


# ---- products --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Aligned:
    """Rows of a product of the target and one of the source that take the same elements: labels (channels, terms) of
    their weights, terms in one order."""

    target: np.ndarray
    source: np.ndarray
    groups_target: np.ndarray  # (channels, terms): the operand's elements
    groups_source: np.ndarray


@dataclass(eq=False)
class ProductChoice:
    """A product's channels, a piece at a time."""

    matcher: State
    node: ValueNode
    pairs: Sequence[tuple[np.ndarray, ValueNode, np.ndarray]]  # (target channels, source product, its channels)
    negative: frozenset[int] = frozenset()  # the pairs whose weights have the other sign

    @property
    def sites(self) -> Sequence[ValueNode]:
        return list(dict.fromkeys(s for _, s, _ in self.pairs))

    def bindings(self) -> list[Binding]:
        out = []
        for k, (of_target, source, other) in enumerate(self.pairs):
            for part in aligned(self.matcher, self.node, source):
                if part.groups_target.shape[1] != part.groups_source.shape[1]:
                    continue
                same = (part.groups_target[of_target] == part.groups_source[other]).all(axis=1)
                t, s = part.target[of_target][same].ravel(), part.source[other][same].ravel()
                ok = (t >= 0) & (s >= 0)
                out.append(Binding(t[ok], s[ok], sign=-1 if k in self.negative else 1))
        return out


def _products(matcher: State, node: ValueNode) -> list[Alternative]:
    if matcher.target_labels.of(node.args[1]) is None:
        return []
    found = [s for s in sites(matcher, node, PRODUCTS) if matcher.source_labels.of(s.args[1]) is not None]
    found, unaligned = [s for s in found if aligned(matcher, node, s)], found
    if not found:
        return _other_windows(matcher, node, unaligned)
    of_target = pieces(matcher.target, node)
    channels = np.arange(sum(len(p) for p in of_target))
    of_source = {s: pieces(matcher.source, s) for s in found}
    lengths = tuple(map(len, of_target))
    by_site: list[list[ProductChoice]] = []
    for s in found:  # pieces of one product, in every order
        if len(of_target) > 1 and sorted(map(len, of_source[s])) == sorted(lengths):
            orders = _permutations(lengths, tuple(map(len, of_source[s])))
            choices = ([(p, s, of_source[s][k]) for p, k in zip(of_target, o, strict=True)] for o in orders)
            by_site.append([ProductChoice(matcher, node, pairs) for pairs in choices])
        elif sum(map(len, of_source[s])) == len(channels):
            by_site.append([ProductChoice(matcher, node, [(channels, s, channels)])])
    options = [a for row in itertools.zip_longest(*by_site) for a in row if a is not None]
    every = [(s, p) for s in found for p in of_source[s]]
    if len(of_target) == 1:
        options += [
            ProductChoice(matcher, node, [(channels, s, p)])
            for s, p in every
            if len(p) == len(channels) and len(of_source[s]) > 1
        ]
    elif len({s for s, _ in every}) > 1:
        options += _across(matcher, node, of_target, every)
    options = options[:MOST_ALTERNATIVES]
    return [*options, *_of_other_sign(node, options)]


def _of_other_sign(node: ValueNode, options: Sequence[ProductChoice]) -> Iterator[Alternative]:
    """The choices with weights of the other sign for gates that are one minus the other program's."""
    of_target = complements(node)
    of_source = {s: complements(s) for option in options for s in option.sites}
    if not of_target and not any(of_source.values()):
        return
    for option in options:
        gates = [k for k, (t, s, c) in enumerate(option.pairs) if of_target >= {*t} or of_source[s] >= {*c}]
        for n in range(1, len(gates) + 1):
            for chosen in itertools.combinations(gates, n):
                yield replace(option, negative=frozenset(chosen))


def _other_windows(matcher: State, node: ValueNode, found: Sequence[ValueNode]) -> list[Alternative]:
    """Convolutions that see other windows of the same image, with kernels of one shape: padded in another way."""
    t = matcher.target_labels.of(node.args[1])
    pairs = [(s, matcher.source_labels.of(s.args[1])) for s in found if s.op == node.op == "convolution"]
    return [
        Bound([s], [Binding(t.ravel(), w.ravel())])
        for s, w in pairs
        if t is not None and w is not None and w.shape == t.shape
    ]


def _across(
    matcher: State, node: ValueNode, of_target: Sequence[np.ndarray], every: Sequence[tuple[ValueNode, np.ndarray]]
) -> Iterator[ProductChoice]:
    """A fused product of the target, whose pieces are products of the source."""
    in_program = sorted(every, key=lambda e: (matcher.used[e[0]] > 0, e[0].number))
    for chosen in itertools.islice(itertools.permutations(in_program, len(of_target)), 4 * MOST_ALTERNATIVES):
        if all(len(p) == len(q) for p, (_, q) in zip(of_target, chosen, strict=True)):
            yield ProductChoice(matcher, node, [(p, s, q) for p, (s, q) in zip(of_target, chosen, strict=True)])


def _permutations(of_target: tuple[int, ...], of_source: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    fitting = (
        order
        for order in itertools.permutations(range(len(of_source)))
        if all(of_source[k] == n for n, k in zip(of_target, order, strict=True))
    )
    return itertools.islice(fitting, MOST_ALTERNATIVES)


def aligned(matcher: State, node: ValueNode, source: ValueNode) -> list[Aligned]:
    """Rows of both products that take the same elements of the operand, until every weight has occurred."""
    positions = matcher.positions(node.args[0])
    key = (node, source)
    if key not in matcher.aligned or matcher.aligned[key][0] is not positions:
        matcher.aligned[key] = [positions, _aligned(matcher, node, source)]
    return list(matcher.aligned[key][1])


def _aligned(matcher: State, node: ValueNode, source: ValueNode) -> list[Aligned]:
    of_target, of_source = matcher.positions(node.args[0]), matcher.pool.positions(source.args[0])
    t, s = matcher.target_labels.of(node.args[1]), matcher.source_labels.of(source.args[1])
    if of_target is None or of_source is None or t is None or s is None:
        return []
    found: dict[tuple[int, ...], list[Rows]] = {}  # small images have several rows of the same elements, in one order
    requested: Counter[tuple[int, ...]] = Counter()
    waiting = rows(source)
    out: list[Aligned] = []
    visited: np.ndarray | None = None
    for tried, row in enumerate(rows(node)):
        at = _located(of_target, row)
        wanted = _signature(at)
        requested[wanted] += 1
        while len(found.get(wanted, ())) < requested[wanted]:
            other = next(waiting, None)
            if other is None:
                break
            found.setdefault(_signature(_located(of_source, other)), []).append(other)
        if len(found.get(wanted, ())) >= requested[wanted]:
            other = found[wanted][requested[wanted] - 1]
            out.append(_in_order(at, t.ravel()[row.weight], _located(of_source, other), s.ravel()[other.weight]))
            covered = at.min(axis=0) >= 0
            visited = covered if visited is None else visited | covered
            if visited.all():
                break
        if tried > MOST_ROWS:
            break
    return out


def _located(positions: np.ndarray, row: Rows) -> np.ndarray:
    return np.where(row.operand >= 0, positions.ravel()[row.operand], -1)


def _signature(at: np.ndarray) -> tuple[int, ...]:
    within = np.unique(at[at >= 0])
    return (int(within.size), int(within.sum()), int((within * within % 1000003).sum()))


def _in_order(at: np.ndarray, t: np.ndarray, other: np.ndarray, s: np.ndarray) -> Aligned:
    by, to = np.argsort(at, axis=1, kind="stable"), np.argsort(other, axis=1, kind="stable")
    take = np.take_along_axis
    a, b = take(at, by, 1), take(other, to, 1)
    t, s = take(t, by, 1), take(s, to, 1)
    within = int((a >= 0).sum(axis=1).min()), int((b >= 0).sum(axis=1).min())
    return Aligned(t[:, -within[0] :], s[:, -within[1] :], a[:, -within[0] :], b[:, -within[1] :])


# ---- rows of tables, and what else takes a parameter -----------------------------------------------------------------


def _gathers(matcher: State, node: ValueNode) -> list[Alternative]:
    """Tables: a row of the target's is the row of the source's that the same index takes."""
    t = matcher.target_labels.of(node.args[0])
    options: list[Alternative] = []
    for s in sites(matcher, node, ("gather",)):
        labels = matcher.source_labels.of(s.args[0])
        if t is None or labels is None or labels.shape[1:] != t.shape[1:]:
            continue
        n = min(len(t), len(labels))
        options.append(Bound([s], [Binding(t[:n].ravel(), labels[:n].ravel())]))
    return options


def _others(matcher: State, node: ValueNode) -> list[Alternative]:
    """An operation of other kinds: the source's of the same name, on the same values."""
    of_target = [x for x in node.inputs() if x.static]
    options: list[Alternative] = []
    for s in sites(matcher, node, (node.op,)):
        of_source = [x for x in s.inputs() if x.static]
        labels = [
            (matcher.target_labels.of(a), matcher.source_labels.of(b))
            for a, b in zip(of_target, of_source, strict=False)
        ]
        if len(of_target) != len(of_source) or any(a is None or b is None or a.size != b.size for a, b in labels):
            continue
        options.append(Bound([s], [Binding(a.ravel(), b.ravel()) for a, b in labels]))  # type: ignore[union-attr]
    return options


def expected_site(matcher: State, node: ValueNode, blocked: ValueNode) -> ValueNode | None:
    """The source's node that `blocked`, an operand of `node`, is likely to be, where its values differ."""
    known = [c for n, c in matcher.class_of.items() if n.number < blocked.number]
    last = max((c.members[0].number for c in known), default=-1)
    found = []
    whole = _whole(blocked)
    part_of = matcher.class_of.get(whole) if whole is not blocked else None
    matched = {id(c) for n, c in matcher.class_of.items() if n.number < blocked.number}
    statics = [p for x in node.inputs() if x.static and (p := _print(matcher.target_values(x))) is not None]
    for other in matcher.source.nodes:
        if matcher.used[other] > 0 or not other.dynamic or not any(x.static for x in other.inputs()):
            continue
        of_target = next(x for x in other.inputs() if x.dynamic)
        if of_target.size == blocked.size and _is_of_kind(node, other):
            same = part_of is not None and matcher.pool.class_of.get(_whole(of_target)) is part_of
            has = _has(matcher, other, statics)
            is_matched = (same or not has) and id(matcher.pool.class_of.get(of_target)) in matched
            found.append((not same, not has, is_matched, other.number < last, other.number, of_target))
    return min(found, key=lambda f: f[:5])[5] if found else None


def _whole(node: ValueNode) -> ValueNode:
    """The value that a node is a part or an order of."""
    while node.op in MOVEMENT and node.args[0].dynamic:
        node = node.args[0]
    return node


def _print(x: np.ndarray) -> np.ndarray | None:
    """The fingerprint of a static array; None where it is not known."""
    return None if np.isnan(x).any() else fingerprint(x)


def _has(matcher: State, other: ValueNode, statics: Sequence[np.ndarray]) -> bool:
    """A node of the source has static operands of these fingerprints, those of a target whose weights are known."""
    of_source = [p for x in other.inputs() if x.static and (p := _print(matcher.source_values(x))) is not None]
    near = (any(np.allclose(p, q, rtol=1e-6, atol=1e-6) for q in of_source) for p in statics)
    return bool(statics) and all(near)


def _is_of_kind(node: ValueNode, other: ValueNode) -> bool:
    """The same kind of operation with parameters, of weights that fit."""
    if node.op in PRODUCTS:
        if other.op not in PRODUCTS:
            return False
        a, b = (next(rows(n)).weight.shape[1] for n in (node, other))
        return a == b
    sizes = [sorted(x.size for x in n.inputs() if x.static) for n in (node, other)]
    return node.op == other.op and sizes[0] == sizes[1]
