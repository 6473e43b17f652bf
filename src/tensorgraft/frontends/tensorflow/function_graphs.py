"""TensorFlow's own functions as `FunctionGraph`s."""

from __future__ import annotations

import functools
import heapq
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from tensorgraft.frontends.tensorflow.graph import FunctionGraph, GraphNode, Shape, Value

_NO_ARRAYS = (tf.resource, tf.variant)
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "tensorgraft")
_KEPT = "_tensorgraft_graph"  # a graph's own FunctionGraph


def read(graph: tf.Graph, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], name: str) -> FunctionGraph:
    """Read a graph as a function of `inputs`. Raises ValueError for control flow of TensorFlow 1, which has cycles."""
    effects = list(getattr(graph, "control_outputs", ()))
    needed_ops = _needed_operations([t.op for t in (*outputs, *inputs)] + effects)
    order = _ordered([op for op in graph.get_operations() if op in needed_ops])
    at = {op: i for i, op in enumerate(order)}
    nodes = [_node(op, at, graph) for op in order]

    def value(t: tf.Tensor) -> Value:
        return at[t.op], t.value_index

    return FunctionGraph(name, nodes, [at[t.op] for t in inputs], [value(t) for t in outputs])


def read_function(graph: Any, inputs: int | None = None, outputs: int | None = None) -> FunctionGraph:
    """Read a `FuncGraph`, once, with its first inputs and outputs: TensorFlow adds some at the end when it
    differentiates a function."""
    cached = getattr(graph, _KEPT, None)
    if cached is None:
        cached = {}
        setattr(graph, _KEPT, cached)
    arguments, results = graph.inputs[:inputs], graph.outputs[:outputs]
    key = len(arguments), len(results)
    if key not in cached:
        cached[key] = read(graph, results, arguments, graph.name)
    return cached[key]


def _needed_operations(ends: Sequence[tf.Operation]) -> set[tf.Operation]:
    visited, stack = set(ends), list(ends)
    while stack:
        op = stack.pop()
        for before in (*(t.op for t in op.inputs), *op.control_inputs):
            if before not in visited:
                visited.add(before)
                stack.append(before)
    return visited


def _ordered(ops: list[tf.Operation]) -> list[tf.Operation]:
    """Return operations in the order in which they were made, as far as their inputs allow."""
    at = {op: i for i, op in enumerate(ops)}
    before = [{at[o] for o in (*(t.op for t in op.inputs), *op.control_inputs)} for op in ops]
    consumers: list[list[int]] = [[] for _ in ops]
    for i, input_indices in enumerate(before):
        for j in input_indices:
            consumers[j].append(i)
    missing = list(map(len, before))
    ready = [i for i, n in enumerate(missing) if not n]
    out = []
    while ready:
        i = heapq.heappop(ready)
        out.append(ops[i])
        for j in consumers[i]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, j)
    if len(out) < len(ops):
        odd = next(op for op, n in zip(ops, missing, strict=True) if n)
        raise ValueError(
            f"the graph has a cycle through {odd.type} {odd.name!r}: a loop of TensorFlow 1 inside a function."
            " Save the graph as a SavedModel or a frozen graph, which tg.graft reads, or trace the program with"
            " tf.function"
        )
    return out


def _node(op: tf.Operation, at: dict[tf.Operation, int], graph: tf.Graph) -> GraphNode:
    kind = op.type
    attributes = {name: _attribute(a, graph) for name, a in op.node_def.attr.items() if not name.startswith("_")}
    if _function(kind, graph) is not None:  # `tf.Defun` makes an operation of a function
        kind, attributes = "StatefulPartitionedCall", {"f": _called_function(kind, graph)}
    return GraphNode(
        op.name,
        kind,
        tuple((at[t.op], t.value_index) for t in op.inputs),
        tuple(at[o] for o in op.control_inputs),
        attributes,
        tuple(_shape(t.shape) for t in op.outputs),
        tuple(_dtype(t.dtype) for t in op.outputs),
        functools.partial(_source_line, op),
        bool(op.op_def.is_stateful),
    )


def operation_of(node: GraphNode) -> tf.Operation:
    """Return the operation that a node was read from."""
    return node.place.args[0]  # type: ignore[attr-defined]


