"""Regions: what each program computes between the last values that are equal and the first that should be.

A region is made smaller from its end: where a value of the source, put in the place of one of the target's, makes the
ends equal, all that comes after it is the same in both, and the difference is in what comes before.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.nodes import MOVEMENT, ValueNode, evaluate, nodes_of
from tensorgraft.porting.values import layouts, orders, relative_difference

if TYPE_CHECKING:
    from tensorgraft.porting.matching import Matcher

MOST_SUBSTITUTIONS = 2000  # of values, for one region
SAME = 1.5e-7  # of the largest: one program divides by a number, the other multiplies by its reciprocal in float32
MOST_WORK = 1e9  # elements that are computed for them
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or")
_FAILURES = (ValueError, TypeError, IndexError, StopIteration, NotImplementedError)
Computation = tuple[str, tuple[Any, ...], dict[str, Any]]  # an operation and its operands


def computation(node: ValueNode) -> Computation:
    """The operation of a node, and the one that gave a constant its value."""
    return node.folded or (node.op, node.args, node.kwargs)


def operands(node: ValueNode) -> Iterator[ValueNode]:
    """The nodes that a node, or a constant, is computed from."""
    _, args, kwargs = computation(node)
    yield from nodes_of([args, kwargs])


@dataclass
class Modification:
    """A change of the target, or of the source, that may make the values equal."""

    reason: str
    text: str
    nodes: Mapping[ValueNode, Computation | None]  # None: the node is left out, its first dynamic operand stands for it
    in_source: bool = False
    others: Mapping[ValueNode, Computation | None] = field(default_factory=dict)  # of the source, at the same time
    place: ValueNode | None = None  # the node whose line is named, where it is not the first that is changed
    of_weights: bool = False  # other weights, or operands that other weights may have given

    @property
    def proves(self) -> bool:
        """Only the operations' settings are changed: values are equal then for no other reason than these."""
        return not self.of_weights and all(c is not None or n.op == "astype" for n, c in self.nodes.items())


