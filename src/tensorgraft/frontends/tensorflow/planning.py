"""Graphs of raw operations, made ready to run: calls inlined, constants folded, nodes resolved to rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.compiled.steps import RuleStep, StepsPlan
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.counted_rows import run_counted
from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Value
from tensorgraft.frontends.tensorflow.missing_rules import reason_of
from tensorgraft.frontends.tensorflow.rule import EVERY, REASONS, RULES, OperationRule
from tensorgraft.frontends.tensorflow.values import CountedRows, CountedSizes, TracedText, is_known, lifted, on_strings
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
HANDED_ON = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "ReadVariableXlaSplitND")
SMALL = 1 << 14  # elements: smaller known values are computed on the host
_BRANCHES = ("If", "StatelessIf")  # their bodies receive the operands unchanged
_NO_STEPS = ("NoOp", "ControlTrigger")


class UnsupportedOperationError(NotImplementedError):
    """A raw operation of TensorFlow without a rule."""


@dataclass
class GraphPlan(StepsPlan):
    """A graph as a list of steps. Small constants stay known, larger ones are arrays of the backend."""

    def converted(self, xp: Backend, value: Any) -> Any:
        return value if value.size <= SMALL or value.dtype.kind in "OSU" else lifted(xp, value)


def plan(graph: FunctionGraph) -> GraphPlan:
    """Plan a graph. Raises UnsupportedOperationError, also for operations in the bodies of loops and branches."""
    known = graph.memory.get("plan")
    return Planner(GraphPlan()).plan_graph(graph) if known is None else known


class Planner:
    """Makes the steps of a plan. `tg.source` has one whose steps record themselves (`codegen/recorders/recording`)."""

    handed_on: tuple[str, ...] = HANDED_ON

    def __init__(self, plan: GraphPlan) -> None:
        self.plan = plan
        self.values: dict[int, Any] = {}  # {slot: constant}
        self.effects: set[int] = set()  # ids of steps with side effects
        self.least: dict[int, int] = {}  # {slot of an integer: a lower bound}

    def plan_graph(self, graph: FunctionGraph) -> GraphPlan:
        self.plan.parameters = [self.plan.new_slot() for _ in graph.inputs]
        self.plan.results = self.inline(graph, self.plan.parameters)
        _drop_unread_steps(self.plan, self.effects)
        self.plan.finish()
        graph.memory["plan"] = self.plan
        return self.plan

    def body(self, graph: FunctionGraph) -> None:
        """Plan the body of a loop or a branch, which its rule finds in the graph's memory."""
        plan(graph)

    def constant(self, value: Any) -> int:
        slot = self.plan.new_slot()
        self.plan.constants.append((slot, value))
        self.values[slot] = value
        return slot

    def inline(self, graph: FunctionGraph, inputs: Sequence[int]) -> list[int]:
        slots: dict[Value, int] = {(index, 0): slot for index, slot in zip(graph.inputs, inputs, strict=True)}
        for index, node in enumerate(graph.nodes):
            if (index, 0) not in slots or node.op != "Placeholder":
                reads = [slots[value] for value in node.inputs]
                for k, slot in enumerate(self.node(node, reads)):
                    slots.setdefault((index, k), slot)
        self.planned(graph, slots)
        return [slots[value] for value in graph.outputs]

    def planned(self, graph: FunctionGraph, slots: dict[Value, int]) -> None:
        """Note the slots of a graph's values."""

    def node(self, node: GraphNode, reads: list[int]) -> list[int]:
        """Plan a node, and return the slots of its results."""
        if node.op in CALLS:
            return self.inline(node.attributes["f"], reads)
        if node.op == "Const":
            return [self.constant(np.asarray(node.attributes["value"]))]
        if node.op in self.handed_on:
            return reads[:1]
        if node.op == "IdentityN":
            return reads
        if node.op in _NO_STEPS:
            return []
        row = self.rule(node)
        for inner in functions(node):
            self.body(inner)
        if row is not None and row.folds and reads and all(slot in self.values for slot in reads) and is_small(node):
            known = [self.values[slot] for slot in reads]
            if all(value.size <= SMALL for value in known):
                return [self.constant(np.asarray(x)) for x in _on_host(node, row, known)]
        exact = self._bounded(node, reads)
        if exact is not None:
            return [self.constant(exact)]
        writes = [self.plan.new_slot() for _ in node.dtypes]
        if node.op == "Maximum" and (least := self._integer(reads)) is not None:
            self.least[writes[0]] = int(least)
        run = self.resolved(node, row, writes)
        step = RuleStep(node.op, run, tuple(reads), tuple(writes), len(writes) != 1)
        self.plan.steps.append(step)
        if has_effect(node):
            self.effects.add(id(step))
        return writes

    def rule(self, node: GraphNode) -> OperationRule | None:
        return rule_of(node)

    def resolved(self, node: GraphNode, row: Any, writes: Sequence[int]) -> Callable[..., Any]:
        """Return the function that computes a node, whose results go into these slots."""
        return resolved(node, row)

    def _integer(self, reads: Sequence[int]) -> np.ndarray | None:
        known = [self.values[slot] for slot in reads if slot in self.values]
        return known[0] if len(known) == 1 and known[0].ndim == 0 and known[0].dtype.kind in "iu" else None

    def _bounded(self, node: GraphNode, reads: Sequence[int]) -> np.ndarray | None:
        """Return the integer that a clipped value has if both bounds are equal, as for the size of a counted array."""
        if node.op != "Minimum" or node.shapes[0] != ():
            return None
        most = self._integer(reads)
        if most is None or not any(self.least.get(slot, most - 1) >= most for slot in reads):
            return None
        return most


