"""Reasons: why two values differ, found by changing one thing in the target's region until they are equal.

A reason is named only if the change makes the values equal, or if a value of the source, in the place of one of the
target's, does; the report says where it is a likeness alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tensorgraft.porting.changes import changes, selected, word_of_operand, word_of_operation
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode
from tensorgraft.porting.regions import RegionPair, StaticArrays, computation
from tensorgraft.porting.terms import PRODUCTS

if TYPE_CHECKING:
    from tensorgraft.porting.matching import Divergence, Matcher

MOST_TRIALS = 400
MOST_UNEXPLAINED = 6  # differences in a row without a proved reason, after which none is searched


@dataclass
class Difference:
    """A place where two programs differ, with the reason."""

    source_place: str
    target_place: str
    reason: str  # a word: "epsilon", "scale", ...; "" where no change was found that makes them equal
    text: str  # what differs, in a sentence
    difference: float  # of the first values that differ, relative to the largest

    def __str__(self) -> str:
        where = f"{self.source_place or '?'} | {self.target_place or '?'}"
        reason = f"{self.reason}: " if self.reason else ""
        return f"{where}: {reason}{self.text} (values differ by {self.difference:.1e})"


@dataclass
class Explained:
    """A difference, and the operations that one of the programs has alone there, as a signature."""

    difference: Difference
    of_target: Signature = ()
    of_source: Signature = ()
    proves: bool = False  # a change of the operations' settings makes the values equal


Signature = tuple[float | str, ...]


def differences(matcher: Matcher) -> list[Difference]:
    """The differences of a search, each once, in the order of the target."""
    explainer = Explainer(matcher)
    found = [e for d in matcher.divergences for e in explainer(d)]
    keys: set[tuple[str, str, str, str]] = set()
    out = []
    for e in _reordered(found):
        key = (e.source_place, e.target_place, e.reason, e.text)
        if key not in keys:
            keys.add(key)
            out.append(e)
    return out


def _reordered(found: Sequence[Explained]) -> Iterator[Difference]:
    """The differences, where what one program has alone at one place and the other at another is one: the order."""
    taken: set[int] = set()
    for k, e in enumerate(found):
        if k in taken:
            continue
        for other in range(k + 1, len(found)):
            f = found[other]
            if other not in taken and (
                (e.of_target and e.of_target == f.of_source) or (e.of_source and e.of_source == f.of_target)
            ):
                taken.add(other)
                where = ("earlier here", "there") if e.of_target else ("later here", "there")
                text = f"the same operations, {where[0]} than {where[1]}: {e.difference.text}"
                e = replace(e, difference=replace(e.difference, reason="order", text=text))
                break
        yield e.difference


class Explainer:
    """Finds the reasons of the differences of a search."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.known = matcher, StaticArrays(matcher)
        self.lines = Lines(matcher)
        self.unexplained = 0  # differences in a row without a proved reason

    def __call__(self, divergence: Divergence) -> list[Explained]:
        target, source = divergence.target, divergence.source
        if source is None:
            text = f"nothing of {self.matcher.source.name} corresponds to this {target.op}"
            return [Explained(Difference("", self.lines(target), "", text, float("nan")))]
        whole = RegionPair(self.known, target, source)
        distance = whole.distance()
        if np.isnan(distance) or whole.target == [] or self.unexplained >= MOST_UNEXPLAINED:
            likely = self._without_proof([whole], distance)
            if self.unexplained >= MOST_UNEXPLAINED:
                text = f"{likely.difference.text}; not searched, as {self.unexplained} before it have no proved reason"
                likely.difference = replace(likely.difference, text=text)
            return [likely]
        parts = whole.smallest()
        if len(parts) > 1 and (found := self._proved(whole, distance)) is not None:
            divergence.explained = found.proves
            return [found]
        out = []
        for part in parts:
            explained = self._of_one_program(part, distance) or self._proved(part, distance)
            if explained is None and len(parts) == 1 and part is not whole:
                explained = self._proved(whole, distance)
            out.append(explained or self._without_proof([part, whole], distance))
        divergence.explained = all(e.proves for e in out)
        self.unexplained = self.unexplained + 1 if any("not proved" in e.difference.text for e in out) else 0
        return out

    def _proved(self, region: RegionPair, distance: float) -> Explained | None:
        for k, change in enumerate(changes(region)):
            if k >= MOST_TRIALS:
                break
            if not region.is_equal_with(change):
                continue
            node = change.place or next(iter(change.nodes))
            if change.in_source:
                first = _first(region.target) or _first(region.uses)
                place = "" if first is None else self.lines(first)
                found = Difference(node.place, place, change.reason, change.text, distance)
            else:
                places = self._source_place(region, node), self.lines(node)
                found = Difference(*places, change.reason, change.text, distance)
            changed = list(change.nodes)
            of_target, of_source = ([], changed) if change.in_source else (changed, [])
            left_out = all(v is None for v in change.nodes.values())
            signatures = [self._signature(n, k == 1) if left_out else () for k, n in enumerate((of_target, of_source))]
            return Explained(found, signatures[0], signatures[1], change.proves)
        return None

    def _of_one_program(self, region: RegionPair, distance: float) -> Explained | None:
        """A difference that is all that one of the programs computes at a place, or another operand."""
        of_target, of_source = (_computing(nodes) for nodes in (region.target, region.source))
        if (of_target and of_source) or not region.uses:
            return None
        is_other = not of_target and region.target_end.op == region.source_end.op not in MOVEMENT
        if is_other or (not of_target and not of_source):
            return self._other_operand(region, distance)
        nodes, where = (of_target, "here") if of_target else (of_source, "there")
        values = self.matcher.target_values if of_target else self.matcher.source_values
        pointwise = [n for n in nodes if n.op in POINTWISE and n.dynamic]
        if {computation(n)[0] for n in nodes} & {"reduce_window", "pad", "convolution"}:
            reason = "padding"
        elif any(n.op == "astype" for n in nodes):
            reason = "dtype"
        elif len(nodes) == len(pointwise) <= 3:
            reason = word_of_operation(region, nodes[-1], values)[0]
        else:
            reason = "operation"
        text = f"{', '.join(dict.fromkeys(n.op for n in nodes))} {where} alone"
        if reason in ("operation", "") and [n.op for n in nodes] == ["affine"]:
            reason = "scale" if nodes[0].args[2] is None else "bias" if nodes[0].args[1] is None else reason
        elif of_source and self._is_used(of_source):
            reason, text = "order", text.replace(where, f"at this place {where}")
        first = nodes[0] if of_target else _user(region.uses[0])
        if of_source and reason == "bias":
            first = _product(region.target_end) or first
        places = nodes[0].place if of_source else self._source_place(region, first), self.lines(first)
        signatures = (self._signature(of_target, False), self._signature(of_source, True))
        return Explained(Difference(*places, reason, text, distance), *signatures)

    def _is_used(self, nodes: Sequence[ValueNode]) -> bool:
        """The target uses all parameters of some nodes of the source, at another place."""
        names = frozenset().union(*(x.parameters for n in nodes for x in n.inputs() if x.static))
        used = {_total(self.matcher.bound[name]) for name, p in self.matcher.target.parameters.items() if p.uses}
        values, parameters = self.matcher.source_values, self.matcher.source.parameters
        return bool(names) and all(_total(values(parameters[n])) in used for n in names)

    def _other_operand(self, region: RegionPair, distance: float) -> Explained:
        """A value that is equal to one of the source's, where the source takes another one."""
        taken = region.target_end
        reason = word_of_operand(region, [taken])
        wanted = next((n for n, c in self.matcher.class_of.items() if region.source_end in c.members), None)
        node = (selected([taken, wanted]) if wanted is not None else None) or region.uses[0]
        weights = [self._whole_parameter(n, g) for n, g in ((taken, self.matcher.target),
                                                             (region.source_end, self.matcher.source))]  # fmt: skip
        if all(weights):
            reason, text = "weights", f"weights of other values: {weights[0]} here, and {weights[1]} there"
        else:
            operands = [n.place or n.op or "a parameter" for n in (taken, region.source_end)]
            text = f"an operand is the value of {operands[0]} here, that of {operands[1]} there"
        return Explained(Difference(region.source_end.place, self.lines(node), reason, text, distance))

    def _whole_parameter(self, node: ValueNode, graph: ProgramGraph) -> str:
        """The parameter whose elements all are those of a node, in whatever layout; "" for none, or a part."""
        names = sorted(node.parameters) if node.static else []
        return names[0] if len(names) == 1 and graph.parameters[names[0]].size == node.size else ""

    def _signature(self, nodes: Sequence[ValueNode], of_source: bool) -> Signature:
        """The parameters' values of some nodes, or else their operations, to find them again in the other program."""
        values = self.matcher.source_values if of_source else self.matcher.target_values
        graph = self.matcher.source if of_source else self.matcher.target
        names = sorted(frozenset().union(*(x.parameters for n in nodes for x in n.inputs() if x.static)))
        if names:
            return tuple(sorted(_total(values(graph.parameters[n])) for n in names))
        return tuple(sorted(n.op for n in nodes))

    def _source_place(self, region: RegionPair, node: ValueNode) -> str:
        """The line of the source's node of the same operation."""
        op = computation(node)[0]
        first = next((n for n in region.source if computation(n)[0] == op), _first(region.source))
        return region.source_end.place if first is None else first.place

    def _without_proof(self, regions: Sequence[RegionPair], distance: float) -> Explained:
        """The difference where no change was found: what the regions look like."""
        found = [_likeness(r) for r in regions]
        reason, text = next((f for f in found if f[0] not in ("", "order")), next((f for f in found if f[0]), found[0]))
        first = _first(regions[0].target) or _first(regions[0].uses) or regions[0].target_end
        source = _first(regions[0].source) or regions[0].source_end
        return Explained(Difference(source.place, self.lines(first), reason, text, distance))


