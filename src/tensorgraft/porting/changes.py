"""Changes of the target, or of the source, that are tried to make two values equal: each is a reason if it does."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.recorded.block import leaves, mapped
from tensorgraft.porting.masks import MASKED
from tensorgraft.porting.nodes import MOVEMENT, POINTWISE, ValueNode, evaluate, number_of
from tensorgraft.porting.regions import Computation, Modification, RegionPair, arranged, computation, operands
from tensorgraft.porting.terms import PRODUCTS
from tensorgraft.porting.values import EXACT, Evaluator, relative_difference

_PADDED = frozenset({"convolution", "reduce_window", "pad"})


def changes(region: RegionPair) -> Iterator[Modification]:
    """The changes that are tried, the simplest first."""
    matcher = region.matcher
    yield from _other_numbers(region)
    yield from _other_settings(region)
    yield from _other_functions(region)
    yield from _other_activations(region)
    yield from _other_constants(region)
    yield from _all_constants(region)
    yield from _narrower(region)
    yield from _left_out(region, False, matcher.target_values)
    yield from _left_out(region, True, matcher.source_values)
    yield from _exchanged(region)
    yield from _moved_images(region)
    yield from _other_weights(region)
    yield from _without_biases(region)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _numbers(nodes: Sequence[ValueNode]) -> list[float]:
    calls = (computation(n) for n in nodes)
    found = (number_of(x) for op, args, kwargs in calls if op in POINTWISE | {"full"} for x in leaves([args, kwargs]))
    return list(dict.fromkeys(x for x in found if x is not None))


def _takes(node: ValueNode, number: float) -> bool:
    op, args, kwargs = computation(node)
    return op in POINTWISE and number in map(number_of, leaves([args, kwargs]))


def _other_numbers(region: RegionPair) -> Iterator[Modification]:
    """A number of the source in the place of one of the target."""
    nearby = [x for n in region.source for x in operands(n) if x.dynamic and x.op in POINTWISE]
    of_source, of_target = _numbers([*region.source, *nearby]), _numbers(region.target)
    ratio = _ratio(of_source, of_target)
    for number in of_target:
        users = [n for n in region.target if _takes(n, number)]
        is_whole = np.isfinite(number) and number == round(number) > 1
        for nodes in [users] if len(users) == 1 else [*([u] for u in users), users]:
            op = computation(nodes[0])[0] if nodes else ""
            if op in ("divide", "multiply"):
                for count in (number - 1, number + 1) if is_whole else ():
                    if not any(_is_count(nodes[0], round(n)) for n in (number, count)):
                        continue
                    text = f"a sum over {number:g} here is divided by {count:g} there"
                    yield Modification("variance", text, {n: _with_number(n, number, count) for n in nodes})
            is_factor = op in ("multiply", "divide") and number != 0
            scaled = [number * ratio, number * ratio**0.5] if is_factor and ratio > 0 else []
            scaled += [1 / x for x in of_source if x] if is_factor else []
            for other in [*of_source, *scaled] if nodes else ():
                if other != number and np.isfinite(other):
                    changed = {n: _with_number(n, number, other) for n in nodes}
                    reason = _reason(region, nodes[0], number, other)
                    yield Modification(reason, f"{number:g} here, {other:g} there", changed)


def _ratio(of_source: Sequence[float], of_target: Sequence[float]) -> float:
    """The quotient of the products of the programs' numbers."""
    with np.errstate(all="ignore"):
        products = [np.prod([abs(x) for x in xs if x and np.isfinite(x)]) for xs in (of_source, of_target)]
        ratio = float(products[0] / products[1])
    return ratio if np.isfinite(ratio) else 0.0


def _with_number(node: ValueNode, number: float, other: float) -> Computation:
    def swap(x: Any) -> Any:
        if number_of(x) != number:
            return x
        return np.asarray(other, x.dtype) if type(x) is ValueNode else other

    op, args, kwargs = computation(node)
    args, kwargs = mapped(swap, (args, kwargs))
    return op, args, kwargs


