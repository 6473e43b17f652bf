"""Graphs as recorded steps: each node is run by its rule, on a backend that records, or as a word.

It extends `planning` by information for the reader: nodes are assigned to the calls of layers and functions that made
them (`scope`), steps have the line of the program, and an array that depends on a size (a range, zeros) is a step,
although its values are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tensorflow.python.framework.ops import gradient_registry

from tensorgraft.codegen.recorders.recording import Scope, ScopedRecorder
from tensorgraft.codegen.recorders.sized_values import SizedValue, is_sized, said_as
from tensorgraft.frontends.tensorflow.codegen import word_lowering
from tensorgraft.frontends.tensorflow.codegen.call_recorder import GraphWatch, TensorKey
from tensorgraft.frontends.tensorflow.function_graphs import operation_of
from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Value
from tensorgraft.frontends.tensorflow.planning import (
    HANDED_ON,
    SMALL,
    GraphPlan,
    Planner,
    host_values,
    is_small,
    resolved,
)
from tensorgraft.frontends.tensorflow.rule import EVERY, OperationRule
from tensorgraft.frontends.tensorflow.values import is_known
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.recorded.block import Var


class GraphRecorder(ScopedRecorder):
    """Records steps, words, and the values of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[tuple[TensorKey, Any]] = []
        self.drawn: list[Var] = []  # keys, one for each draw

    def draw(self) -> Var:
        key = Var((2,), dtypes.uint32)
        self.drawn.append(key)
        return key


def recorded_plan(graph: FunctionGraph, watch: GraphWatch) -> GraphPlan:
    """Return the plan of a graph whose steps record themselves. Raises UnsupportedOperationError."""
    return _Planner(watch).plan_graph(graph)


@dataclass(eq=False)
class _Plan(GraphPlan):
    keys: dict[int, list[TensorKey]] = field(default_factory=dict)  # {slot: tensors with its value}
    custom: set[str] = field(default_factory=set)  # places of functions whose derivative is the user's own

    def converted(self, xp: Any, value: Any) -> Any:
        if not isinstance(xp, GraphRecorder):
            return super().converted(xp, value)
        if value.dtype.kind in "OSU":
            return value
        is_row = value.size > 1 and value.ndim > dtypes.is_integer(value.dtype)  # rows of integers are shapes and axes
        if is_row and (value == value.flat[0]).all():  # zeros, which may have the size of something
            return SizedValue.of(value)
        return value if value.size <= SMALL else xp.asarray(value)

    def __call__(self, xp: Any, *operands: Any) -> list[Any]:
        if isinstance(xp, GraphRecorder):
            for slot, value in zip(self.parameters, operands, strict=True):
                self.note(xp, slot, value)
            for position in sorted(self.custom):
                xp.notes.append(f"{position}: the derivative of a tf.custom_gradient is that of what is written")
        return super().__call__(xp, *operands)

    def _converted(self, xp: Any) -> list[Any]:
        if isinstance(xp, GraphRecorder):
            return [self.converted(xp, x) for _, x in self.constants]
        return super()._converted(xp)

    def note(self, xp: GraphRecorder, slot: int, value: Any) -> None:
        value = value.var if isinstance(value, SizedValue) else value
        if type(value) is Var:
            xp.values.extend((key, value) for key in self.keys.get(slot, ()))


class _Planner(Planner):
    plan: _Plan
    handed_on = tuple(op for op in HANDED_ON if op != "StopGradient")

    def __init__(self, watch: GraphWatch) -> None:
        super().__init__(_Plan())
        self.watch = watch
        self.at: Scope = ()
        self._scopes: dict[int, dict[str, Scope]] = {}

    def body(self, graph: FunctionGraph) -> None:
        if not isinstance(graph.memory.get("plan"), _Plan):
            recorded_plan(graph, self.watch)

    def constant(self, value: Any) -> int:
        slot = super().constant(value)
        del self.values[slot]  # nothing is computed before it is recorded
        return slot

    def planned(self, graph: FunctionGraph, slots: dict[Value, int]) -> None:
        for (index, k), slot in slots.items():
            key = _key(graph.nodes[index], k)
            if key is not None:
                self.plan.keys.setdefault(slot, []).append(key)

    def scope(self, node: GraphNode) -> Scope:
        op = _operation(node)
        if op is None or op.graph not in self.watch.ranges:
            return ()
        if id(op.graph) not in self._scopes:
            self._scopes[id(op.graph)] = self.watch.scopes(op.graph)
        return self._scopes[id(op.graph)].get(op.name, ())

    def node(self, node: GraphNode, reads: list[int]) -> list[int]:
        if node.op == "IdentityN":
            self.plan.custom |= _has_own_derivative(node)
        outer_scope = self.at
        self.at = (*outer_scope, *self.scope(node))
        try:
            return super().node(node, reads)
        finally:
            self.at = outer_scope

    def rule(self, node: GraphNode) -> OperationRule | None:
        return super().rule(node) if node.op != "StopGradient" else None

    def resolved(self, node: GraphNode, row: Any, writes: Sequence[int]) -> Callable[..., Any]:
        return _RecordedNode(node, row, self.at, writes, self.plan)


