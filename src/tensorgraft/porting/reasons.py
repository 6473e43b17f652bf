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
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode, evaluate
from tensorgraft.porting.values import EXACT, Evaluator, layouts, relative_difference

if TYPE_CHECKING:
    from tensorgraft.porting.matching import Divergence, Matcher

MOST_TRIALS = 400
_PADDED = frozenset({"convolution", "reduce_window", "pad"})
Computation = tuple[str, tuple[Any, ...], dict[str, Any]]  # an operation and its operands


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
class Modification:
    """A change of the target, or of the source, that may make the values equal."""

    reason: str
    text: str
    nodes: Mapping[ValueNode, Computation | None]  # None: the node is left out, its first dynamic operand stands for it
    in_source: bool = False
    of_weights: bool = False

    @property
    def proves(self) -> bool:
        """Only the operations' settings are changed: values are equal then for no other reason than these."""
        return not self.of_weights and all(c is not None or n.op == "astype" for n, c in self.nodes.items())


def explain(matcher: Matcher, divergence: Divergence) -> Difference:
    """The difference at a value, with its reason."""
    if divergence.source is None:
        text = f"nothing of {matcher.source.name} corresponds to this {divergence.target.op}"
        return Difference("", divergence.target.place, "", text, float("nan"))
    regions = _Regions(matcher, divergence.target, divergence.source)
    distance = regions.distance()
    changes = () if np.isnan(distance) else _changes(matcher, regions)  # of values that are known
    for k, change in enumerate(changes):
        if k >= MOST_TRIALS:
            break
        if regions.is_equal_with(change):
            divergence.explained = change.proves
            place = next(iter(change.nodes)).place
            if change.in_source:
                return Difference(place, regions.target_place(), change.reason, change.text, distance)
            return Difference(regions.counterpart(change), place, change.reason, change.text, distance)
    reason, text = _without_proof(matcher, regions)
    return Difference(regions.source_place(), regions.target_place(), reason, text, distance)


