"""Values of a graph's nodes, and which of them are the same numbers in another layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.masks import MASKED
from tensorgraft.porting.nodes import ValueNode, evaluate

TOLERANCE = 3e-7  # of the largest value: tables are computed in float32 in one program and in float64 in the other
EXACT = 1e-8  # where both compute the same in float64


class Evaluator:
    """Computes nodes of a graph from values of its parameters."""

    def __init__(self, graph: ProgramGraph, parameters: Mapping[str, np.ndarray]) -> None:
        self.values: dict[ValueNode, np.ndarray] = {}
        self._outputs: dict[int, tuple[object, object]] = {}
        self.parameters = parameters
        self.graph = graph
        self.in_order = False  # values are computed by who walks the graph: what has none is not known

    def __call__(self, node: ValueNode) -> np.ndarray:
        """The value of a node whose operands have been computed, or are static."""
        if node.value is not None:
            return node.value
        if node.op == "parameter":
            return self.parameters[node.name]
        if node not in self.values:
            if self.in_order and node.dynamic:
                raise ValueError(f"the value of {node} is not known")
            self.values[node] = self.compute(node)
        return self.values[node]

    def compute(self, node: ValueNode) -> np.ndarray:
        """Compute a node again."""
        out: object = None
        if node.output:  # the first result has computed the others
            args, out = self._outputs.get(id(node.args), (None, None))
            out = out if args is node.args else None
        if out is None:
            out = evaluate(node.op, *mapped(lambda x: self(x) if type(x) is ValueNode else x, (node.args, node.kwargs)))
        if isinstance(out, tuple | list):
            self._outputs[id(node.args)] = (node.args, out)
            return np.asarray(out[node.output])
        return np.asarray(out)

    def forget(self, number: int) -> None:
        """Forget the values of nodes from a number on."""
        self._outputs.clear()
        for node in [n for n in self.values if n.number >= number]:
            del self.values[node]


def fingerprint(x: np.ndarray) -> np.ndarray | None:
    """Return numbers that do not depend on the order of the elements; None for arrays that have one value, or too few
    elements to tell."""
    if x.size < 2 or x.dtype.kind not in "fciu":
        return None
    y = (np.abs(x) if x.dtype.kind == "c" else x).astype(np.float64).ravel()
    finite = np.isfinite(y) & ~masked(y)
    y = y[finite]
    if y.size < 2 or np.ptp(y) == 0:
        return None
    scale = float(np.max(np.abs(y))) or 1.0
    y = y / scale
    means = [float(np.mean(f)) for f in (y, y * y, y * y * y, np.abs(y), np.sin(5 * y), np.cos(7 * y))]
    return np.array([scale, *means, float(np.min(y)), float(finite.size - finite.sum())])


def masked(x: np.ndarray) -> np.ndarray:
    """Tell the elements that a mask has made so large that the others are lost among their rounding."""
    if x.dtype.kind != "f":
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        size = np.abs(x)
        large = (size >= MASKED) & np.isfinite(size)
        if not large.any() or large.all():
            return np.zeros(x.shape, bool)
        rest = np.max(size, initial=0.0, where=~large & np.isfinite(size))
        return large if 0 < rest * 100 < np.min(size, initial=np.inf, where=large) else np.zeros(x.shape, bool)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays of one shape are equal to rounding."""
    return relative_difference(a, b) <= TOLERANCE


def relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two arrays of one shape, relative to the largest finite value of the first; of what
    masks have made large, relative to the largest of these."""
    if not a.size:
        return 0.0
    hidden = masked(a)
    if hidden.any():
        parts = [(a[k], b[k]) for k in (hidden, ~hidden)]
        return max(_relative_difference(*part) for part in parts)
    return _relative_difference(a, b)


def _relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        a, b = (x.astype(np.result_type(x.dtype, np.float64)) for x in (np.asarray(a), np.asarray(b)))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
        scale = np.max(np.abs(a), initial=0.0, where=np.isfinite(a)) or 1.0
        largest = float(np.max(difference) / scale)
    return float("inf") if np.isnan(largest) else largest


def layouts(x: np.ndarray, y: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for each layout in which `x` has the values of `y`: the flat positions in `y` of the elements of `x`."""
    flat = y.ravel()
    for order in orders(x.shape, y.shape):
        of_x, axes = order
        if of_x:
            inverse = np.argsort(axes)
            moved = tuple(x.shape[a] for a in axes)
            if close(x.transpose(axes).ravel(), flat):
                yield np.arange(y.size).reshape(moved).transpose(inverse)
        else:
            if close(x.ravel(), y.transpose(axes).ravel()):
                yield np.arange(y.size).reshape(y.shape).transpose(axes).reshape(x.shape)


def orders(x: tuple[int, ...], y: tuple[int, ...]) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """Yield (whether axes of x are ordered, else those of y; their order), the plain order first."""
    yield True, tuple(range(len(x)))
    for is_x, shape in ((True, x), (False, y)):
        wide = [a for a, n in enumerate(shape) if n > 1]
        if not 1 < len(wide) <= 6:
            continue
        for order in itertools.permutations(wide):
            if list(order) != wide:
                yield is_x, (*order, *(a for a in range(len(shape)) if shape[a] <= 1))


@dataclass(eq=False)
class ValueClass:
    """Nodes of the source that have the same values, each in its layout."""

    number: int
    members: list[ValueNode] = field(default_factory=list)  # in order; the widest is the one that positions refer to

    @property
    def reference(self) -> ValueNode:
        return max(self.members, key=lambda n: sum(s > 1 for s in n.shape))


class Pool:
    """The values of the source's dynamic nodes, to look up a value in any layout."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.classes: list[ValueClass] = []
        self.class_of: dict[ValueNode, ValueClass] = {}
        self._prints: dict[int, list[tuple[np.ndarray, ValueClass]]] = {}
        self._positions: dict[ValueNode, np.ndarray | None] = {}
        for node in evaluator.graph.nodes:
            if not node.dynamic:
                continue
            found = fingerprint(evaluator(node))
            if found is None:
                continue
            known = self.find(node.size, found)
            if known is None:
                known = ValueClass(len(self.classes))
                self.classes.append(known)
                self._prints.setdefault(node.size, []).append((found, known))
            known.members.append(node)
            self.class_of[node] = known

    def find(self, size: int, print_: np.ndarray | None) -> ValueClass | None:
        """The class of values of this size and fingerprint."""
        if print_ is None:
            return None
        best, least = None, 2 * TOLERANCE
        for other, value_class in self._prints.get(size, ()):
            if other[-1] != print_[-1] or abs(other[0] - print_[0]) > least * abs(other[0]):
                continue
            d = float(np.max(np.abs(other[1:] - print_[1:])))
            if d < least:
                best, least = value_class, d
        return best

    def positions(self, node: ValueNode) -> np.ndarray | None:
        """The flat positions, in the class's reference, of the elements of a source's node."""
        if node not in self._positions:
            value_class = self.class_of.get(node)
            self._positions[node] = None if value_class is None else self.located(self.evaluator(node), value_class)
        return self._positions[node]

    def located(self, x: np.ndarray, value_class: ValueClass) -> np.ndarray | None:
        """The positions in the class's reference of the elements of an array that has its values."""
        return next(layouts(x, self.evaluator(value_class.reference)), None)