def _operation(node: GraphNode) -> Any:
    args = getattr(node.place, "args", None)
    return operation_of(node) if args and hasattr(args[0], "graph") else None


def _has_own_derivative(node: GraphNode) -> set[str]:
    """Return the place of a function under `tf.custom_gradient`, where that is the user's."""
    op = _operation(node)
    kind = op.node_def.attr["_gradient_op_type"].s.decode() if op is not None else ""
    if not kind.startswith("CustomGradient"):
        return set()
    inner = inspect.getclosurevars(gradient_registry.lookup(kind)).nonlocals.get("grad_fn")
    if getattr(inner, "__module__", "").startswith(("tensorflow.", "keras.", "tf_keras.")):
        return set()
    return {node.place().rpartition("/")[2]}


def _key(node: GraphNode, k: int) -> TensorKey | None:
    op = _operation(node)
    return None if op is None else TensorKey(id(op.graph), op.name, k)


class _RecordedNode:
    """The function that records a node."""

    def __init__(self, node: GraphNode, row: Any, scope: Scope, writes: Sequence[int], plan: _Plan) -> None:
        self._node, self._scope, self._writes, self._plan = node, scope, writes, plan
        self._plain = resolved(node, row) if row is not None else None
        self._source_line = node.place().rpartition("/")[2]
        self._word = word_lowering.SAID.get(node.op)
        seeded = node.op.startswith(("StatelessRandom", "StatelessTruncated"))  # numbers, where seeds are known
        self._can_fold = row is not None and (row.folds or seeded) and is_small(node)
        count = len(node.inputs)
        self._known_operands = frozenset(range(count)[i] for rows in (row.known, row.either) if rows is not EVERY
                                for i in rows if -count <= i < count) if row is not None else frozenset()  # fmt: skip
        self._as_known = row is None or row.either is EVERY
        self._host = registry.get("numpy")

    def __call__(self, xp: Any, *operands: Any) -> Any:
        if not isinstance(xp, GraphRecorder):
            assert self._plain is not None
            return self._plain(xp, *operands)
        before = xp.at_place, xp.at_scope
        xp.at_place, xp.at_scope = self._source_line or before[0], self._scope or before[1]
        try:
            results = self._computed(xp, operands)
        except NotImplementedError as error:
            if self._source_line:
                error.add_note(f"{self._source_line}: here the program asks for it")
            raise
        finally:
            xp.at_place, xp.at_scope = before
        for slot, value in zip(self._writes, results if len(self._writes) != 1 else [results], strict=True):
            self._plan.note(xp, slot, value)
        return results

    def _computed(self, xp: GraphRecorder, operands: Sequence[Any]) -> Any:
        """Return the result, or the results in a sequence."""
        known = self._can_fold and operands and all(is_known(x) for x in operands)
        if not known or not all(x.size <= SMALL for x in operands):
            return self._steps(xp, operands)
        assert self._plain is not None
        with self._host.scope():
            values = host_values(self._plain(self._host, *[np.asarray(x) for x in operands]))
        is_list = isinstance(values, list)
        value_list = values if is_list else [values]
        if not any(_is_created(self._node, v, operands) for v in value_list):
            return values
        results = self._steps(xp, operands)
        results = list(results) if is_list else [results]
        sized = [
            SizedValue.of(v, r) if type(r) is Var and v.shape == r.shape else v
            for v, r in zip(value_list, results, strict=True)
        ]
        return sized if is_list else sized[0]

    def _steps(self, xp: GraphRecorder, operands: Sequence[Any]) -> Any:
        values = [
            np.asarray(x) if i in self._known_operands and is_known(x) else said_as(xp, x)
            for i, x in enumerate(operands)
        ]
        result = self._word(xp, self._node, *values) if self._word is not None else None
        if result is None:
            assert self._plain is not None
            result = self._plain(
                xp, *[x if i in self._known_operands else self._numbered(xp, x) for i, x in enumerate(values)]
            )
        return result

    def _numbered(self, xp: GraphRecorder, x: Any) -> Any:
        """Return a known number, which may be another one at another size (1 / n), as a step."""
        if self._as_known or not is_known(x) or not x.size or not dtypes.is_inexact(x.dtype):
            return x
        return x if (x != x.flat[0]).any() else xp.full(x.shape, x.flat[0].item(), x.dtype)


def _is_created(node: GraphNode, value: np.ndarray, operands: Sequence[Any]) -> bool:
    """Return True if a known result is an array of the program: this node, or one before it, creates it at a given
    size."""
    if value.ndim == 0 or value.size < 2 or value.dtype.kind in "OSU":
        return False
    return node.op in word_lowering.MAKERS or any(map(is_sized, operands))