class Lines:
    """Lines of the target that are named: that of an operation, or, where the same line gives equal values elsewhere,
    the innermost of its callers that does not."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self._at: dict[tuple[str, str], list[ValueNode]] = {}
        for n in matcher.target.nodes:
            if n.dynamic:
                self._at.setdefault((str(n.place), n.op), []).append(n)

    def __call__(self, node: ValueNode) -> str:
        lines = _stack(node)
        peers = [n for n in self._at.get((lines[0], node.op), ()) if n is not node and self._is_equal(n)]
        for k in range(len(lines)):
            peers = [n for n in peers if _stack(n)[: k + 1] == lines[: k + 1]]
            if not peers:
                return lines[k]
        return lines[0]

    def _is_equal(self, node: ValueNode) -> bool:
        matcher = self.matcher
        if node not in matcher.class_of or node not in matcher.target_values.values or matcher.is_forced(node):
            return False
        return matcher.positions(node) is not None


def _total(x: np.ndarray) -> float:
    return float(f"{np.abs(x).sum():.5e}")


def _user(node: ValueNode) -> ValueNode:
    """The node itself, or the one that uses it where it has factors that were written before."""
    return node.uses[0] if node.op == "affine" and node.args[0].op in PRODUCTS and node.uses else node


def _product(node: ValueNode) -> ValueNode | None:
    """The product that a value is, or is a sum of; None for others."""
    while node.op not in PRODUCTS:
        inner = [x for x in node.inputs() if x.dynamic]
        if node.op not in ("add", *MOVEMENT) or not inner:
            return None
        node = max(inner, key=lambda x: (x.op in PRODUCTS, x.number))
    return node


def _stack(node: ValueNode) -> list[str]:
    return [str(node.place), *getattr(node.place, "callers", ())]


def _computing(nodes: Sequence[ValueNode]) -> list[ValueNode]:
    """Those that do more than move elements."""
    return [n for n in nodes if computation(n)[0] not in MOVEMENT]


def _first(nodes: Sequence[ValueNode]) -> ValueNode | None:
    computing = _computing(nodes)
    return computing[0] if computing else nodes[0] if nodes else None


def _likeness(region: RegionPair) -> tuple[str, str]:
    """(a reason, a sentence) where no single change makes the values equal."""
    skipped = ("reshape", "permute_dims", "broadcast_to", "affine")
    of_target, of_source = (
        Counter(op for n in r if (op := computation(n)[0]) not in skipped) for r in (region.target, region.source)
    )
    every = of_target | of_source
    constants = (
        np.asarray(c.value) for n in region.target for c in n.inputs()
        if c.value is not None and not c.dynamic and c.size > 1 and c.dtype.kind == "f"
    )  # fmt: skip
    angles = [c for c in constants if np.max(np.abs(c)) <= 1 and np.ptp(c) > 0]
    if angles and of_target["multiply"] > 1 and (of_target["slice"] or of_target["concat"]):
        return "rotary", "rotary positions turn other pairs of elements (a likeness, not proved)"
    if every["resize"]:
        return "corners", "an image is resized in another way (a likeness, not proved)"
    unmatched = (of_target - of_source) + (of_source - of_target)
    if every["reduce_window"] and (every["pad"] or not unmatched["reduce_window"] or unmatched["divide"] < 2):
        return "padding", "windows are padded in another way (a likeness, not proved)"
    if every["sigmoid"] and every["tanh"]:
        return "gates", "the gates of a recurrent layer are combined in another way (a likeness, not proved)"
    shapes = [{n.shape for n in r if n.op == "convolution"} for r in (region.target, region.source)]
    if shapes[0] and shapes[1] and shapes[0] != shapes[1]:
        return "padding", "images of other sizes (a likeness, not proved)"
    if of_target == of_source or ((every["rsqrt"] or every["sqrt"]) and every["add"]):
        return "order", "the same operations in another order, or on other operands (a likeness, not proved)"
    more, less = sorted((of_target - of_source).elements()), sorted((of_source - of_target).elements())
    texts = [f"{', '.join(ops)} {where}" for ops, where in ((more, "here alone"), (less, "there alone")) if ops]
    return "", f"computed in another way: {'; '.join(texts)}"
