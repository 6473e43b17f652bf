"""Functions traced into graphs, and graphs as functions: what of TensorFlow is not public is used here alone.

`tf.function` makes constants of small arrays that a function takes from outside. Here they are inputs, whatever their
size: another array can be given in their place.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorflow.python.eager import context, execute, record
from tensorflow.python.eager.polymorphic_function import attributes, concrete_function
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.ops import gradients_util

from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.hub.array import NativeArray as Array

_numbers = itertools.count()


class ClosedGraph(tf.__internal__.FuncGraph):
    """A graph that takes each array from outside as an input."""

    def __init__(self) -> None:
        super().__init__(f"tensorgraft_{next(_numbers)}")
        self.calls_host = False  # True for a graph with an operation that has side effects

    def capture(self, tensor: Array, name: str | None = None, shape: Any = None) -> Array:
        if isinstance(tensor, EagerTensor):
            name = name or f"captured_{len(self.inputs)}"
            return self._function_captures._create_placeholder_helper(self, tensor, name)
        return super().capture(tensor, name, shape)

    def argument(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        with self.as_default():
            placeholder = raw.Placeholder(dtype=dtype, shape=shape)
        self.inputs.append(placeholder)
        return placeholder


def may_be_recorded() -> bool:
    """Return True if a `tf.GradientTape` is active."""
    return record.could_possibly_record()


def order_of(arrays: Sequence[Array]) -> int:
    """Return the number of times that results computed from these may be differentiated: 0 if no `tf.GradientTape` or
    `ForwardAccumulator` watches one of them, 1, or 2 for more."""
    return gradients_util.PossibleTapeGradientTypes(arrays)


unrecorded = record.stop_recording  # a context that hides operations from tapes


def _root(graph: Any) -> ClosedGraph | None:
    while graph is not None and not isinstance(graph, ClosedGraph):
        graph = getattr(graph, "outer_graph", None)
    return graph


def mark_effect() -> None:
    """Note that the graph being traced has an operation with side effects, which has to run although its results are
    not used."""
    root = _root(tf.compat.v1.get_default_graph())
    if root is not None:
        root.calls_host = True


def lift_captures() -> None:
    """Lift captures at the beginning of a branch or a loop body: arrays from outside go through the graph that is being
    traced, as in its own operations. (The graphs of `tf.cond` and `tf.while_loop` would make constants of small
    ones.)"""
    inner = tf.compat.v1.get_default_graph()
    root = _root(inner)
    if root is None or root is inner or getattr(inner, "tensorgraft_lifts", False):
        return
    plain, outer = inner.capture, inner.outer_graph

    def capture(tensor: Array, name: str | None = None, shape: Any = None) -> Array:
        if isinstance(tensor, EagerTensor):
            tensor = outer.capture(tensor)
        return plain(tensor, name, shape)

    inner.capture = capture
    inner.tensorgraft_lifts = True


@contextlib.contextmanager
def constants_inside() -> Iterator[None]:
    """Context in which arrays from outside become constants of the graph of a `tf.function`, not captures, whatever
    their size: SavedModel cannot save captures of gradient functions."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or isinstance(_root(graph), ClosedGraph):
        yield
        return
    plain = graph.capture
    known: dict[int, tuple[Array, Array]] = {}

    def capture(tensor: Array, name: str | None = None, shape: Any = None) -> Array:
        if not isinstance(tensor, EagerTensor) or tensor.dtype in (tf.resource, tf.variant):
            return plain(tensor, name, shape)
        if id(tensor) not in known:
            with graph.as_default():
                known[id(tensor)] = tensor, tf.constant(tensor.numpy())
        return known[id(tensor)][1]

    graph.capture = capture
    try:
        yield
    finally:
        graph.capture = plain


