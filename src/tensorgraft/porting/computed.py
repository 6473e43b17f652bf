"""Computed weights: arrays that a program computes of its parameters alone, and uses as weights (weight normalization).

They take the place of the parameters in the graph: what corresponds is found for the weight that is used. In a mapping
they are written as NumPy computes them. The parameters of a target's computed weight are known where both programs
compute it in the same way, and of a normalized weight, whose direction may be the weight itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.expressions import COMPUTED, ArrayOperation, Expression, View, replaced
from tensorgraft.porting.graph import ProgramGraph
from tensorgraft.porting.labels import ElementLabels
from tensorgraft.porting.mapping import Entry
from tensorgraft.porting.mapping import Mapping as Table
from tensorgraft.porting.nodes import MOVEMENT, ValueNode, number_of
from tensorgraft.porting.terms import PRODUCTS

MOST_OPERATIONS = 48
Computations = dict[str, Expression]


def fold(graph: ProgramGraph) -> Computations:
    """Put parameters in the places of the weights that a graph computes. Returns how each is computed, by its name."""
    labels = ElementLabels(graph)
    found: dict[ValueNode, ValueNode] = {}
    computations: Computations = {}
    for node in graph.nodes:
        if node.op in PRODUCTS and node.args[0].dynamic and node.args[1].static and labels.of(node.args[1]) is None:
            weight = node.args[1]
            while weight.op in MOVEMENT:
                weight = weight.args[0]
            expression = None if weight in found else expression_of(weight)
            if expression is not None:
                name = f"weight of {' and '.join(sorted(weight.parameters))}"
                name += f" ({len(found)})" if name in computations else ""
                computations[name] = expression
                parameter = ValueNode("parameter", (), {}, weight.shape, weight.dtype, name=name)
                parameter.parameters, parameter.place = frozenset({name}), weight.place
                found[weight] = parameter
    if found:
        _replace(graph, found)
    return computations


def _replace(graph: ProgramGraph, found: Mapping[ValueNode, ValueNode]) -> None:
    graph.nodes = [found.get(n, n) for n in graph.nodes]
    for node in graph.nodes:
        node.uses = []
        node.args, node.kwargs = mapped(
            lambda x: found.get(x, x) if type(x) is ValueNode else x, (node.args, node.kwargs)
        )
        if node.parameters and node.op != "parameter":
            node.parameters = frozenset().union(*(x.parameters for x in node.inputs()))
    graph.prune()
    before = {name: node for name, node in graph.parameters.items() if node.uses or node in graph.outputs}
    graph.parameters = before | {node.name: node for node in found.values()}
    graph.nodes = [n for n in graph.nodes if n.op != "parameter" or n.name in graph.parameters]


def expression_of(node: ValueNode, most: int = MOST_OPERATIONS) -> Expression | None:
    """The computation of a static array in NumPy's words; None for operations that are not known here."""
    if node.op == "parameter":
        n = node.shape
        return View(node.name, n, n, tuple((0, k, 1) for k in n), tuple(range(len(n))), (), n)
    operands: list[Expression | float | None] = []
    settings: list[object] = []
    for x in node.args:
        if type(x) is ValueNode and x.parameters:
            operands.append(expression_of(x, most // 2))
        elif (number := number_of(x)) is not None and node.op not in ("sum", "mean", "max"):
            operands.append(number)
        elif type(x) is ValueNode:
            return None
        else:
            settings.append(x)
    if node.op not in COMPUTED or most < 1 or any(x is None for x in operands):
        return None
    if node.op == "dot_general":
        if settings[1:] not in ([], [((), ())]):  # products of several matrices
            return None
        settings = settings[:1]
    if node.op in ("sum", "mean", "max"):
        axis = node.kwargs.get("axis", settings[0] if settings else None)
        axes = range(len(node.args[0].shape)) if axis is None else np.atleast_1d(axis).tolist()
        settings = [list(axes), bool(node.kwargs.get("keepdims", False))]
    return ArrayOperation(node.op, tuple(operands), _plain(settings), node.shape)  # type: ignore[arg-type]


def _plain(x: object) -> object:
    return tuple(map(_plain, x)) if isinstance(x, tuple | list) else x


# ---- mappings of parameters ------------------------------------------------------------------------------------------


class FoldedProgram(Protocol):
    """A program with the names of its parameters, and the weights that it computes of them."""

    names: list[str]
    computed: Computations


def of_parameters(mapping: Table, source: FoldedProgram, target: FoldedProgram) -> Table:
    """A mapping of the weights that are used as one of the programs' parameters."""
    entries: dict[str, Entry] = {}
    for entry in mapping:
        if entry.target in target.computed:
            entries.update(_entries_of_computed(entry, source.computed, target.computed[entry.target]))
        else:
            of = None if entry.expression is None else replaced(entry.expression, source.computed)
            entries[entry.target] = replace(entry, expression=of, note=_in_parameters(entry.note, source.computed))
    order = {name: k for k, name in enumerate(target.names)}
    entries = {name: entries[name] for name in sorted(entries, key=order.__getitem__)}
    used = {s for e in entries.values() for s in e.sources}
    idle = [n for n in target.names if n not in entries]
    return replace(mapping, entries=entries, unused=[n for n in source.names if n not in used], idle=idle)


def _in_parameters(note: str, computed: Computations) -> str:
    for name, of in computed.items():
        note = note.replace(f"source[{name!r}]", f"({of.code(lambda n: f'source[{n!r}]')})")
    return note


def _entries_of_computed(entry: Entry, computed: Computations, computation: Expression) -> dict[str, Entry]:
    """Entries for the parameters of a target's computed weight."""
    found, note = None, _in_parameters(entry.note, computed)
    if entry.expression is not None:
        found = parameters_of(computation, entry.expression, computed)
        code = replaced(entry.expression, computed).code(lambda n: f"source[{n!r}]")
        note = "" if found else f"does not follow from {computation.code(str)} = {code}"
    views = {v.source: v for v in _leaves(computation)}
    return {n: Entry(n, v.source_shape, None if found is None else found[n], note) for n, v in views.items()}


# ---- parameters of a target's computed weight ------------------------------------------------------------------------


def parameters_of(computation: Expression, weight: Expression, computed: Computations) -> dict[str, Expression] | None:
    """The parameters for which a target's computed weight is `weight`, an expression of the source's; None where they
    do not follow from it. `computed` are the source's computed weights."""
    if isinstance(weight, View) and weight.source in computed and weight.is_whole:
        same: dict[str, Expression] = {}
        if _alike(computation, computed[weight.source], same):
            return same
    of = replaced(weight, computed)
    views = {v.source: v for v in _leaves(computation)}
    direction = [n for n, v in views.items() if v.source_shape == computation.shape]
    if len(views) != 2 or len(direction) != 1:
        return None
    (length,) = views.keys() - set(direction)
    found = _length(computation, direction[0], length, views[length].source_shape, of)
    return None if found is None else {direction[0]: of, length: found}


def _length(
    computation: Expression, direction: str, length: str, shape: tuple[int, ...], weight: Expression
) -> Expression | None:
    """The lengths of a normalized weight, if it is the direction times these."""
    example = np.random.default_rng(0).standard_normal(computation.shape)
    axes = range(example.ndim)
    for n in range(1, example.ndim + 1):
        for over in itertools.combinations(axes, n):
            lengths = np.sqrt((example**2).sum(over))
            if lengths.size != int(np.prod(shape)):
                continue
            found = computation({direction: example, length: lengths.reshape(shape)}.__getitem__)
            if np.allclose(found, example, rtol=1e-6, atol=0):
                squares = ArrayOperation("square", (weight,), (), weight.shape)
                total = ArrayOperation("sum", (squares,), (over, False), lengths.shape)
                roots = ArrayOperation("sqrt", (total,), (), lengths.shape)
                return roots if lengths.shape == shape else ArrayOperation("reshape", (roots,), (shape,), shape)
    return None


def _alike(a: Expression | float, b: Expression | float, found: dict[str, Expression]) -> bool:
    """Both are computed in the same way; `found` gets what each parameter of the first is."""
    if isinstance(a, View) and isinstance(b, View):
        return a.source_shape == b.source_shape and found.setdefault(a.source, b) == b
    if isinstance(a, ArrayOperation) and isinstance(b, ArrayOperation):
        if (a.name, a.settings, len(a.operands)) != (b.name, b.settings, len(b.operands)):
            return False
        return all(_alike(x, y, found) for x, y in zip(a.operands, b.operands, strict=True))
    return isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-6 * abs(a)


def _leaves(x: Expression | float) -> list[View]:
    if isinstance(x, View):
        return [x]
    return [v for y in getattr(x, "terms", ()) for v in _leaves(y)]