class StaticArrays:
    """Arrays of constants and parameters of both programs, to tell whether the other program has the same."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self._nodes = [_without_inputs(graph.nodes) for graph in (matcher.source, matcher.target)]
        self._found: dict[tuple[ValueNode, bool], bool] = {}

    def in_both(self, node: ValueNode, of_source: bool) -> bool:
        """The other program has an array of these values; True where they are not known."""
        key = node, of_source
        if key not in self._found:
            self._found[key] = self._search(node, of_source)
        return self._found[key]

    def value(self, node: ValueNode, of_source: bool) -> np.ndarray:
        return (self.matcher.source_values if of_source else self.matcher.target_values)(node)

    def _search(self, node: ValueNode, of_source: bool) -> bool:
        x = self.value(node, of_source)
        if x.dtype.kind in "fc" and np.isnan(x).any():
            return True
        for other in self._nodes[of_source].get(node.size, ()):
            y = self.value(other, not of_source)
            if (x.dtype.kind == "b") != (y.dtype.kind == "b"):
                continue
            if relative_difference(x.ravel(), y.ravel()) <= SAME:
                return True
            if node.parameters and sorted(x.shape) == sorted(y.shape) and next(layouts(x, y), None) is not None:
                return True
        return False


def _without_inputs(nodes: Sequence[ValueNode]) -> dict[int, list[ValueNode]]:
    """Constants and static nodes, those that constants were computed from among them, by their sizes."""
    found: dict[ValueNode, None] = {}
    waiting = [n for n in nodes if not n.dynamic]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting.extend(operands(node))
    by_size: dict[int, list[ValueNode]] = {}
    for node in found:
        by_size.setdefault(node.size, []).append(node)
    return by_size


class RegionPair:
    """The computations of both programs between equal values and a pair that differs."""

    def __init__(
        self,
        known: StaticArrays,
        target_end: ValueNode,
        source_end: ValueNode,
        *,
        is_operand: bool = False,
        uses: Sequence[ValueNode] = (),
    ) -> None:
        """`is_operand`: the target's end is a value of the source's, in the place of another one; `uses` take it."""
        self.known, self.matcher = known, known.matcher
        self.target_end, self.source_end, self.uses = target_end, source_end, list(uses)
        self.target = [] if is_operand else _between(target_end, self._is_equal)
        within = set(self.target)
        reached = {
            id(c)
            for n, c in self.matcher.class_of.items()
            if n not in within and n.number < target_end.number and self._is_equal(n)
        }
        if is_operand and target_end in self.matcher.class_of:
            reached.add(id(self.matcher.class_of[target_end]))

        def is_reached(n: ValueNode) -> bool:
            if not n.dynamic:
                return self.known.in_both(n, of_source=True)
            return id(self.matcher.pool.class_of.get(n)) in reached

        self.source = [] if source_end.dynamic and is_reached(source_end) else _between(source_end, is_reached)
        self._own: dict[ValueNode, np.ndarray] = {}

    def _is_equal(self, node: ValueNode) -> bool:
        """The value is the source's to the last digits, or was taken from there."""
        matcher = self.matcher
        if node is self.target_end:
            return False
        if not node.dynamic:
            return self.known.in_both(node, of_source=False)
        if node not in matcher.class_of:
            return False
        positions = matcher.positions(node)
        if positions is None:
            return False
        of_source = matcher.source_values(matcher.class_of[node].reference).ravel()[positions.ravel()]
        return relative_difference(of_source, matcher.target_values(node).ravel()) <= SAME

    # ---- values ----------------------------------------------------------------------------------------------------

    def value(self, node: ValueNode) -> np.ndarray:
        """The target's own value of a node."""
        if node not in self._own:
            within = set(self.target)

            def own(x: Any) -> Any:
                if type(x) is not ValueNode:
                    return x
                return self.value(x) if x in within else self.matcher.target_values(x)

            if node not in within or node.value is not None:
                return self.matcher.target_values(node)
            self._own[node] = _result(node, (node.op, *mapped(own, (node.args, node.kwargs))))
        return self._own[node]

    def changed(
        self, changes: Mapping[ValueNode, Computation | None], values: Mapping[ValueNode, np.ndarray] | None = None
    ) -> np.ndarray:
        """The target's end with some nodes computed in another way, and others replaced by values."""
        return _changed(self.target, self.value, self.target_end, changes, values or {})

    def changed_source(self, changes: Mapping[ValueNode, Computation | None]) -> np.ndarray:
        return _changed(self.source, self.matcher.source_values, self.source_end, changes, {})

    def distance(self) -> float:
        """The difference of the values, in the layout in which it is least; NaN where something is not known."""
        try:
            of_target = self.value(self.target_end)
        except ValueError:
            return float("nan")
        of_source = self.matcher.source_values(self.source_end)
        if of_target.size != of_source.size:
            return float("inf")
        if of_target.shape == of_source.shape:
            return relative_difference(of_source, of_target)
        return relative_difference(np.sort(of_source.ravel()), np.sort(of_target.ravel()))

    def is_equal_with(self, change: Modification) -> bool:
        of_target, of_source = ({}, change.nodes) if change.in_source else (change.nodes, change.others)
        try:
            x, y = self.changed(of_target), self.changed_source(of_source)
        except _FAILURES:
            return False  # a number where it does not fit
        return x.size == y.size and np.isfinite(x).any() and next(layouts(x, y), None) is not None

    # ---- smaller regions -------------------------------------------------------------------------------------------

    def boundary(self) -> list[ValueNode]:
        """The dynamic values that the target's region is computed from."""
        return _boundary(self.target)

    def smallest(self, depth: int = 0) -> list[RegionPair]:
        """The regions that differ at the ends of which nothing else does: this one where there are none."""
        if not self.target:
            return [self]
        try:
            found = self._substituted()
        except ValueError:  # something before is not known
            return [self]
        if found is not None:
            return [found]
        if depth < 12:
            parts = self._operands()
            if parts:
                return [leaf for part in parts for leaf in part.smallest(depth + 1)]
        return [self]

    def _substituted(self) -> RegionPair | None:
        """The region of which the source's end, in the place of the target's, makes the ends of this one equal: the one
        in which the programs' operations have most in common, and of these the smallest."""
        wanted = self.matcher.source_values(self.source_end)
        work = sum(n.size for n in self.target) + wanted.size
        left = min(MOST_SUBSTITUTIONS, int(MOST_WORK / max(work, 1)))
        outside = _boundary(self.source)
        of_source = [n for n in [*outside, *self.source] if n is not self.source_end]
        within, best, least = set(self.target), None, (10**6, 10**6)
        for node, uses in self._places():
            is_operand = node not in within
            for other in of_source:
                if not (is_operand or other in outside or _kind(node) == _kind(other)):
                    continue
                if other.size != node.size or (other.dtype.kind == "b") != (node.dtype.kind == "b"):
                    continue
                if node.dynamic != other.dynamic:
                    continue
                for value in arranged(self.matcher.source_values(other), node.shape):
                    left -= 1
                    if left < 0:
                        return best
                    if self._is_equal_where(node, uses, value, wanted):
                        users = uses or self._users(node)
                        found = RegionPair(self.known, node, other, is_operand=is_operand, uses=users)
                        if (cost := found.cost()) < least:
                            best, least = found, cost
                        break
        return best

    def cost(self) -> tuple[int, int]:
        """(how many operations one of the programs has alone, how many both have)."""
        of_target, of_source = (
            Counter(_kind(n) for n in nodes if n.dynamic and n.op not in MOVEMENT)
            for nodes in (self.target, self.source)
        )
        return (
            sum(((of_target - of_source) + (of_source - of_target)).values()),
            len(self.target) + len(self.source),
        )

    def _places(self) -> Iterator[tuple[ValueNode, list[ValueNode]]]:
        """(a value, its uses that take another one; all where there are none), the first of the program first."""
        boundary = self.boundary()
        yield from ((n, []) for n in boundary)
        for n in self.target:
            if n is not self.target_end and (n.op not in MOVEMENT or n.folded or not n.dynamic):
                yield n, []
        for n in boundary:
            users = self._users(n)
            if len(users) > 1:
                yield from ((n, [u]) for u in users)

    def _users(self, node: ValueNode) -> list[ValueNode]:
        return [u for u in self.target if any(x is node for x in operands(u))]

    def _is_equal_where(
        self, node: ValueNode, uses: Sequence[ValueNode], value: np.ndarray, wanted: np.ndarray
    ) -> bool:
        value = value.astype(node.dtype)
        try:
            if uses:
                x = self.changed({u: _with_value(u, node, value) for u in uses})
            else:
                x = self.changed({}, {node: value})
        except _FAILURES:
            return False
        return bool(np.isfinite(x).any()) and next(layouts(x, wanted), None) is not None

    def _operands(self) -> list[RegionPair]:
        """Regions of the operands that differ, where both ends are one operation."""
        a, b = self.target_end, self.source_end
        of_a, of_b = computation(a)[0], computation(b)[0]
        xs, ys = list(operands(a)), list(operands(b))
        if of_a in ("reshape", "permute_dims", "broadcast_to") and not a.static:
            return [RegionPair(self.known, xs[0], b)] if xs[0] in self.target else []
        if of_b in ("reshape", "permute_dims", "broadcast_to") and not b.static:
            return [RegionPair(self.known, a, ys[0])] if ys[0] in self.source else []
        if of_a != of_b or len(xs) != len(ys):
            return []
        if of_a in _COMMUTATIVE and self._likeness(xs[0], ys[0]) + self._likeness(xs[-1], ys[-1]) < (
            self._likeness(xs[0], ys[-1]) + self._likeness(xs[-1], ys[0])
        ):
            ys = ys[::-1]
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x in self.target and y in self.source]
        if len(pairs) < 2 or any(x.size != y.size for x, y in pairs):
            return []
        return [RegionPair(self.known, x, y) for x, y in pairs]

    def _likeness(self, x: ValueNode, y: ValueNode) -> int:
        """A number for what two operands have in common: the size, the operation, being equal to a value of the other
        program."""
        return (x.size == y.size) * (2 * ((x in self.target) == (y in self.source)) + (x.op == y.op) + 1)