def trace(
    fn: Callable[..., Sequence[Array]], arguments: Callable[[ClosedGraph], list[Array]]
) -> tuple[ClosedGraph, list[Array]]:
    """Return the graph of `fn`, whose inputs are its arguments, then the arrays that it took from outside, which are
    also returned."""
    graph = ClosedGraph()
    inputs = arguments(graph)
    with graph.as_default():
        order = AutomaticControlDependencies()
        order.__enter__()  # bodies of loops, too, keep what calls the host
        outputs = [graph.capture(tf.convert_to_tensor(x)) for x in fn(*inputs)]
        # one tensor may be several results, or an argument
        graph.outputs = [tf.identity(x) for x in outputs]
        if graph.calls_host:
            order.__exit__(None, None, None)
            graph.control_outputs.extend(order.ops_which_must_run)
    captured = list(graph.external_captures)
    graph.function_captures.clear()
    return graph, captured


# Operations that XLA can compile for the CPU, but not well enough.
_NOT_BY_XLA = {
    "Svd": "a one-sided Jacobi method that stops at 1e-6",
    "SelfAdjointEigV2": "a Jacobi method that stops at 1e-6",
}
# TensorFlow's words for an operation, a dtype or a request for which XLA has no kernel.
REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.InternalError)


def operations(graph: ClosedGraph) -> list[str]:
    """Return the types of the operations of a graph, those of branches and bodies included."""
    kinds = [op.type for op in graph.get_operations()]
    for function in graph._functions.values():
        kinds += [node.op for node in function.cached_definition.node_def]
    return kinds


class CompiledGraph:
    """A graph as a function of flat arrays: compiled by XLA, or run by TensorFlow where XLA cannot."""

    def __init__(self, graph: ClosedGraph) -> None:
        self._graph = graph
        self._count = len(graph.outputs)
        self._proven: set[int] = set()  # orders of derivatives: each is a program of its own, which XLA may refuse
        self._function: Any = None
        self._make(by_xla=not any(op in _NOT_BY_XLA for op in operations(graph)))

    def _make(self, by_xla: bool) -> None:
        del self._graph.outputs[self._count :]  # what an earlier derivative has kept
        self.by_xla = by_xla
        attrs = {attributes.XLA_COMPILE: True} if by_xla else {}
        self._function = concrete_function.ConcreteFunction.from_func_graph(self._graph, None, attrs)
        inner = self._function.inference_fn
        self._name = inner.name.decode()
        options = context.context().function_call_options
        self._attrs = tuple(itertools.chain(*options.as_attrs().items()))

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        if not self._count:
            return ()
        order = order_of(arrays)
        if not self.by_xla or order in self._proven:
            return self._run(arrays, order)
        try:
            outputs = self._run(arrays, order)
        except REFUSALS:
            self._make(by_xla=False)
            return self._run(arrays, order)
        self._proven.add(order)
        return outputs

    def _run(self, arrays: Sequence[Array], order: int) -> tuple[Array, ...]:
        arrays = list(arrays)
        if order:
            outputs = self._function._call_flat(arrays, [])  # and what the derivative keeps
            return tuple(outputs)[: self._count] if isinstance(outputs, list | tuple) else (outputs,)
        # a third of the time of calling the ConcreteFunction
        return tuple(execute.execute(self._name, self._count, arrays, self._attrs, context.context()))


def inlined(graph: ClosedGraph, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the results of a graph, as a part of the one that is being traced."""
    outputs = concrete_function.ConcreteFunction.from_func_graph(graph, None, {})._call_flat(list(arrays), [])
    return outputs[: len(graph.outputs)] if isinstance(outputs, list | tuple) else [outputs]


def call_by_name(function: Any, count: int, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the `count` results of a concrete function of flat arrays."""
    attrs = tuple(itertools.chain(*context.context().function_call_options.as_attrs().items()))
    inputs = [*arrays, *function.captured_inputs]
    return execute.execute(function.inference_fn.name.decode(), count, inputs, attrs, context.context())