class _Regions:
    """The computations of both programs between equal values and a pair that differs."""

    def __init__(self, matcher: Matcher, target_end: ValueNode, source_end: ValueNode) -> None:
        self.matcher, self.target_end, self.source_end = matcher, target_end, source_end
        self.target = _between(self.target_end, self._is_equal)
        reached = {
            id(c)
            for n, c in matcher.class_of.items()
            if n not in self.target and n is not self.target_end and self._is_equal(n)
        }
        self.source = _between(
            self.source_end,
            lambda n: n is not self.source_end and id(matcher.pool.class_of.get(n)) in reached,
        )

    def _is_equal(self, node: ValueNode) -> bool:
        """The value is the source's to the last digits, or was taken from there."""
        matcher = self.matcher
        if node is self.target_end or node not in matcher.class_of:
            return False
        positions = matcher.positions(node)
        if positions is None:
            return False
        of_source = matcher.source_values(matcher.class_of[node].reference).ravel()[positions.ravel()]
        return relative_difference(of_source, matcher.target_values(node).ravel()) <= EXACT

    def known_functions(self, y: np.ndarray, x: np.ndarray) -> str:
        """The name of the function that y is of x; "" where none is known."""
        if y.shape != x.shape or y.dtype.kind != "f" or np.array_equal(x, y):
            return ""
        for name, (op, kwargs) in _FUNCTIONS.items():
            if relative_difference(evaluate(op, (x,), kwargs), y) <= EXACT * 100:
                return name
        return ""

    def computed(
        self,
        nodes: Sequence[ValueNode],
        values: Any,
        changed: Mapping[ValueNode, Computation | None],
        end: ValueNode | None = None,
    ) -> np.ndarray:
        """The value of `end`, the last node where none is given, with some nodes computed in another way."""
        found: dict[ValueNode, np.ndarray] = {}

        def value(x: Any) -> Any:
            return (found[x] if x in found else values(x)) if type(x) is ValueNode else x

        for node in nodes:
            op, args, kwargs = node.op, node.args, node.kwargs
            if node in changed:
                other = changed[node]
                if other is None:
                    found[node] = value(_main_operand(node))
                    continue
                op, args, kwargs = other
            elif node.value is not None or node.op == "input":
                continue
            out = evaluate(op, *mapped(value, (args, kwargs)))
            found[node] = np.asarray(out[node.output] if isinstance(out, tuple | list) else out)
        end = end or nodes[-1]
        return found[end] if end in found else np.asarray(values(end))

    def distance(self) -> float:
        """The difference of the values, in the layout in which it is least."""
        try:
            of_target = self.computed(self.target, self.matcher.target_values, {})
        except ValueError:  # something before is not known
            return float("nan")
        of_source = self.matcher.source_values(self.source_end)
        if of_target.size != of_source.size:
            return float("inf")
        a, b = np.sort(of_target.ravel()), np.sort(of_source.ravel())
        direct = relative_difference(of_source, of_target) if of_target.shape == of_source.shape else float("inf")
        return max(min(direct, relative_difference(b, a) if direct == float("inf") else direct), 0.0)

    def is_equal_with(self, change: Modification) -> bool:
        matcher = self.matcher
        of_target, of_source = ({}, change.nodes) if change.in_source else (change.nodes, {})
        try:
            x = self.computed(self.target, matcher.target_values, of_target)
            y = self.computed(self.source, matcher.source_values, of_source)
        except (ValueError, TypeError, IndexError, StopIteration, NotImplementedError):
            return False  # a number where it does not fit
        return x.size == y.size and np.isfinite(x).any() and next(layouts(x, y), None) is not None

    def first(self, nodes: Sequence[ValueNode]) -> ValueNode:
        within = set(nodes)
        return next((n for n in nodes if not any(x in within for x in n.inputs())), nodes[-1])

    def target_place(self) -> str:
        return self.first(self.target).place

    def source_place(self) -> str:
        return self.first(self.source).place

    def counterpart(self, change: Modification) -> str:
        """The line of the source's node of the same operation."""
        op = next(iter(change.nodes)).op
        return next((n.place for n in self.source if n.op == op), self.source_place())


def _main_operand(node: ValueNode) -> ValueNode:
    """The operand that an elementwise operation changes: a dynamic one of its dtype and shape, if there is one."""
    dynamic = [x for x in node.inputs() if x.dynamic]
    return next((x for x in dynamic if x.dtype == node.dtype and x.shape == node.shape), dynamic[0])


def _between(end: ValueNode, is_equal: Callable[[ValueNode], bool]) -> list[ValueNode]:
    found: set[ValueNode] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node in found or node.op == "input" or is_equal(node):
            continue
        if not (node.dynamic or (node.static and node.op in POINTWISE | MOVEMENT)):
            continue
        found.add(node)
        waiting.extend(node.inputs())
    return sorted(found | {end}, key=lambda n: n.number)


# ---- changes ---------------------------------------------------------------------------------------------------------


def _changes(matcher: Matcher, regions: _Regions) -> Iterator[Modification]:
    yield from _other_numbers(regions)
    yield from _other_settings(regions)
    yield from _other_functions(regions)
    yield from _other_activations(regions)
    yield from _other_constants(regions)
    yield from _all_constants(regions)
    yield from _narrower(regions)
    yield from _left_out(regions.target, False, matcher.target_values)
    yield from _left_out(regions.source, True, matcher.source_values)
    yield from _other_weights(matcher, regions)


def _number(x: Any) -> float | None:
    if type(x) is ValueNode and x.value is not None and not x.dynamic and x.size == 1:
        x = x.value.item()
    return float(x) if isinstance(x, int | float | np.number) and not isinstance(x, bool) else None


def _numbers(nodes: Sequence[ValueNode]) -> list[float]:
    found = (_number(x) for n in nodes if n.op in POINTWISE | {"full"} for x in leaves([n.args, n.kwargs]))
    return list(dict.fromkeys(x for x in found if x is not None))


