"""A function of TensorFlow, computed by the backend as far as there are rules, and by TensorFlow else."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.errors import FallbackError, TracedValueError
from tensorgraft.frontends.tensorflow.function_graphs import operation_of
from tensorgraft.frontends.tensorflow.function_override.host import Crossing
from tensorgraft.frontends.tensorflow.function_override.stages import (
    ASKED_OF_TENSORFLOW,
    BRANCHES,
    CHECKS,
    LOOPS,
    ProgramStage,
    calls_mixed,
    is_left,
    is_mixed,
    single_stage,
    stages,
)
from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Value
from tensorgraft.frontends.tensorflow.missing_rules import DATASETS, STRINGS, reason_of
from tensorgraft.frontends.tensorflow.operation import EagerOperation
from tensorgraft.frontends.tensorflow.planning import CALLS, UnsupportedOperationError, plan
from tensorgraft.frontends.tensorflow.program import CapturedGraph, GraphProgram
from tensorgraft.frontends.tensorflow.rule import REASONS, RULES
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import BY_TENSORFLOW
from tensorgraft.frontends.tensorflow.states import OWN_STATE
from tensorgraft.frontends.tensorflow.variable_cache import held_on, original_handle
from tensorgraft.hub.backend import Backend

_COMPILED = "_XlaMustCompile"
_FUNCTIONS = ("f", "branches", "then_branch", "else_branch", "cond", "body")  # attributes
_MOST_PROGRAMS = 16  # for a stage that needs values
_DRAWS = "its state is hidden in TensorFlow's kernel: draw with tf.random.Generator or tf.random.stateless_uniform"


class LeftToTensorFlow(Exception):
    """The whole function is TensorFlow's to compute: nothing has been written."""


class MixedRun:
    """The state shared by all functions of a process: the backend, the values of variables there, and a report of the
    parts that TensorFlow computes.

    Arguments:
        xp: the backend.
        left: called with (function or operation, reason) each time TensorFlow computes what the backend might.
        compiles: whether programs are compiled.
    """

    def __init__(self, xp: Backend, left: Callable[[str, str], None], compiles: bool) -> None:
        self.xp, self.left, self.compiles = xp, left, compiles
        self.held = held_on(xp)
        self.programs: Counter[str] = Counter()  # functions -> how many were made
        self.uncompiled: Counter[tuple[str, str]] = Counter()  # (function, why it is run step by step)


