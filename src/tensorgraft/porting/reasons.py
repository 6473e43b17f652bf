"""Reasons: why two values differ, found by changing one thing in the target's region until they are equal.

The region of a difference is what each program computes between the last values that were equal and the first that
should be. A reason is named only if the change makes the values equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft.hub.recorded.block import leaves, mapped
from tensorgraft.porting.graph import POINTWISE, Node, evaluate
from tensorgraft.porting.values import layouts, relative_difference

if TYPE_CHECKING:
    from tensorgraft.porting.matching import Divergence, Matcher

MOST_TRIALS = 400
_PADDED = frozenset({"convolution", "reduce_window", "pad"})
Computation = tuple[str, tuple[Any, ...], dict[str, Any]]  # an operation and its operands


@dataclass
class Difference:
    """Where two programs differ, and why."""

    source_place: str
    target_place: str
    reason: str  # a word: "epsilon", "scale", ...; "" where no change was found that makes them equal
    text: str  # what differs, in a sentence
    difference: float  # of the first values that differ, relative to the largest

    def __str__(self) -> str:
        where = f"{self.source_place or '?'} | {self.target_place or '?'}"
        return f"{where}: {self.text} (values differ by {self.difference:.1e})"


@dataclass
class Change:
    """A change of the target, or of the source, that may make the values equal."""

    reason: str
    text: str
    nodes: Mapping[Node, Computation | None]  # None: the node is left out, its first dynamic operand stands for it
    in_source: bool = False


def explain(matcher: Matcher, divergence: Divergence) -> Difference:
    """The difference at a value, with its reason."""
    if divergence.source is None:
        text = f"nothing of {matcher.source.name} corresponds to this {divergence.target.op}"
        return Difference("", divergence.target.place, "", text, float("nan"))
    regions = _Regions(matcher, divergence)
    distance = regions.distance()
    for k, change in enumerate(_changes(matcher, regions)):
        if k >= MOST_TRIALS:
            break
        if regions.is_equal_with(change):
            place = next(iter(change.nodes)).place
            if change.in_source:
                return Difference(place, regions.target_place(), change.reason, change.text, distance)
            return Difference(regions.counterpart(change), place, change.reason, change.text, distance)
    reason, text = _without_proof(matcher, regions)
    return Difference(regions.source_place(), regions.target_place(), reason, text, distance)


class _Regions:
    """What both programs compute between equal values and a pair that differs."""

    def __init__(self, matcher: Matcher, divergence: Divergence) -> None:
        self.matcher, self.target_end, self.source_end = matcher, divergence.target, divergence.source
        self.target = _between(self.target_end, lambda n: n is not self.target_end and n in matcher.class_of)
        reached = {id(c) for n, c in matcher.class_of.items() if n not in self.target and n is not self.target_end}
        self.source = _between(
            self.source_end,
            lambda n: n is not self.source_end and id(matcher.pool.class_of.get(n)) in reached,
        )

    def computed(self, nodes: Sequence[Node], values: Any, changed: Mapping[Node, Computation | None]) -> np.ndarray:
        """The last node's value, where some are computed in another way."""
        found: dict[Node, np.ndarray] = {}

        def value(x: Any) -> Any:
            return (found[x] if x in found else values(x)) if type(x) is Node else x

        for node in nodes:
            op, args, kwargs = node.op, node.args, node.kwargs
            if node in changed:
                other = changed[node]
                if other is None:
                    found[node] = value(next(x for x in node.inputs() if x.dynamic))
                    continue
                op, args, kwargs = other
            elif node.value is not None:
                continue
            out = evaluate(op, *mapped(value, (args, kwargs)))
            found[node] = np.asarray(out[node.output] if isinstance(out, tuple | list) else out)
        return found[nodes[-1]]

    def distance(self) -> float:
        """How far the values are apart, in the layout in which they are least."""
        mine = self.computed(self.target, self.matcher.target_values, {})
        theirs = self.matcher.source_values(self.source_end)
        if mine.size != theirs.size:
            return float("inf")
        a, b = np.sort(mine.ravel()), np.sort(theirs.ravel())
        direct = relative_difference(theirs, mine) if mine.shape == theirs.shape else float("inf")
        return max(min(direct, relative_difference(b, a) if direct == float("inf") else direct), 0.0)

    def is_equal_with(self, change: Change) -> bool:
        matcher = self.matcher
        mine, theirs = ({}, change.nodes) if change.in_source else (change.nodes, {})
        try:
            x = self.computed(self.target, matcher.target_values, mine)
            y = self.computed(self.source, matcher.source_values, theirs)
        except (ValueError, TypeError, IndexError, StopIteration, NotImplementedError):
            return False  # a number where it does not fit
        return x.size == y.size and np.isfinite(x).any() and next(layouts(x, y), None) is not None

    def first(self, nodes: Sequence[Node]) -> Node:
        inside = set(nodes)
        return next((n for n in nodes if not any(x in inside for x in n.inputs())), nodes[-1])

    def target_place(self) -> str:
        return self.first(self.target).place

    def source_place(self) -> str:
        return self.first(self.source).place

    def counterpart(self, change: Change) -> str:
        """The line of the source's node of the same operation."""
        op = next(iter(change.nodes)).op
        return next((n.place for n in self.source if n.op == op), self.source_place())