def _reason(region: RegionPair, node: ValueNode, number: float, other: float) -> str:
    """The word for a number that differs."""
    op = computation(node)[0]
    if op in ("add", "maximum", "clip") and min(number, other) >= 0 and max(number, other) < 0.05:
        return "epsilon"
    if node.folded and (word := word_of_constant(region, node)):
        return word
    if min(number, other) <= -MASKED:
        return "mask"
    if op in ("multiply", "divide") and number and other and np.isfinite([number, other]).all():
        ratio = max(abs(number / other), abs(other / number))
        n = ratio / (ratio - 1) if ratio > 1 else 0.0
        if n and abs(n - round(n)) < 1e-3 * n and round(n) > 1 and _is_count(node, round(n)):
            return "variance"
        return "scale"
    if number in (0.044715, 0.7978845608028654) or other in (0.044715, 0.7978845608028654, 1.702):
        return "gelu"
    if op not in ("add", "subtract"):
        return "constant"
    return _word_of_sum(region, node)


def _word_of_sum(region: RegionPair, node: ValueNode) -> str:
    """The word for a number that is added: to a mask, to a scale, to a product or its bias, or to something else."""
    if _is_of_mask(region, node):
        return "mask"
    if any(x.op == "sigmoid" for x in operands(node)):
        return "gates"
    if node.static:
        return "scale" if any(u.op == "affine" and u.args[1] is node for u in node.uses) else "bias"
    at, steps = node, 0
    while steps < 8 and at.dynamic:
        at, steps = next((x for x in at.inputs() if x.dynamic), at), steps + 1
        if at.op in PRODUCTS or at.op == "affine":
            return "bias"
        if at.op not in ("add", "subtract", *MOVEMENT):
            break
    return "offset"


def _is_of_mask(region: RegionPair, node: ValueNode) -> bool:
    """The node is a part of a mask: it takes one, or a value within the region that depends on it becomes one."""
    values = region.matcher.target_values
    within = [x for x in operands(node) if x.dynamic and x.size > 1]
    if any(_is_mask(x, values) for x in within):
        return True
    after = {node}
    for n in region.target:
        if any(x in after for x in operands(n)):
            after.add(n)
            op, args, _ = computation(n)
            numbers = [v for v in map(number_of, leaves(args)) if v is not None]
            if op == "multiply" and any(v <= -MASKED for v in numbers):
                return True
    return False


def word_of_constant(region: RegionPair, node: ValueNode) -> str:
    """The word for an array of constants, by what it is computed with and used for; "" where that says nothing."""
    before, waiting = {node}, [node]
    while waiting:
        for x in operands(waiting.pop()):
            if not x.dynamic and x not in before:
                before.add(x)
                waiting.append(x)
    after = {node}
    for n in region.target:
        if any(x in after for x in operands(n)):
            after.add(n)
    operations = {computation(n)[0] for n in before | after}
    if operations & {"cos", "sin"} and not operations & {"gather"}:
        return "rotary"
    if {computation(n)[0] for n in before} & {"reduce_window", "pad", "convolution"}:
        return "padding"
    if node.dtype.kind == "b" or (node.dtype.kind == "f" and node.size > 1 and np.min(_array(node)) < -MASKED):
        return "mask"
    return "offset" if node.dtype.kind in "iu" else ""


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


# ---- operations ------------------------------------------------------------------------------------------------------


def _other_settings(region: RegionPair) -> Iterator[Modification]:
    """The static arguments of a source's operation in one of the target of the same name."""
    for node in region.target:
        for other in region.source:
            if node.op != other.op or node.op in ("constant", "reshape", "permute_dims", "broadcast_to", "slice"):
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


def _other_functions(region: RegionPair) -> Iterator[Modification]:
    """A function of the source in the place of one of the target."""
    of_source = {(n.op, repr(n.kwargs)): n for n in region.source if _is_function(n)}
    for node in region.target:
        if not _is_function(node):
            continue
        for other in of_source.values():
            if (other.op, repr(other.kwargs)) != (node.op, repr(node.kwargs)):
                factors = {node.op, other.op} <= {"multiply", "divide"}
                reason = "scale" if factors else "gelu" if "gelu" in (node.op, other.op) else "activation"
                args = (node.args[0], *other.args[1:])
                yield Modification(reason, f"{node.op} here, {other.op} there", {node: (other.op, args, other.kwargs)})


def _other_activations(region: RegionPair) -> Iterator[Modification]:
    """A known function in the place of another, whichever operations it is written with."""
    for node in region.target:
        operand = next((x for x in node.inputs() if x.dynamic and x not in region.target), None)
        if operand is None or operand.dtype.kind != "f":
            continue
        value = region.matcher.target_values(operand)
        for other in region.target:
            if other.shape != operand.shape or other.number < node.number:
                continue
            name = _known_function(region.value(other), value)
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