def _other_numbers(regions: _Regions) -> Iterator[Modification]:
    """A number of the source in the place of one of the target."""
    nearby = [x for n in regions.source for x in n.inputs() if x.dynamic and x.op in POINTWISE]
    of_source, of_target = _numbers([*regions.source, *nearby]), _numbers(regions.target)
    for number in of_target:
        users = [n for n in regions.target if n.op in POINTWISE and number in map(_number, leaves([n.args, n.kwargs]))]
        groups = [users] if len(users) == 1 else [*([u] for u in users), users]
        counts = [number - 1, number + 1] if np.isfinite(number) and number == round(number) > 1 else []
        for nodes in groups:
            if nodes and nodes[0].op in ("divide", "multiply"):
                for count in counts:
                    text = f"a sum over {number:g} here is divided by {count:g} there"
                    yield Modification("variance", text, {n: _with_number(n, number, count) for n in nodes})
            is_factor = nodes[0].op in ("multiply", "divide") and number != 0
            ratio = _ratio(of_source, of_target)
            for other in [*of_source, *([number * ratio, number * ratio**0.5] if is_factor and ratio > 0 else [])]:
                if other != number and np.isfinite(other):
                    changed = {n: _with_number(n, number, other) for n in nodes}
                    yield Modification(_reason(nodes[0], number, other), f"{number:g} here, {other:g} there", changed)


def _ratio(of_source: Sequence[float], of_target: Sequence[float]) -> float:
    """The quotient of the products of the programs' numbers."""
    products = [np.prod([abs(x) for x in xs if x and np.isfinite(x)]) for xs in (of_source, of_target)]
    return float(products[0] / products[1])


def _with_number(node: ValueNode, number: float, other: float) -> Computation:
    def swap(x: Any) -> Any:
        if _number(x) != number:
            return x
        return np.asarray(other, x.dtype) if type(x) is ValueNode else other

    args, kwargs = mapped(swap, (node.args, node.kwargs))
    return node.op, args, kwargs


def _reason(node: ValueNode, number: float, other: float) -> str:
    """The word for a number that differs."""
    if node.op in ("add", "maximum", "clip") and min(number, other) >= 0 and max(number, other) < 0.05:
        return "epsilon"
    if node.op in ("multiply", "divide") and number and other and np.isfinite([number, other]).all():
        ratio = max(abs(number / other), abs(other / number))
        n = ratio / (ratio - 1) if ratio > 1 else 0.0
        if n and abs(n - round(n)) < 1e-3 * n and round(n) > 1 and _is_count(node, round(n)):
            return "variance"
        return "scale"
    if min(number, other) <= -1e4:
        return "mask"
    if number in (0.044715, 0.7978845608028654) or other in (0.044715, 0.7978845608028654, 1.702):
        return "gelu"
    return "offset" if node.op in ("add", "subtract") else "constant"


def _is_count(node: ValueNode, n: int) -> bool:
    """A number of elements that a sum near this node has."""
    waiting, visited = [node], 0
    while waiting and visited < 12:
        x = waiting.pop()
        visited += 1
        if x.op in ("sum", "mean"):
            source = next(iter(x.inputs()))
            return source.size // max(x.size, 1) == n
        waiting.extend(y for y in x.inputs() if y.dynamic)
    return False


def _other_settings(regions: _Regions) -> Iterator[Modification]:
    """The static arguments of a source's operation in one of the target of the same name."""
    for node in regions.target:
        for other in regions.source:
            if node.op != other.op or node.op in ("reshape", "permute_dims", "broadcast_to", "slice"):
                continue
            if sum(1 for _ in node.inputs()) != sum(1 for _ in other.inputs()):
                continue
            reason = {"gelu": "gelu", "resize": "corners", "astype": "dtype", "softmax": "axis"}.get(node.op)
            reason = "padding" if node.op in _PADDED else reason or "setting"
            text = f"{node.op} with {_settings(node)} here, {_settings(other)} there"
            for arguments in _layouts_of_settings(other):
                args, kwargs = _with_operands(arguments, list(node.inputs()))
                if repr((args, kwargs)) != repr((node.args, node.kwargs)):
                    yield Modification(reason, text, {node: (node.op, args, kwargs)})