def _between(end: Node, is_equal: Callable[[Node], bool]) -> list[Node]:
    found: set[Node] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node in found or not node.dynamic or node.op == "input" or is_equal(node):
            continue
        found.add(node)
        waiting.extend(node.inputs())
    return sorted(found | {end}, key=lambda n: n.number)


# ---- changes -----------------------------------------------------------------------------------------------------------


def _changes(matcher: Matcher, regions: _Regions) -> Iterator[Change]:
    yield from _other_numbers(regions)
    yield from _other_settings(regions)
    yield from _other_functions(regions)
    yield from _other_constants(regions)
    yield from _narrower(regions)
    for nodes, in_source in ((regions.target, False), (regions.source, True)):
        yield from _left_out(nodes, in_source)
    yield from _other_weights(matcher, regions)


def _number(x: Any) -> float | None:
    if type(x) is Node and x.value is not None and not x.dynamic and x.size == 1:
        x = x.value.item()
    return float(x) if isinstance(x, int | float | np.number) and not isinstance(x, bool) else None


def _numbers(nodes: Sequence[Node]) -> list[float]:
    found = (_number(x) for n in nodes if n.op in POINTWISE | {"full"} for x in leaves([n.args, n.kwargs]))
    return list(dict.fromkeys(x for x in found if x is not None))


def _other_numbers(regions: _Regions) -> Iterator[Change]:
    """A number of the source in the place of one of the target."""
    theirs, mine = _numbers(regions.source), _numbers(regions.target)
    for number in mine:
        users = [n for n in regions.target if n.op in POINTWISE and number in map(_number, leaves([n.args, n.kwargs]))]
        groups = [users] if len(users) == 1 else [*([u] for u in users), users]
        for nodes in groups:
            for other in theirs:
                if other != number:
                    changed = {n: _with_number(n, number, other) for n in nodes}
                    yield Change(_reason(nodes[0], number, other), f"{number:g} here, {other:g} there", changed)


def _with_number(node: Node, number: float, other: float) -> Computation:
    def swap(x: Any) -> Any:
        if _number(x) != number:
            return x
        return np.asarray(other, x.dtype) if type(x) is Node else other

    args, kwargs = mapped(swap, (node.args, node.kwargs))
    return node.op, args, kwargs


def _reason(node: Node, number: float, other: float) -> str:
    """The word for a number that differs."""
    if node.op in ("add", "maximum", "clip") and 0 <= min(number, other) and max(number, other) < 0.05:
        return "epsilon"
    if node.op in ("multiply", "divide") and number and other:
        ratio = max(abs(number / other), abs(other / number))
        n = ratio / (ratio - 1) if ratio > 1 else 0.0
        if n and abs(n - round(n)) < 1e-3 * n and 1 < round(n) and _is_count(node, round(n)):
            return "variance"
        return "scale"
    if min(number, other) <= -1e4:
        return "mask"
    if number in (0.044715, 0.7978845608028654) or other in (0.044715, 0.7978845608028654, 1.702):
        return "gelu"
    return "offset" if node.op in ("add", "subtract") else "constant"


def _is_count(node: Node, n: int) -> bool:
    """A number of elements that a sum near this node has."""
    waiting, seen = [node], 0
    while waiting and seen < 12:
        x = waiting.pop()
        seen += 1
        if x.op in ("sum", "mean"):
            source = next(iter(x.inputs()))
            return source.size // max(x.size, 1) == n
        waiting.extend(y for y in x.inputs() if y.dynamic)
    return False


def _other_settings(regions: _Regions) -> Iterator[Change]:
    """The static arguments of a source's operation in one of the target of the same name."""
    for node in regions.target:
        for other in regions.source:
            if node.op != other.op or node.op in ("reshape", "permute_dims", "broadcast_to", "slice"):
                continue
            if sum(1 for _ in node.inputs()) != sum(1 for _ in other.inputs()):
                continue
            found = iter(list(node.inputs()))
            args, kwargs = mapped(lambda x, f=found: next(f) if type(x) is Node else x, (other.args, other.kwargs))
            if repr((args, kwargs)) == repr((node.args, node.kwargs)):
                continue
            reason = {"gelu": "gelu", "resize": "corners", "astype": "dtype", "softmax": "axis"}.get(node.op)
            reason = "padding" if node.op in _PADDED else reason or "setting"
            text = f"{node.op} with {_settings(node)} here, {_settings(other)} there"
            yield Change(reason, text, {node: (node.op, args, kwargs)})


def _settings(node: Node) -> str:
    static = [repr(x) for x in node.args if type(x) is not Node]
    return ", ".join([*static, *(f"{k}={v!r}" for k, v in node.kwargs.items())]) or "its defaults"