class MixedFunction:
    """Raises UnsupportedOperationError for a graph of which nothing can be computed apart."""

    def __init__(self, run: MixedRun, graph: FunctionGraph, compiled: bool, name: str) -> None:
        self.run, self.graph, self.compiled, self.name = run, graph, compiled, name
        self._operations: dict[int, EagerOperation] = {}
        self._constants: dict[int, Crossing] = {}
        self._reasons: dict[int, str] = {}
        self._inner: dict[int, list[MixedFunction]] = {}
        self.is_whole = not is_mixed(graph, compiled, is_compiled)
        if self.is_whole:
            plan(graph)
            parts = single_stage(graph)
        else:
            hosted = [is_left(graph, n, compiled) or calls_mixed(n, compiled, is_compiled) for n in graph.nodes]
            for index, node in enumerate(graph.nodes):  # now: what cannot be done is said before anything is computed
                if hosted[index] and not is_left(graph, node, compiled):
                    self._inner[index] = self._functions(node)
            parts = stages(graph, hosted)
        self.stages = [(part, BackendStage(run, part, name) if part.graph is not None else None) for part in parts]

    def __call__(self, operands: Sequence[Crossing]) -> list[Crossing]:
        values: dict[Value, Crossing] = {(index, 0): x for index, x in zip(self.graph.inputs, operands, strict=True)}
        for part, program in self.stages:
            if program is None:
                self._on_host(part.nodes, values)
                continue
            try:
                results = program([self._value(v, values) for v in part.arguments])
            except FallbackError:
                raise
            except Exception as error:
                # whatever it is, nothing was written yet: if it is the user's error, TensorFlow raises its own
                if self.is_whole:
                    raise LeftToTensorFlow(_first_line(error)) from error
                self.run.left(self.name, _first_line(error))
                self._on_host(part.nodes, values)
            else:
                values.update(zip(part.results, results, strict=True))
        return [self._value(self.graph.source(v), values) for v in self.graph.outputs]

    def _value(self, value: Value, values: dict[Value, Crossing]) -> Crossing:
        known = values.get(value)
        if known is None:  # a constant, a shape
            index, k = value
            node = self.graph.nodes[index]
            if node.op == "Const":
                if index not in self._constants:
                    self._constants[index] = Crossing(tf.constant(node.attributes["value"]))
                return self._constants[index]
            self._on_host([index], values)
            known = values[index, k]
        return known

    def _on_host(self, indices: Sequence[int], values: dict[Value, Crossing]) -> None:
        graph, xp = self.graph, self.run.xp
        for index in indices:
            node = graph.nodes[index]
            operands = [self._value(graph.source(v), values) for v in node.inputs]
            results = self._controlled(index, node, operands)
            if results is None:
                if index not in self._operations:
                    self._operations[index] = EagerOperation(operation_of(node))
                tensors = self._operations[index]([x.tensor(xp) for x in operands])
                results = [Crossing(t) for t in tensors]
                self._count(index, node)
            values.update(((index, k), x) for k, x in enumerate(results))

    def _count(self, index: int, node: GraphNode) -> None:
        if index not in self._reasons:
            self._reasons[index] = self._reason(node)
        if reason := self._reasons[index]:
            self.run.left(node.op, reason)

    def _reason(self, node: GraphNode) -> str:
        """Return the reason why TensorFlow computes a node; "" for a node that is always TensorFlow's."""
        if not is_left(self.graph, node, self.compiled) or node.op in (*CHECKS, *ASKED_OF_TENSORFLOW):
            return ""
        if "Optional" in node.op:
            return ""
        known = BY_TENSORFLOW.get(node.op) or REASONS.get(node.op)
        reason = _DRAWS if node.op in OWN_STATE else known or reason_of(node.op)
        if reason is None:
            reason = STRINGS if node.op in RULES else "it has no rule"
        return "" if reason == DATASETS else reason  # TensorFlow runs data sets in any case

    # ---- calls, branches and loops of which TensorFlow computes some -----------------------------------------------

    def _controlled(self, index: int, node: GraphNode, operands: list[Crossing]) -> list[Crossing] | None:
        inner = self._inner.get(index)
        if inner is None:
            return None
        if node.op in CALLS:
            return inner[0](operands)
        if node.op in BRANCHES:
            number = operands[0].tensor(self.run.xp).numpy()
            branch = int(number) if "branches" in node.attributes else int(not _as_bool(number))
            return inner[branch if 0 <= branch < len(inner) else -1](operands[1:])
        goes_on, body = inner
        while _as_bool(goes_on(operands)[0].tensor(self.run.xp).numpy()):
            operands = body(operands)
        return operands

    def _functions(self, node: GraphNode) -> list[MixedFunction]:
        """Return the functions that a call, a branch or a loop has, in the order in which they are asked for."""
        compiled = self.compiled or is_compiled(node)
        names = [name for name in _FUNCTIONS if name in node.attributes]
        if node.op not in (*CALLS, *BRANCHES, *LOOPS):
            raise UnsupportedOperationError(f"{node} calls functions that TensorFlow computes in part")
        attributes = [node.attributes[name] for name in names]
        graphs = [g for x in attributes for g in (x if isinstance(x, tuple) else (x,))]
        return [_InnerFunction(self.run, g, compiled, self.name) for g in graphs]


class _InnerFunction(MixedFunction):
    """A function inside of another: if it fails as a whole, it is run node by node."""

    def __call__(self, operands: Sequence[Crossing]) -> list[Crossing]:
        try:
            return super().__call__(operands)
        except LeftToTensorFlow as error:
            self.run.left(self.name, str(error))
        graph = self.graph
        values: dict[Value, Crossing] = {(p, 0): x for p, x in zip(graph.inputs, operands, strict=True)}
        inputs = {*graph.inputs}
        indices = [p for p, n in enumerate(graph.nodes) if p not in inputs and n.op not in ("Const", "NoOp")]
        self._on_host(indices, values)
        return [self._value(graph.source(v), values) for v in graph.outputs]