def _kind(node: ValueNode) -> str:
    """The operation of a node; one word for those that are each other's with an inverse."""
    op = computation(node)[0]
    return {"divide": "multiply", "subtract": "add"}.get(op, op)


def _result(node: ValueNode, call: tuple[str, Any, Any]) -> np.ndarray:
    out = evaluate(*call)
    return np.asarray(out[node.output] if isinstance(out, tuple | list) else out)


def _changed(
    nodes: Sequence[ValueNode],
    values: Callable[[ValueNode], np.ndarray],
    end: ValueNode,
    changes: Mapping[ValueNode, Computation | None],
    replaced: Mapping[ValueNode, np.ndarray],
) -> np.ndarray:
    """The value of the end: only what depends on a change is computed again."""
    found = dict(replaced)

    def value(x: Any) -> Any:
        return (found[x] if x in found else values(x)) if type(x) is ValueNode else x

    for node in nodes:
        if node in replaced:
            continue
        if node in changes and changes[node] is None:
            found[node] = value(main_operand(node))
            continue
        if node in changes or any(x in found for x in operands(node)):
            op, args, kwargs = changes.get(node) or computation(node)
            found[node] = _result(node, (op, *mapped(value, (args, kwargs))))
    return np.asarray(value(end))


def main_operand(node: ValueNode) -> ValueNode:
    """The operand that an elementwise operation changes: a dynamic one of its dtype and shape, if there is one."""
    dynamic = [x for x in node.inputs() if x.dynamic] or [x for x in node.inputs() if x.static]
    return next((x for x in dynamic if x.dtype == node.dtype and x.shape == node.shape), dynamic[0])