def rule_of(node: GraphNode) -> OperationRule:
    row = RULES.get(node.op)
    if row is None:
        reason = REASONS.get(node.op) or reason_of(node.op)
        because = f": {reason}" if reason else ""
        raise UnsupportedOperationError(
            f"the TensorFlow operation {node} has no rule here{because}\n"
            "Nothing was computed, and no variable was written. Either leave this part to TensorFlow and call the"
            " rest on its result, or write it with other operations"
        )
    return row


def functions(node: GraphNode) -> list[FunctionGraph]:
    """Return the graphs that are attributes of a node: bodies of loops, branches."""
    graphs = []
    for value in node.attributes.values():
        values = value if isinstance(value, tuple) else (value,)
        graphs += [x for x in values if isinstance(x, FunctionGraph)]
    return graphs


def has_effect(node: GraphNode) -> bool:
    """Return True if running a node has side effects."""
    if node.op in RULES and RULES[node.op].effect:
        return True
    return any(has_effect(inner) for graph in functions(node) for inner in graph.nodes)


def _drop_unread_steps(graph_plan: GraphPlan, effects: set[int]) -> None:
    read, kept_steps = set(graph_plan.results), []
    for step in reversed(graph_plan.steps):
        if id(step) in effects or read.intersection(step.writes):
            read.update(step.reads)
            kept_steps.append(step)
    graph_plan.steps = kept_steps[::-1]


# ---- one node --------------------------------------------------------------------------------------------------------


def _arguments(node: GraphNode, row: OperationRule) -> dict[str, Any]:
    named = {name: node.attributes[name] for name in row.attributes if name in node.attributes}
    if "node" in row.attributes:
        named["node"] = node
    return named


def is_small(node: GraphNode) -> bool:
    return all(
        dtype is not None and (shape is None or None in shape or math.prod(n or 0 for n in shape) <= SMALL)
        for shape, dtype in zip(node.shapes, node.dtypes, strict=True)
    )


def _on_host(node: GraphNode, row: OperationRule, operands: Sequence[Any]) -> list[np.ndarray]:
    host = registry.get("numpy")
    with host.scope():
        results = resolved(node, row)(host, *operands)
    return list(results) if len(node.dtypes) != 1 else [results]


def resolved(node: GraphNode, row: OperationRule) -> Callable[..., Any]:
    """Return the function that computes a node: known operands are kept, lifted or refused as its rule says."""
    fn, named = row.fn, _arguments(node, row)
    count = len(node.inputs)

    def positions_of(rule_says: tuple[int, ...]) -> frozenset[int]:
        if rule_says is EVERY:
            return frozenset(range(count))
        return frozenset(range(count)[i] for i in rule_says if i < count)

    known_operands, either_operands = positions_of(row.known), positions_of(row.either)
    can_fold, single = row.folds and is_small(node), len(node.dtypes) == 1
    host = registry.get("numpy")

    def plain(xp: Backend, *operands: Any) -> Any:
        if can_fold and host is not getattr(xp, "inner", xp) and all(is_known(x) and x.size <= SMALL for x in operands):
            with host.scope():
                return host_values(as_handed(fn(host, *operands, **named)))
        prepared = list(operands)
        for i, x in enumerate(operands):
            if is_known(x):
                if i not in known_operands and i not in either_operands:
                    prepared[i] = lifted(xp, x)
            elif i in known_operands:
                prepared[i] = _number(xp, node, i, x)
        return as_handed(fn(xp, *prepared, **named))

    def as_handed(results: Any) -> Any:
        return results[0] if single and isinstance(results, list) else results

    def run(xp: Backend, *operands: Any) -> Any:
        try:
            if node.op not in _BRANCHES and any(isinstance(x, CountedRows | CountedSizes) for x in operands):
                return run_counted(xp, functools.partial(plain, xp), operands, node)
            return plain(xp, *operands)
        except Exception as error:
            if any(isinstance(x, TracedText) for x in operands) and not isinstance(error, TracedValueError):
                raise TracedValueError(on_strings(node)) from error
            if not hasattr(error, "__notes__"):
                error.add_note(f"computing TensorFlow's {node}")
            raise

    return run


def host_values(results: Any) -> Any:
    if isinstance(results, list | tuple):
        return [np.asarray(x) for x in results]
    return np.asarray(results)


def _number(xp: Backend, node: GraphNode, i: int, x: Any) -> np.ndarray:
    if xp.is_traced(x):
        raise TracedValueError(
            f"TensorFlow's {node} needs the value of its operand {i} (a shape, an axis, a count), which is"
            " computed from values that are being traced: call the program without compiling it, or make it"
            " depend on constants only"
        )
    return xp.to_numpy(x)