class BackendStage:
    """A stage of the backend, as a program for each kind of operands."""

    def __init__(self, run: MixedRun, stage: ProgramStage, name: str) -> None:
        assert stage.graph is not None
        self.run, self.stage, self.graph, self.name = run, stage, stage.graph, name
        self._programs: dict[Any, StageProgram] = {}
        self._needs_values = False  # for values: small integers among the operands are constants of its programs
        self._compiles = run.compiles
        self._group = run.held.group([])

    def __call__(self, operands: Sequence[Crossing]) -> list[Crossing]:
        """Variables are written once everything has been computed. Raises whatever planning and computing raise."""
        run, xp, n = self.run, self.run.xp, self.stage.arrays
        handles = [original_handle(x.tensor(xp)) for x in operands[n:]]
        first: dict[int, int] = {}
        pattern = tuple(first.setdefault(id(h), len(first)) for h in handles)
        distinct = list({id(h): h for h in handles}.values())
        with xp.native_scope():
            group = self._group
            if len(group.handles) != len(distinct) or any(map(operator.is_not, group.handles, distinct)):
                group = self._group = run.held.group(distinct)
            outputs, writes = self._computed(pattern, group.signature, group.read(), operands[:n])
            count = len(outputs) - len(writes)
            group.write(writes, outputs[count:])
        return [Crossing(array=x) for x in outputs[:count]]

    def _computed(
        self, pattern: tuple[int, ...], select: Any, values: list[Any], operands: Sequence[Crossing]
    ) -> tuple[Sequence[Any], tuple[int, ...]]:
        """Return (results and new values of variables, positions of the written variables)."""
        xp = self.run.xp
        arrays = [x.array(xp) for x in operands]
        known = self._known(operands) if self._needs_values else {}
        free = [x for i, x in enumerate(arrays) if i not in known] if known else arrays
        arguments = [*values, *free]
        key = (pattern, self._compiles, select, *((x.shape, x.dtype) for x in (arguments if select is None else free)))
        if known:
            key = *key, *((i, x.shape, x.tobytes()) for i, x in known.items())
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = StageProgram(self.graph, pattern, known, self._compiles)
            self.run.programs[self.name] += 1
            if self._needs_values and len(self._programs) > _MOST_PROGRAMS:
                self._needs_values = self._compiles = False  # values that change with every call are no constants
                self._programs.clear()
        try:
            return program.function.primal(xp, arguments), program.function.writes
        except TracedValueError as error:
            if not program.function.is_compiled:
                raise
            if self._needs_values or not self._known(operands):
                self._needs_values = self._compiles = False
                self.run.uncompiled[self.name, _first_line(error)] += 1
            else:
                self._needs_values = True
            return self._computed(pattern, select, values, operands)

    def _known(self, operands: Sequence[Crossing]) -> dict[int, np.ndarray]:
        """Operands that may be shapes, axes and counts."""
        return {i: x for i, c in enumerate(operands) if (x := c.small(self.run.xp)) is not None}


class StageProgram:
    """The program of a stage, for variables of which some are the same (`pattern`) and values that are `known`."""

    def __init__(
        self, graph: FunctionGraph, pattern: tuple[int, ...], known: dict[int, np.ndarray], compiled: bool
    ) -> None:
        names = [f"variable {i}" for i in range(len(set(pattern)))]
        n = len(graph.inputs) - len(pattern)
        free = [i for i in range(n) if i not in known]
        order = [*free, *known, *range(n, len(graph.inputs))]
        ordered = FunctionGraph(graph.name, graph.nodes, [graph.inputs[i] for i in order], graph.outputs)
        captured = CapturedGraph(ordered, (*known.values(), *(names[i] for i in pattern)))
        self.function = GraphProgram(captured, names, compiled)


def is_compiled(node: GraphNode) -> bool:
    """Return True for a call of a function that TensorFlow compiles with XLA."""
    if node.op not in CALLS:
        return False
    operation = operation_of(node)
    return _COMPILED in operation.node_def.attr and operation.node_def.attr[_COMPILED].b


def _as_bool(x: Any) -> bool:
    return bool(x) if x.ndim == 0 else x.size > 0


def _first_line(error: BaseException) -> str:
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", ())[:1])
    return f"{type(error).__name__}{where}: {str(error).strip().partition(chr(10))[0]}"
