"""Candidates: the ways in which the parameters that a node of the target uses may be parameters of the source."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft.porting import affine
from tensorgraft.porting.binding import Alternative, Binding, Bound
from tensorgraft.porting.graph import MOVEMENT, Graph, Node, evaluate
from tensorgraft.porting.terms import PRODUCTS, Rows, rows
from tensorgraft.porting.values import fingerprint

if TYPE_CHECKING:
    from tensorgraft.porting.matching import Matcher

MOST_ALTERNATIVES = 128
MOST_PIECES = 8
_STATIC = ("add", "subtract", "affine", "astype", *MOVEMENT)


def alternatives(matcher: Matcher, node: Node) -> list[Alternative]:
    """The ways for a node of the target, the likeliest first."""
    if node.op in PRODUCTS and node.args[0].dynamic:
        return _products(matcher, node)
    if node.op == "affine":
        return affine.alternatives(matcher, node, sites(matcher, node, ("affine",)))
    if node.op == "gather" and node.args[0].static:
        return _gathers(matcher, node)
    return _others(matcher, node)


def sites(matcher: Matcher, node: Node, ops: Sequence[str]) -> list[Node]:
    """The nodes of the source that combine the value that `node` takes with parameters, the likeliest first: those that
    nothing corresponds to yet, then by their names, then in the order of the program."""
    operand = next(x for x in node.inputs() if x.dynamic)
    value_class = matcher.class_of.get(operand)
    found = []
    for other in matcher.source.nodes:
        if other.op not in ops or not other.dynamic or not any(x.static for x in other.inputs()):
            continue
        mine = next(x for x in other.inputs() if x.dynamic)
        if value_class is not None:
            same = matcher.pool.class_of.get(mine) is value_class
        else:  # zeros: the first state of a recurrent layer
            same = mine.size == operand.size and fingerprint(matcher.source_values(mine)) is None
        if same:
            found.append(other)
    return ordered(matcher, node, found)


def ordered(matcher: Matcher, node: Node, found: Sequence[Node]) -> list[Node]:
    """Source nodes, the likeliest first."""
    mine = parameter_names(node)
    hinted = {matcher.hints[n] for n in mine if n in matcher.hints}

    def key(other: Node) -> tuple[Any, ...]:
        names = parameter_names(other)
        return (not hinted & names, matcher.used[other] > 0, -likeness(mine, names), other.number)

    return sorted(found, key=key)


def parameter_names(node: Node) -> frozenset[str]:
    return frozenset().union(*(x.parameters for x in node.inputs() if x.static))


_WORDS = {"kernel": "weight", "gamma": "scale", "beta": "bias", "offset": "bias", "w": "weight", "b": "bias",
          "embeddings": "embedding", "q": "query", "k": "key", "v": "value", "wq": "query", "wk": "key",
          "wv": "value", "moving": "running", "variance": "var"}  # fmt: skip


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


# ---- products ----------------------------------------------------------------------------------------------------------


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

    matcher: Matcher
    node: Node
    pairs: Sequence[tuple[np.ndarray, Node, np.ndarray]]  # (target channels, source product, its channels)

    @property
    def sites(self) -> Sequence[Node]:
        return list(dict.fromkeys(s for _, s, _ in self.pairs))

    def bindings(self) -> list[Binding]:
        out = []
        for mine, source, other in self.pairs:
            for part in aligned(self.matcher, self.node, source):
                if part.groups_target.shape[1] != part.groups_source.shape[1]:
                    continue
                same = (part.groups_target[mine] == part.groups_source[other]).all(axis=1)
                t, s = part.target[mine][same].ravel(), part.source[other][same].ravel()
                ok = (t >= 0) & (s >= 0)
                out.append(Binding(t[ok], s[ok]))
        return out


def _products(matcher: Matcher, node: Node) -> list[Alternative]:
    if matcher.target_labels.of(node.args[1]) is None:
        return []
    found = [s for s in sites(matcher, node, PRODUCTS) if matcher.source_labels.of(s.args[1]) is not None]
    found = [s for s in found if aligned(matcher, node, s)]
    mine = pieces(matcher.target, node)
    channels = np.arange(sum(len(p) for p in mine))
    theirs = {s: pieces(matcher.source, s) for s in found}
    options: list[Alternative] = []
    lengths = tuple(map(len, mine))
    for s in found:  # pieces of one product, in every order
        if len(mine) > 1 and sorted(map(len, theirs[s])) == sorted(lengths):
            for order in _permutations(lengths, tuple(map(len, theirs[s])), matcher.habits.get(lengths)):
                pairs = [(p, s, theirs[s][k]) for p, k in zip(mine, order, strict=True)]
                options.append(ProductChoice(matcher, node, pairs))
        elif sum(map(len, theirs[s])) == len(channels):
            options.append(ProductChoice(matcher, node, [(channels, s, channels)]))
    every = [(s, p) for s in found for p in theirs[s]]
    if len(mine) == 1:
        options += [
            ProductChoice(matcher, node, [(channels, s, p)])
            for s, p in every
            if len(p) == len(channels) and len(theirs[s]) > 1
        ]
    elif len({s for s, _ in every}) > 1:
        options += _across(matcher, node, mine, every)
    return options[:MOST_ALTERNATIVES]


def _across(
    matcher: Matcher, node: Node, mine: Sequence[np.ndarray], every: Sequence[tuple[Node, np.ndarray]]
) -> Iterator[Alternative]:
    """A fused product of the target, whose pieces are products of the source."""
    in_program = sorted(every, key=lambda e: (matcher.used[e[0]] > 0, e[0].number))
    for chosen in itertools.islice(itertools.permutations(in_program, len(mine)), 4 * MOST_ALTERNATIVES):
        if all(len(p) == len(q) for p, (_, q) in zip(mine, chosen, strict=True)):
            yield ProductChoice(matcher, node, [(p, s, q) for p, (s, q) in zip(mine, chosen, strict=True)])


def _permutations(
    mine: tuple[int, ...], theirs: tuple[int, ...], first: tuple[int, ...] | None
) -> Iterator[tuple[int, ...]]:
    fitting = (
        order
        for order in itertools.permutations(range(len(theirs)))
        if all(theirs[k] == n for n, k in zip(mine, order, strict=True))
    )
    if first is not None:
        yield first
    yield from (order for order in itertools.islice(fitting, MOST_ALTERNATIVES) if order != first)


def aligned(matcher: Matcher, node: Node, source: Node) -> list[Aligned]:
    """Rows of both products that take the same elements of the operand, until every weight has occurred."""
    cache = matcher.__dict__.setdefault("_aligned", {})
    key = (node, source, id(matcher.positions(node.args[0])))
    if key not in cache:
        cache[key] = _aligned(matcher, node, source)
    return list(cache[key])


def _aligned(matcher: Matcher, node: Node, source: Node) -> list[Aligned]:
    mine, theirs = matcher.positions(node.args[0]), matcher.pool.positions(source.args[0])
    t, s = matcher.target_labels.of(node.args[1]), matcher.source_labels.of(source.args[1])
    if mine is None or theirs is None or t is None or s is None:
        return []
    signatures: dict[tuple[int, ...], Rows] = {}
    waiting = rows(source)
    out: list[Aligned] = []
    seen: np.ndarray | None = None
    for tried, row in enumerate(rows(node)):
        at = _located(mine, row)
        wanted = _signature(at)
        while wanted not in signatures:
            other = next(waiting, None)
            if other is None:
                break
            signatures.setdefault(_signature(_located(theirs, other)), other)
        other = signatures.get(wanted)
        if other is not None:
            out.append(_in_order(at, t.ravel()[row.weight], _located(theirs, other), s.ravel()[other.weight]))
            covered = at.min(axis=0) >= 0
            seen = covered if seen is None else seen | covered
            if seen.all():
                break
        if tried > 64:
            break
    return out


def _located(positions: np.ndarray, row: Rows) -> np.ndarray:
    return np.where(row.operand >= 0, positions.ravel()[row.operand], -1)


def _signature(at: np.ndarray) -> tuple[int, ...]:
    inside = np.unique(at[at >= 0])
    return (int(inside.size), int(inside.sum()), int((inside * inside % 1000003).sum()))


def _in_order(at: np.ndarray, t: np.ndarray, other: np.ndarray, s: np.ndarray) -> Aligned:
    by, to = np.argsort(at, axis=1, kind="stable"), np.argsort(other, axis=1, kind="stable")
    take = np.take_along_axis
    a, b = take(at, by, 1), take(other, to, 1)
    t, s = take(t, by, 1), take(s, to, 1)
    inside = int((a >= 0).sum(axis=1).min()), int((b >= 0).sum(axis=1).min())
    return Aligned(t[:, -inside[0] :], s[:, -inside[1] :], a[:, -inside[0] :], b[:, -inside[1] :])


# ---- pieces ------------------------------------------------------------------------------------------------------------


def channels_of(node: Node) -> np.ndarray:
    """The channel of each element of a product, as `terms.Rows` counts them."""
    if node.op == "convolution":
        n = node.shape[1]
        return np.broadcast_to(np.arange(n).reshape(1, n, *(1,) * (len(node.shape) - 2)), node.shape)
    (_, cw), (bx, bw) = node.args[2], node.args[3]
    w = node.args[1]
    wide = [w.shape[a] for a in bw], [w.shape[a] for a in range(len(w.shape)) if a not in cw and a not in bw]
    lead, free = int(np.prod(wide[0], dtype=int)), int(np.prod(wide[1], dtype=int))
    middle = node.size // max(lead * free, 1)
    numbers = np.arange(lead * free).reshape(lead, 1, free)
    return np.broadcast_to(numbers, (lead, middle, free)).reshape(node.shape)


def pieces(graph: Graph, node: Node) -> list[np.ndarray]:
    """The channels of a product, in the pieces into which the program cuts it: heads and gates that are computed
    together."""
    cache = graph.__dict__.setdefault("_pieces", {})
    if node not in cache:
        cache[node] = _pieces(node)
    return list(cache[node])


def _pieces(node: Node) -> list[np.ndarray]:
    first = channels_of(node)
    count = int(first.max()) + 1 if first.size else 0
    whole = np.arange(count)
    images, waiting = {node: first}, [node]
    found: dict[frozenset[int], np.ndarray] = {}
    while waiting and len(images) < 64:
        x = waiting.pop(0)
        for use in x.uses:
            if use in images or use.op not in _STATIC or use.size > 4 * node.size:
                continue
            if use.op in MOVEMENT:
                images[use] = np.asarray(evaluate(use.op, (images[x], *use.args[1:]), {}))
            elif use.shape == x.shape:
                images[use] = images[x]
            else:
                continue
            waiting.append(use)
            if use.op == "slice":
                channels, at = np.unique(images[use], return_index=True)
                found[frozenset(channels.tolist())] = channels[np.argsort(at)]
    least = [c for key, c in found.items() if not any(other < key for other in found)]
    if len(least) > MOST_PIECES or sorted(c for p in least for c in p.tolist()) != whole.tolist():
        return [whole]
    return least


# ---- rows of tables, and what else takes a parameter ---------------------------------------------------------------------


def _gathers(matcher: Matcher, node: Node) -> list[Alternative]:
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


def _others(matcher: Matcher, node: Node) -> list[Alternative]:
    """An operation of other kinds: the source's of the same name, on the same values."""
    mine = [x for x in node.inputs() if x.static]
    options: list[Alternative] = []
    for s in sites(matcher, node, (node.op,)):
        theirs = [x for x in s.inputs() if x.static]
        labels = [(matcher.target_labels.of(a), matcher.source_labels.of(b)) for a, b in zip(mine, theirs, strict=False)]
        if len(mine) != len(theirs) or any(a is None or b is None or a.size != b.size for a, b in labels):
            continue
        options.append(Bound([s], [Binding(a.ravel(), b.ravel()) for a, b in labels]))  # type: ignore[union-attr]
    return options


def expected_site(matcher: Matcher, node: Node, blocked: Node) -> Node | None:
    """The source's node that `blocked`, an operand of `node`, is likely to be, where its values differ."""
    last = max((c.members[0].number for n, c in matcher.class_of.items() if n.number < blocked.number), default=-1)
    found = []
    for other in matcher.source.nodes:
        if matcher.used[other] > 0 or not other.dynamic or not any(x.static for x in other.inputs()):
            continue
        mine = next(x for x in other.inputs() if x.dynamic)
        if mine.size == blocked.size and _is_of_kind(node, other):
            found.append((other.number < last, other.number, mine))
    return min(found, key=lambda f: f[:2])[2] if found else None


def _is_of_kind(node: Node, other: Node) -> bool:
    """The same kind of operation with parameters, of weights that fit."""
    if node.op in PRODUCTS:
        if other.op not in PRODUCTS:
            return False
        a, b = (next(rows(n)).weight.shape[1] for n in (node, other))
        return a == b
    sizes = [sorted(x.size for x in n.inputs() if x.static) for n in (node, other)]
    return node.op == other.op and sizes[0] == sizes[1]