def _known_function(y: np.ndarray, x: np.ndarray) -> str:
    """The name of the function that y is of x; "" where none is known."""
    if y.shape != x.shape or y.dtype.kind != "f" or np.array_equal(x, y):
        return ""
    for name, (op, kwargs) in _FUNCTIONS.items():
        if relative_difference(evaluate(op, (x,), kwargs), y) <= EXACT * 100:
            return name
    return ""


def _is_function(node: ValueNode) -> bool:
    return node.op in POINTWISE and sum(1 for _ in node.inputs()) == 1 and type(node.args[0]) is ValueNode


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _other_constants(region: RegionPair) -> Iterator[Modification]:
    """An array of constants of the source, or its negation, in the place of one of the target: masks, positions."""
    of_source = list(dict.fromkeys(c for n in region.source for c in _constants(n)))
    for constant in dict.fromkeys(c for n in region.target for c in _constants(n)):
        users = [n for n in region.target if constant in operands(n)]
        for other in of_source:
            value = _like(_array(other), constant)
            if value is None or np.array_equal(value, _array(constant)):
                continue
            reason = word_of_constant(region, constant) or "constant"
            for stand in (value, ~value) if constant.dtype.kind == "b" and value.dtype.kind == "b" else (value,):
                changed = {n: (computation(n)[0], *_replaced(n, {constant: stand})) for n in users}
                place = constant if constant.folded and constant in region.target else None
                yield Modification(reason, f"another array of {reason}s", changed, place=place)


def _like(x: np.ndarray, constant: ValueNode) -> np.ndarray | None:
    """An array in the shape and dtype of a constant; of one that repeats along axes, where shapes say how."""
    if x.dtype.kind != constant.dtype.kind:
        return None
    if x.size == constant.size:
        return x.reshape(constant.shape).astype(constant.dtype)
    squeezed = x.reshape([n for n in x.shape if n > 1])
    for shape in (x.shape, squeezed.shape):
        try:
            return np.broadcast_to(x.reshape(shape), constant.shape).astype(constant.dtype)
        except ValueError:
            continue
    return None


def _all_constants(region: RegionPair) -> Iterator[Modification]:
    """All arrays of constants of the source in the places of the target's: cosines and sines of positions."""
    of_target, of_source = (
        list(dict.fromkeys(c for n in nodes for c in _constants(n) if c.dtype.kind == "f"))
        for nodes in (region.target, region.source)
    )
    if not 1 < len(of_target) <= len(of_source):
        return
    stand = {a: _array(b).reshape(a.shape) for a, b in zip(of_target, of_source, strict=False) if a.size == b.size}
    nodes = [n for n in region.target if any(x in stand for x in operands(n))]
    angles = all(np.max(np.abs(_array(c))) <= 1 for c in of_target)
    reason = "rotary" if angles else "constant"
    changed = {n: (computation(n)[0], *_replaced(n, stand)) for n in nodes}
    if changed:
        yield Modification(reason, "other cosines and sines of positions" if angles else "other constants", changed)


def _array(constant: ValueNode) -> np.ndarray:
    return np.asarray(constant.value)


def _replaced(node: ValueNode, stand: Mapping[ValueNode, Any]) -> tuple[Any, Any]:
    """The arguments of a node with other operands in the place of some."""
    _, args, kwargs = computation(node)
    args, kwargs = mapped(lambda x: stand.get(x, x) if type(x) is ValueNode else x, (args, kwargs))
    return args, kwargs


def _with_operands(arguments: tuple[Any, Any], operands: Sequence[ValueNode]) -> tuple[Any, Any]:
    waiting = iter(operands)
    args, kwargs = mapped(lambda x: next(waiting) if type(x) is ValueNode else x, arguments)
    return args, kwargs


def _constants(node: ValueNode) -> list[ValueNode]:
    return [x for x in operands(node) if x.value is not None and not x.dynamic and x.size > 1]


def _narrower(region: RegionPair) -> Iterator[Modification]:
    """One of the programs rounds to 16 bits, or to other narrow dtypes."""
    for nodes, in_source in ((region.target, False), (region.source, True)):
        casts = [n for n in nodes if n.op == "astype" and n.dynamic]
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