def _layouts_of_settings(node: ValueNode) -> Iterator[tuple[Any, Any]]:
    """The arguments of a node, and those for images with their channels last, or first."""
    yield node.args, node.kwargs
    if node.op in ("reduce_window", "pad") and len(node.shape) in (3, 4):
        n = len(node.shape)
        for order in ((0, *range(2, n), 1), (0, n - 1, *range(1, n - 1))):
            is_axes = [isinstance(a, tuple | list) and len(a) == n for a in node.args]
            args = [tuple(a[k] for k in order) if axes else a for a, axes in zip(node.args, is_axes, strict=True)]
            yield tuple(args), node.kwargs


def _settings(node: ValueNode) -> str:
    static = [repr(x) for x in node.args if type(x) is not ValueNode]
    return ", ".join([*static, *(f"{k}={v!r}" for k, v in node.kwargs.items())]) or "its defaults"


def _other_functions(regions: _Regions) -> Iterator[Modification]:
    """A function of the source in the place of one of the target."""
    of_source = {(n.op, repr(n.kwargs)): n for n in regions.source if _is_function(n)}
    for node in regions.target:
        if not _is_function(node):
            continue
        for other in of_source.values():
            if (other.op, repr(other.kwargs)) != (node.op, repr(node.kwargs)):
                factors = {node.op, other.op} <= {"multiply", "divide"}
                reason = "scale" if factors else "gelu" if "gelu" in (node.op, other.op) else "activation"
                args = (node.args[0], *other.args[1:])
                yield Modification(reason, f"{node.op} here, {other.op} there", {node: (other.op, args, other.kwargs)})


def _other_activations(regions: _Regions) -> Iterator[Modification]:
    """A known function in the place of another, whichever operations it is written with."""
    known = regions.known_functions
    for node in regions.target:
        operand = next((x for x in node.inputs() if x.dynamic and x not in regions.target), None)
        if operand is None or operand.dtype.kind != "f":
            continue
        if operand.value is None and operand not in regions.matcher.target_values.values:
            continue
        value = regions.matcher.target_values(operand)
        for other in regions.target:
            if other.shape != operand.shape or other.number < node.number:
                continue
            name = known(regions.computed(regions.target, regions.matcher.target_values, {}, other), value)
            for replacement, call in _FUNCTIONS.items() if name else ():
                if replacement != name:
                    is_gelu = "GELU" in name and "GELU" in replacement
                    text = f"{name} here, {replacement} there"
                    op, kwargs = call
                    yield Modification("gelu" if is_gelu else "activation", text, {other: (op, (operand,), kwargs)})


_FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "GELU": ("gelu", {}),
    "GELU by tanh": ("gelu", {"approximate": True}),
    "SiLU": ("silu", {}),
    "ReLU": ("relu", {}),
    "ReLU6": ("relu6", {}),
    "ELU": ("elu", {}),
    "SELU": ("selu", {}),
    "leaky ReLU": ("leaky_relu", {}),
    "Mish": ("mish", {}),
    "softplus": ("softplus", {}),
    "hard sigmoid": ("hard_sigmoid", {}),
    "hard swish": ("hard_silu", {}),
    "sigmoid": ("sigmoid", {}),
    "tanh": ("tanh", {}),
}


def _is_function(node: ValueNode) -> bool:
    return node.op in POINTWISE and sum(1 for _ in node.inputs()) == 1 and type(node.args[0]) is ValueNode


def _other_constants(regions: _Regions) -> Iterator[Modification]:
    """An array of constants of the source in the place of one of the target: masks, positions."""
    of_source = [c for n in regions.source for c in _constants(n)]
    for node in regions.target:
        for constant in _constants(node):
            for other in of_source:
                if other.size != constant.size or np.array_equal(_array(other), _array(constant)):
                    continue
                value = _array(other).reshape(constant.shape).astype(constant.dtype)
                args, kwargs = _replaced(node, {constant: value})
                is_mask = constant.dtype.kind == "b" or float(np.min(_array(constant))) < -1e4
                reason = "mask" if is_mask else "offset" if constant.dtype.kind in "iu" else "constant"
                yield Modification(reason, f"another array of {reason}s", {node: (node.op, args, kwargs)})