def _with_value(node: ValueNode, operand: ValueNode, value: Any) -> Computation:
    op, args, kwargs = computation(node)
    args, kwargs = mapped(lambda x: value if x is operand else x, (args, kwargs))
    return op, args, kwargs


def arranged(x: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """An array in the layouts that have a shape."""
    if x.shape == shape:
        yield x
    wide, wanted = (tuple(n for n in s if n > 1) for s in (x.shape, shape))
    if wide == wanted and x.shape != shape:
        yield x.reshape(shape)
    count = 0
    for order in itertools.permutations(range(len(wide))) if sorted(wide) == sorted(wanted) else ():
        if order != tuple(range(len(wide))) and tuple(wide[a] for a in order) == wanted and count < 6:
            count += 1
            yield x.reshape(wide).transpose(order).reshape(shape)
    if sorted(wide) != sorted(wanted) and not count:
        yield from itertools.islice((_moved(x, shape, of_x, axes) for of_x, axes in orders(x.shape, shape)), 1)


def _moved(x: np.ndarray, shape: tuple[int, ...], of_x: bool, axes: tuple[int, ...]) -> np.ndarray:
    if of_x:
        return x.transpose(axes).reshape(shape)
    return x.reshape([shape[a] for a in axes]).transpose(np.argsort(axes))


def _boundary(nodes: Sequence[ValueNode]) -> list[ValueNode]:
    within = set(nodes)
    found = dict.fromkeys(x for n in nodes for x in operands(n) if x not in within and x.dynamic)
    return sorted(found, key=lambda n: n.number)


def _between(end: ValueNode, is_equal: Callable[[ValueNode], bool]) -> list[ValueNode]:
    found: set[ValueNode] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node in found or node.op in ("input", "parameter") or (node is not end and is_equal(node)):
            continue
        if node.op == "constant" and not node.folded:
            continue
        found.add(node)
        waiting.extend(operands(node))
    return sorted(found | {end}, key=lambda n: n.number)