def word_of_operation(region: RegionPair, node: ValueNode, values: Evaluator) -> tuple[str, float | None]:
    """(the word, the number) for an elementwise operation that one of the programs has alone."""
    number = next((v for v in map(number_of, leaves([node.args])) if v is not None), None)
    if any(_is_mask(x, values) for x in node.inputs()) or node.op == "where":
        return "mask", number
    if number is not None:
        return _reason(region, node, number, 1.0 if node.op in ("multiply", "divide") else 0.0), number
    if node.op in ("multiply", "divide"):
        return "scale", None
    return {"gelu": "gelu", "add": "order"}.get(node.op, "operation"), None


def _left_out(region: RegionPair, in_source: bool, values: Evaluator) -> Iterator[Modification]:
    """An operation that the other program has not."""
    where = "there" if in_source else "here"
    for node in region.source if in_source else region.target:
        if node.op not in POINTWISE or node.op == "astype" or not (node.dynamic or node.static):
            continue
        reason, number = word_of_operation(region, node, values)
        text = f"{node.op}{'' if number is None else f' by {number:g}'} {where} alone"
        yield Modification(reason, text, {node: None}, in_source)


def _exchanged(region: RegionPair) -> Iterator[Modification]:
    """The values that a region takes, in the places of each other: gates."""
    groups: dict[Any, list[ValueNode]] = {}
    for n in region.boundary():
        if n.size > 1:
            groups.setdefault((n.size, n.dtype), []).append(n)
    for nodes in groups.values():
        if not 1 < len(nodes) <= 8:
            continue
        every = itertools.permutations(nodes) if len(nodes) <= 4 else _pairs_exchanged(nodes)
        for order in sorted(every, key=lambda o: sum(a is not b for a, b in zip(o, nodes, strict=True))):
            stand = {a: _in_shape(region, b, a) for a, b in zip(nodes, order, strict=True) if a is not b}
            users = [n for n in region.target if any(x in stand for x in operands(n))]
            if stand and users:
                reason = word_of_operand(region, list(stand))
                changed = {n: (computation(n)[0], *_replaced(n, stand)) for n in users}
                text, place = "operands in the places of each other", selected(list(stand))
                yield Modification(reason, text, changed, place=place, of_weights=True)


def _in_shape(region: RegionPair, x: ValueNode, like: ValueNode) -> Any:
    """A value of the target in the shape of another one."""
    return x if x.shape == like.shape else next(arranged(region.value(x), like.shape), x)


def _pairs_exchanged(nodes: Sequence[ValueNode]) -> Iterator[tuple[ValueNode, ...]]:
    for i, k in itertools.combinations(range(len(nodes)), 2):
        order = list(nodes)
        order[i], order[k] = order[k], order[i]
        yield tuple(order)


def selected(nodes: Sequence[ValueNode]) -> ValueNode | None:
    """The first node that cuts one of several values out of the same array, if they are cut out of one."""
    cuts = []
    for x in nodes:
        while x.op != "slice" and sum(y.dynamic for y in x.inputs()) == 1 and x.op in {"affine", *MOVEMENT, *POINTWISE}:
            x = next(y for y in x.inputs() if y.dynamic)
        if x.op != "slice":
            return None
        cuts.append(x)
    same = len({id(x.args[0]) for x in cuts}) == 1
    return cuts[0] if same and len(set(cuts)) == len(cuts) else None


def word_of_operand(region: RegionPair, nodes: Sequence[ValueNode]) -> str:
    """The word for operands that are other values: gates, where they are weighted by sigmoids."""
    if any(x.op == "gather" or x.static for n in nodes for x in [n, *operands(n)] if not n.dynamic):
        return "offset"
    if any(_is_mask(x, region.matcher.target_values) for x in nodes):
        return "mask"
    near = {*region.target, *region.uses, *nodes}
    for _ in range(4):
        near |= {
            x for n in near for x in [*operands(n), *n.uses] if x.dynamic and x.op not in ("softmax", "mean", "sum")
        }
    return "gates" if {"sigmoid", "tanh"} <= {n.op for n in near} else "order"


def _moved_images(region: RegionPair) -> Iterator[Modification]:
    """Zeros that are added at one side and elements that are cut off at the other, left out."""
    for node in region.target:
        if node.op not in ("slice", "pad", "concat") or not node.dynamic:
            continue
        x, operations = node, set()
        while x.dynamic and x.op in ("slice", "pad", "concat", *MOVEMENT):
            operations.add(x.op)
            x = max((y for y in x.inputs() if y.dynamic), key=lambda y: y.size)
            if x.shape == node.shape and operations:
                reason = "padding" if "pad" in operations else "order"
                text = (
                    "an image that is moved by its padding here" if reason == "padding" else "elements that are moved"
                )
                yield Modification(reason, text, {node: ("reshape", (x, node.shape), {})})