def _other_functions(regions: _Regions) -> Iterator[Change]:
    """A function of the source in the place of one of the target."""
    theirs = {(n.op, repr(n.kwargs)): n for n in regions.source if _is_function(n)}
    for node in regions.target:
        if not _is_function(node):
            continue
        for other in theirs.values():
            if (other.op, repr(other.kwargs)) != (node.op, repr(node.kwargs)):
                reason = "gelu" if "gelu" in (node.op, other.op) else "activation"
                args = (node.args[0], *other.args[1:])
                yield Change(reason, f"{node.op} here, {other.op} there", {node: (other.op, args, other.kwargs)})


def _is_function(node: Node) -> bool:
    return node.op in POINTWISE and sum(1 for _ in node.inputs()) == 1 and type(node.args[0]) is Node


def _other_constants(regions: _Regions) -> Iterator[Change]:
    """An array of constants of the source in the place of one of the target: masks, positions."""
    theirs = [c for n in regions.source for c in _constants(n)]
    for node in regions.target:
        for constant in _constants(node):
            for other in theirs:
                if other.size != constant.size or np.array_equal(other.value, constant.value):
                    continue
                value = np.asarray(other.value).reshape(constant.shape).astype(constant.dtype)
                args, kwargs = mapped(
                    lambda x, c=constant, v=value: v if x is c else x, (node.args, node.kwargs)
                )
                is_mask = constant.dtype.kind == "b" or float(np.min(constant.value)) < -1e4
                reason = "mask" if is_mask else "offset" if constant.dtype.kind in "iu" else "constant"
                yield Change(reason, f"another array of {reason}s", {node: (node.op, args, kwargs)})


def _constants(node: Node) -> list[Node]:
    return [x for x in node.inputs() if x.value is not None and not x.dynamic and x.size > 1]


def _narrower(regions: _Regions) -> Iterator[Change]:
    """One of the programs rounds to 16 bits, or to other narrow dtypes."""
    for nodes, in_source in ((regions.target, False), (regions.source, True)):
        casts = [n for n in nodes if n.op == "astype"]
        if casts:
            dtypes = sorted({str(n.dtype) for n in casts if n.dtype.itemsize < 4}) or ["another dtype"]
            where = "there" if in_source else "here"
            yield Change("dtype", f"values are rounded to {', '.join(dtypes)} {where}", dict.fromkeys(casts), in_source)


def _left_out(nodes: Sequence[Node], in_source: bool) -> Iterator[Change]:
    """An operation that the other program has not."""
    where = "there" if in_source else "here"
    for node in nodes:
        if node.op not in POINTWISE or node.op in ("astype",) or not any(x.dynamic for x in node.inputs()):
            continue
        number = next((v for v in map(_number, leaves([node.args])) if v is not None), None)
        reason = "scale" if node.op in ("multiply", "divide") else "mask" if node.op in ("where", "add") else "operation"
        if number is not None:
            reason = _reason(node, number, 1.0 if node.op in ("multiply", "divide") else 0.0)
        text = f"{node.op}{'' if number is None else f' by {number:g}'} {where} alone"
        yield Change(reason, text, {node: None}, in_source)


def _other_weights(matcher: Matcher, regions: _Regions) -> Iterator[Change]:
    """A weight that is another one's in the target: a tied head; or that has other values."""
    for node in regions.target:
        statics = [x for x in node.inputs() if x.static]
        for other in regions.source if statics else ():
            theirs = [x for x in other.inputs() if x.static]
            if other.op != node.op or len(theirs) != len(statics):
                continue
            found = [_fitting(matcher.source_values(b), a.shape) for a, b in zip(statics, theirs, strict=True)]
            if any(f is None for f in found):
                continue
            stand = dict(zip(statics, found, strict=True))
            args, kwargs = mapped(lambda x, s=stand: s.get(x, x) if type(x) is Node else x, (node.args, node.kwargs))
            names = [", ".join(sorted(frozenset().union(*(x.parameters for x in xs)))) for xs in (statics, theirs)]
            text = f"the weight is {names[0]} here, and {names[1]} there, of other values"
            yield Change("tied", text, {node: (node.op, args, kwargs)})


def _fitting(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if x.shape == shape:
        return x
    return x.T if x.T.shape == shape else x.reshape(shape) if x.size == int(np.prod(shape)) else None


def _without_proof(matcher: Matcher, regions: _Regions) -> tuple[str, str]:
    """What can be said where no single change makes the values equal."""
    skipped = ("reshape", "permute_dims", "broadcast_to", "affine")
    mine, theirs = (Counter(n.op for n in r if n.op not in skipped) for r in (regions.target, regions.source))
    if mine == theirs:
        return "order", "the same operations in another order, or on other operands"
    more, less = sorted((mine - theirs).elements()), sorted((theirs - mine).elements())
    texts = [f"{', '.join(ops)} {where}" for ops, where in ((more, "here alone"), (less, "there alone")) if ops]
    return "", f"computed in another way: {'; '.join(texts)}"