def _all_constants(regions: _Regions) -> Iterator[Modification]:
    """All arrays of constants of the source in the places of the target's: cosines and sines of positions."""
    of_target, of_source = (
        list(dict.fromkeys(c for n in nodes for c in _constants(n) if c.dtype.kind == "f"))
        for nodes in (regions.target, regions.source)
    )
    if not 1 < len(of_target) <= len(of_source):
        return
    stand = {a: _array(b).reshape(a.shape) for a, b in zip(of_target, of_source, strict=False) if a.size == b.size}
    nodes = [n for n in regions.target if any(x in stand for x in n.inputs())]
    angles = all(np.max(np.abs(_array(c))) <= 1 for c in of_target)
    reason = "rotary" if angles else "constant"
    changed = {n: (n.op, *_replaced(n, stand)) for n in nodes}
    if changed:
        yield Modification(reason, "other cosines and sines of positions" if angles else "other constants", changed)


def _array(constant: ValueNode) -> np.ndarray:
    return np.asarray(constant.value)


def _replaced(node: ValueNode, stand: Mapping[ValueNode, Any]) -> tuple[Any, Any]:
    """The arguments of a node with other operands in the place of some."""
    args, kwargs = mapped(lambda x: stand.get(x, x) if type(x) is ValueNode else x, (node.args, node.kwargs))
    return args, kwargs


def _with_operands(arguments: tuple[Any, Any], operands: Sequence[ValueNode]) -> tuple[Any, Any]:
    waiting = iter(operands)
    args, kwargs = mapped(lambda x: next(waiting) if type(x) is ValueNode else x, arguments)
    return args, kwargs


def _constants(node: ValueNode) -> list[ValueNode]:
    return [x for x in node.inputs() if x.value is not None and not x.dynamic and x.size > 1]


def _narrower(regions: _Regions) -> Iterator[Modification]:
    """One of the programs rounds to 16 bits, or to other narrow dtypes."""
    for nodes, in_source in ((regions.target, False), (regions.source, True)):
        casts = [n for n in nodes if n.op == "astype"]
        if casts:
            dtypes = sorted({str(n.dtype) for n in casts if n.dtype.itemsize < 4}) or ["another dtype"]
            where = "there" if in_source else "here"
            yield Modification(
                "dtype", f"values are rounded to {', '.join(dtypes)} {where}", dict.fromkeys(casts), in_source
            )


def _is_mask(x: ValueNode, values: Evaluator) -> bool:
    """Its values are known, and are zeros and ones."""
    if x.static or x.size == 1 or (x.value is None and x not in values.values):
        return False
    return bool(np.isin(values(x), (0, 1)).all())


def _left_out(nodes: Sequence[ValueNode], in_source: bool, values: Evaluator) -> Iterator[Modification]:
    """An operation that the other program has not."""
    where = "there" if in_source else "here"
    for node in nodes:
        if node.op not in POINTWISE or node.op == "astype" or not node.dynamic:
            continue
        number = next((v for v in map(_number, leaves([node.args])) if v is not None), None)
        reason = (
            "scale" if node.op in ("multiply", "divide") else "mask" if node.op in ("where", "add") else "operation"
        )
        if number is not None:
            reason = _reason(node, number, 1.0 if node.op in ("multiply", "divide") else 0.0)
        elif reason == "scale" and any(_is_mask(x, values) for x in node.inputs()):
            reason = "mask"
        text = f"{node.op}{'' if number is None else f' by {number:g}'} {where} alone"
        yield Modification(reason, text, {node: None}, in_source)