def _without_biases(region: RegionPair) -> Iterator[Modification]:
    """Both programs with zeros in the place of what is added to their products: equal then, they differ in where that
    is."""
    shifts = [n.args[2] for n in region.target if n.op == "affine" and n.args[2] is not None]
    every = [x for s in shifts for x in _static_ancestors(s)]
    if any(computation(x)[0] not in ("parameter", "constant", "add", "subtract", *MOVEMENT) for x in every):
        return
    matcher = region.matcher
    of_target = frozenset().union(*(s.parameters for s in shifts))
    sums = {_total(matcher.target_values(matcher.target.parameters[n])) for n in of_target}
    in_region = frozenset().union(*(x.parameters for n in region.source for x in n.inputs()))
    of_source = {n for n in in_region if _total(matcher.source_values(matcher.source.parameters[n])) in sums}
    zeros_of_target = _with_zeros(region.target, of_target, matcher.target_values)
    zeros_of_source = _with_zeros(region.source, of_source, matcher.source_values)
    if zeros_of_target and zeros_of_source:
        last = max(zeros_of_target, key=lambda n: n.number)
        text = f"{', '.join(sorted(of_target))} is added at another place"
        yield Modification("bias", text, zeros_of_target, others=zeros_of_source, place=last, of_weights=True)


def _total(x: np.ndarray) -> float:
    return float(f"{np.abs(x).sum():.6e}")


def _with_zeros(
    nodes: Sequence[ValueNode], names: Collection[str], values: Evaluator
) -> dict[ValueNode, Computation | None]:
    """The operations of nodes whose static operands depend on some parameters, with zeros for these."""
    without = Evaluator(values.graph, {n: np.zeros_like(x) if n in names else x for n, x in values.parameters.items()})
    found: dict[ValueNode, Computation | None] = {}
    for n in nodes:
        stand = {x: without(x) for x in n.inputs() if x.static and x.parameters & set(names)}
        if n.dynamic and stand:
            found[n] = (n.op, *_replaced(n, stand))
    return found


def _other_weights(region: RegionPair) -> Iterator[Modification]:
    """A weight that is another one's in the target: a tied head; or that has other values."""
    for node in region.target:
        statics = [x for x in node.inputs() if x.static]
        for other in region.source if statics else ():
            of_source = [x for x in other.inputs() if x.static]
            if other.op != node.op or len(of_source) != len(statics):
                continue
            found = [
                _fitting(region.matcher.source_values(b), a.shape) for a, b in zip(statics, of_source, strict=True)
            ]
            if any(f is None for f in found):
                continue
            args, kwargs = _replaced(node, dict(zip(statics, found, strict=True)))
            names = [", ".join(sorted(frozenset().union(*(x.parameters for x in xs)))) for xs in (statics, of_source)]
            reason = _reason_of_weights(region, node, statics)
            text = f"{names[0]} here, and {names[1]} there"
            first = next((n for n in region.target if n.static and n.op not in MOVEMENT), None)
            yield Modification(
                reason, _WEIGHTS[reason] + text, {node: (node.op, args, kwargs)}, place=first, of_weights=True
            )


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


def _reason_of_weights(region: RegionPair, node: ValueNode, statics: Sequence[ValueNode]) -> str:
    """The word for static operands that differ: rows at other positions, a weight that has another use, or values."""
    differ = [n for x in statics for n in _static_ancestors(x) if n in region.target]
    operations = {n.op for n in differ}
    if operations & {"resize", "dot_general"}:
        return "corners"
    if operations & {"gather", "slice"}:
        return "offset"
    names = frozenset().union(*(x.parameters for x in statics))
    if all("bias" in n.lower() for n in names):
        return "bias"
    twice = any(
        n is not node and n.op != node.op and any(x.static and x.parameters & names for x in n.inputs())
        for n in region.matcher.target.nodes
        if n.dynamic
    )
    return "tied" if twice else "weights"


def _fitting(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if x.shape == shape:
        return x
    return x.T if x.T.shape == shape else x.reshape(shape) if x.size == int(np.prod(shape)) else None