def _source_line(op: tf.Operation) -> str:
    """Return the line of the user's that made an operation: the last one outside of libraries."""
    library_paths = tuple(
        os.path.dirname(str(sys.modules[name].__file__)) + os.sep for name in _LIBRARIES if name in sys.modules
    )
    frames = [frame for frame in op.traceback or () if not frame.filename.startswith(library_paths)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _dtype(dtype: tf.DType) -> np.dtype | None:
    return None if dtype.base_dtype in _NO_ARRAYS else plain(np.dtype(dtype.as_numpy_dtype))


def plain(dtype: np.dtype) -> np.dtype:
    """TensorFlow's quantised integers (structures of one field) are integers."""
    return dtype if dtype.names is None else dtype[0]


def _shape(shape: tf.TensorShape) -> Shape:
    return None if shape.rank is None else tuple(shape.as_list())


def _attribute(a: Any, graph: tf.Graph) -> Any:
    kind = a.WhichOneof("value")
    return None if kind is None else _KINDS[kind](getattr(a, kind), graph)


def _constant(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.names is None else np.ascontiguousarray(x).view(plain(x.dtype)).reshape(x.shape)


def _text(s: bytes) -> str | bytes:
    try:
        return s.decode()
    except UnicodeDecodeError:
        return s


def _listed(a: Any, graph: tf.Graph) -> tuple[Any, ...]:
    for kind in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
        values = getattr(a, kind)
        if len(values):
            return tuple(_KINDS[kind](v, graph) for v in values)
    return ()


def _called_function(name: str, graph: Any) -> FunctionGraph:
    entry = _function(_of_the_cpu(name, graph), graph)
    if entry is None:
        return read_function(_from_context(name))
    function, outer_graph = entry
    if getattr(function, "graph", None) is None:  # a function of `tf.Defun`, or from a file, has a definition only
        if not hasattr(function, _KEPT):
            with outer_graph.as_default():  # the outer graph has the functions that it calls
                setattr(function, _KEPT, function_def_to_graph(function.cached_definition))
        return read_function(getattr(function, _KEPT))
    signature = function.definition.signature
    return read_function(function.graph, len(signature.input_arg), len(signature.output_arg))


def _function(name: str, graph: Any) -> tuple[Any, Any] | None:
    """Return the function of that name, and the graph that has it, of those around."""
    while graph is not None:
        function = getattr(graph, "_functions", {}).get(name)
        if function is not None:
            return function, graph
        graph = getattr(graph, "outer_graph", None)
    return None


# attributes that mark a function as a forward or backward pass
_PASSES = ("backward_function_name", "forward_function_name")


def _of_the_cpu(name: str, graph: Any) -> str:
    """Return the function that TensorFlow runs on a CPU where `name` is called: of several that say that they do the
    same (`api_implements`), the one that prefers this device, as Grappler's implementation selector has it."""
    entry = _function(name, graph)
    interface = None if entry is None else _interface(entry[0])
    if interface is None or interface[0] == "CPU":
        return name
    while graph is not None:
        for other, function in getattr(graph, "_functions", {}).items():
            if (offered := _interface(function)) is not None and offered == ("CPU", *interface[1:]):
                return other
        graph = getattr(graph, "outer_graph", None)
    return name


def _interface(function: Any) -> tuple[Any, ...] | None:
    """Return (the device that a function prefers, the interface that it implements, the pass that it is, its dtypes),
    or None."""
    definition = getattr(function, "cached_definition", None) or function.definition
    if "api_implements" not in definition.attr:
        return None
    signature, attributes = definition.signature, definition.attr
    return (
        attributes["api_preferred_device"].s.decode(),
        attributes["api_implements"].s,
        tuple(p in attributes for p in _PASSES),
        tuple(a.type for a in signature.input_arg),
        tuple(a.type for a in signature.output_arg),
    )


@functools.lru_cache(maxsize=1024)
def _from_context(name: str) -> Any:
    from tensorflow.python.eager import context

    return function_def_to_graph(context.context().get_function_def(name))


_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "s": lambda v, _: _text(v),
    "i": lambda v, _: int(v),
    "f": lambda v, _: float(v),
    "b": lambda v, _: bool(v),
    "type": lambda v, _: _dtype(tf.as_dtype(v)),
    "shape": lambda v, _: _shape(tf.TensorShape(v)),
    "tensor": lambda v, _: _constant(tf.make_ndarray(v)),
    "func": lambda v, graph: _called_function(v.name, graph),
    "list": _listed,
    "placeholder": lambda v, _: v,
}