def _other_weights(matcher: Matcher, regions: _Regions) -> Iterator[Modification]:
    """A weight that is another one's in the target: a tied head; or that has other values."""
    for node in regions.target:
        statics = [x for x in node.inputs() if x.static]
        for other in regions.source if statics else ():
            of_source = [x for x in other.inputs() if x.static]
            if other.op != node.op or len(of_source) != len(statics):
                continue
            found = [_fitting(matcher.source_values(b), a.shape) for a, b in zip(statics, of_source, strict=True)]
            if any(f is None for f in found):
                continue
            args, kwargs = _replaced(node, dict(zip(statics, found, strict=True)))
            names = [", ".join(sorted(frozenset().union(*(x.parameters for x in xs)))) for xs in (statics, of_source)]
            reason = _reason_of_weights(matcher, node, statics)
            text = f"{names[0]} here, and {names[1]} there"
            yield Modification(reason, _WEIGHTS[reason] + text, {node: (node.op, args, kwargs)}, of_weights=True)


_WEIGHTS = {
    "bias": "biases of other values: ",
    "corners": "a table that is resized in another way: ",
    "offset": "other rows: ",
    "tied": "a weight that is used twice: ",
    "weights": "weights of other values: ",
}


def _static_ancestors(node: ValueNode) -> Iterator[ValueNode]:
    yield node
    for x in node.inputs():
        if x.static:
            yield from _static_ancestors(x)


def _reason_of_weights(matcher: Matcher, node: ValueNode, statics: Sequence[ValueNode]) -> str:
    """The word for static operands that differ: rows at other positions, a weight that has another use, or values."""
    operations = {n.op for x in statics for n in _static_ancestors(x)}
    if operations & {"resize", "dot_general"}:
        return "corners"
    if operations & {"gather", "slice"}:
        return "offset"
    names = frozenset().union(*(x.parameters for x in statics))
    if all("bias" in n.lower() for n in names):
        return "bias"
    twice = any(
        n is not node and n.op != node.op and any(x.static and x.parameters & names for x in n.inputs())
        for n in matcher.target.nodes
        if n.dynamic
    )
    return "tied" if twice else "weights"


def _fitting(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if x.shape == shape:
        return x
    return x.T if x.T.shape == shape else x.reshape(shape) if x.size == int(np.prod(shape)) else None


def _without_proof(matcher: Matcher, regions: _Regions) -> tuple[str, str]:
    """(a reason, a sentence) where no single change makes the values equal."""
    skipped = ("reshape", "permute_dims", "broadcast_to", "affine")
    of_target, of_source = (Counter(n.op for n in r if n.op not in skipped) for r in (regions.target, regions.source))
    every = of_target | of_source
    constants = (_array(c) for n in regions.target for c in _constants(n) if c.dtype.kind == "f")
    angles = [c for c in constants if np.max(np.abs(c)) <= 1 and np.ptp(c) > 0]
    if angles and of_target["multiply"] > 1 and (of_target["slice"] or of_target["concat"]):
        return "rotary", "rotary positions turn other pairs of elements (a likeness, not proved)"
    if every["resize"]:
        return "corners", "an image is resized in another way (a likeness, not proved)"
    if every["reduce_window"] and (every["pad"] or of_target["reduce_window"] == of_source["reduce_window"]):
        return "padding", "windows are padded in another way (a likeness, not proved)"
    if every["sigmoid"] and every["tanh"]:
        return "gates", "the gates of a recurrent layer are combined in another way (a likeness, not proved)"
    shapes = [{n.shape for n in r if n.op == "convolution"} for r in (regions.target, regions.source)]
    if shapes[0] and shapes[1] and shapes[0] != shapes[1]:
        return "padding", "images of other sizes (a likeness, not proved)"
    if of_target == of_source or ((every["rsqrt"] or every["sqrt"]) and every["add"]):
        return "order", "the same operations in another order, or on other operands (a likeness, not proved)"
    more, less = sorted((of_target - of_source).elements()), sorted((of_source - of_target).elements())
    texts = [f"{', '.join(ops)} {where}" for ops, where in ((more, "here alone"), (less, "there alone")) if ops]
    return "", f"computed in another way: {'; '.join(texts)}"
