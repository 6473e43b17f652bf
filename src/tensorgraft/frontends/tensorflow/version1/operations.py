"""The translation of single operations of a TensorFlow 1 graph into a function of TensorFlow 2.

Variables by reference become `tf.Variable`s: an operation that writes one becomes that on resources (`ScatterAdd`:
`ResourceScatterAdd`), and one that takes its value reads the variable at that point. A TensorArray becomes a tensor
list, which takes the place of the array's flow value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from tensorgraft.frontends.tensorflow.planning import UnsupportedOperationError
from tensorgraft.frontends.tensorflow.version1.structure import Tensor, parse_name


class Holder(Protocol):
    """The holder of a graph's state: a session, usually."""

    graph: tf.Graph

    def variable(self, node: Any) -> tf.Variable: ...

    def table(self, node: Any) -> tf.Tensor: ...


@dataclass(frozen=True)
class Reference:
    """A variable by reference."""

    variable: tf.Variable


@dataclass(frozen=True)
class ArrayHandle:
    """A `TensorArrayV3`: its list is in the flow."""

    dtype: tf.DType
    shape: tf.TensorShape  # the shape of an element

    @property
    def element(self) -> tf.Tensor:
        extents = None if self.shape.rank is None else [-1 if n is None else n for n in self.shape.as_list()]
        return tf.constant(-1 if extents is None else extents, tf.int32)


def value_of(x: Any) -> tf.Tensor:
    """Return the tensor for an operation that takes a value. Raises UnsupportedOperationError for a TensorArray."""
    if isinstance(x, Reference):
        return x.variable.read_value()
    if isinstance(x, ArrayHandle):
        raise UnsupportedOperationError(
            "a TensorArray of a TensorFlow 1 graph is used as a value, which is not supported"
        )
    return x


class SessionOperations:
    """The nodes of a graph, the functions that they call, and how each node is traced."""

    def __init__(self, nodes: Sequence[Any], library: Mapping[str, Any], holder: Holder) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.places = {node.name: i for i, node in enumerate(nodes)}
        self.holder, self._library = holder, library
        self._functions: dict[str, tuple[SessionOperations, list[Tensor], list[Tensor], list[str]]] = {}

    def has_function(self, name: str) -> bool:
        return name in self._library

    def function(self, name: str) -> tuple[SessionOperations, list[Tensor], list[Tensor], list[str]]:
        """Return a function of the library: (its nodes, its arguments, its results, nodes that have to run)."""
        if name not in self._functions:
            definition = self._library[name]
            with self.holder.graph.as_default():  # the graph has the functions that it calls
                graph, flat = function_def_to_graph_def(definition)
            signature = definition.signature
            self._functions[name] = (
                SessionOperations(graph.node, self._library, self.holder),
                [Tensor(a.name) for a in signature.input_arg],
                [parse_name(flat[definition.ret[a.name]]) for a in signature.output_arg],
                list(definition.control_ret.values()),
            )
        return self._functions[name]

    def run(self, node: Any, operands: list[Any]) -> Sequence[Any]:
        """Return the results. Raises ValueError for a placeholder that is not fed, UnsupportedOperationError for
        unsupported calls of functions or writes by reference."""
        special = _SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, operands)
        if node.op in _ARRAYS:
            return _ARRAYS[node.op](node, *operands)
        definition = _definition(node.op)
        if definition is not None and any(a.is_ref for a in definition.input_arg):
            return _by_reference(node, operands)
        if any(a.WhichOneof("value") == "func" or a.list.func for a in node.attr.values()):
            raise UnsupportedOperationError(
                f"{node.op} {node.name!r} of a TensorFlow graph calls a function, which is not supported"
            )
        graph: Any = tf.compat.v1.get_default_graph()
        attributes = {k: a for k, a in node.attr.items() if k == _GRADIENT or not k.startswith("_")}
        op = graph.create_op(node.op, [value_of(x) for x in operands], name=node.name, attrs=attributes)
        return op.outputs


_registered = tf.Graph()


@functools.cache
def _definition(op: str) -> Any:
    """Return the definition of an operation that TensorFlow knows; None where that is a function, or nothing."""
    try:
        return _registered.op_def_for_type(op)
    except tf.errors.NotFoundError:
        return None


_GRADIENT = "_gradient_op_type"  # a custom one, without which there is to be none


# ---- variables -------------------------------------------------------------------------------------------------------


def _variable(self: SessionOperations, node: Any, operands: list[Any]) -> list[Any]:
    variable = self.holder.variable(node)
    graph: Any = tf.compat.v1.get_default_graph()
    graph.watch_variable(variable)  # or it would be known by its handle alone
    return [variable.handle if node.op == "VarHandleOp" else Reference(variable)]


def _table(self: SessionOperations, node: Any, operands: list[Any]) -> list[Any]:
    return [self.holder.table(node)]


def _identity(self: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    (x,) = operands
    if node.op == "RefIdentity" or isinstance(x, ArrayHandle) or not isinstance(x, Reference | tf.Tensor):
        return [x]
    # a flow says that it is a number
    return [tf.identity(value_of(x))]


def _placeholder(self: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    raise ValueError(
        f"the placeholder {node.name!r} ({tf.as_dtype(node.attr['dtype'].type).name}) of the graph is needed, but"
        " it is not an input of the signature: choose feeds and fetches with .function(feeds, fetches)"
    )


_RESOURCES = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}


def on_resources(op: str) -> str:
    """Return the name of the operation on resources that one by reference becomes."""
    return _RESOURCES.get(op, f"{op}V2" if "Table" in op else f"Resource{op}")


def _by_reference(node: Any, operands: list[Any]) -> list[Any]:
    """Call the operation on resources of this name; its result by reference is the variable."""
    old: Any = _definition(node.op)
    name = on_resources(node.op)
    new = _definition(name)
    if new is None:
        raise UnsupportedOperationError(
            f"{node.op} {node.name!r} of a TensorFlow 1 graph writes by reference, and no operation on resources"
            " does the same: leave this part to TensorFlow"
        )
    graph: Any = tf.compat.v1.get_default_graph()
    inputs = [x.variable.handle if a.is_ref and isinstance(x, Reference) else value_of(x)
              for a, x in zip(old.input_arg, operands, strict=True)]  # fmt: skip
    attribute_names = {a.name for a in new.attr}
    attributes = {k: a for k, a in node.attr.items() if k in attribute_names}
    if "dtype" in attribute_names and "dtype" not in attributes:
        attributes["dtype"] = node.attr["T"]
    op = graph.create_op(name, inputs, name=node.name, attrs=attributes)
    if not any(a.is_ref for a in old.output_arg):
        return list(op.outputs)
    return [x for x in operands if isinstance(x, Reference)][:1]


_SPECIAL: dict[str, Callable[[SessionOperations, Any, list[Any]], Sequence[Any]]] = {
    **dict.fromkeys(["Variable", "VariableV2", "VarHandleOp"], _variable),
    **dict.fromkeys(["HashTable", "HashTableV2"], _table),
    **dict.fromkeys(["Identity", "RefIdentity"], _identity),
    **dict.fromkeys(["Placeholder", "PlaceholderV2"], _placeholder),
}


# ---- arrays of tensors -----------------------------------------------------------------------------------------------

_raw = tf.raw_ops


def _array(node: Any, size: Any) -> list[Any]:
    handle = ArrayHandle(tf.as_dtype(node.attr["dtype"].type), tf.TensorShape(node.attr["element_shape"].shape))
    return [handle, _raw.TensorListReserve(
        element_shape=handle.element, num_elements=value_of(size), element_dtype=handle.dtype
    )]  # fmt: skip


def _write(node: Any, array: ArrayHandle, index: Any, x: Any, flow: Any) -> list[Any]:
    return [_raw.TensorListSetItem(input_handle=flow, index=value_of(index), item=value_of(x))]


def _read(node: Any, array: ArrayHandle, index: Any, flow: Any) -> list[Any]:
    return [_raw.TensorListGetItem(
        input_handle=flow, index=value_of(index), element_shape=array.element, element_dtype=array.dtype
    )]  # fmt: skip


def _gather(node: Any, array: ArrayHandle, indices: Any, flow: Any) -> list[Any]:
    return [_raw.TensorListGather(
        input_handle=flow, indices=value_of(indices), element_shape=array.element, element_dtype=array.dtype
    )]  # fmt: skip


def _scatter(node: Any, array: ArrayHandle, indices: Any, x: Any, flow: Any) -> list[Any]:
    return [_raw.TensorListScatterIntoExistingList(
        input_handle=flow, tensor=value_of(x), indices=value_of(indices)
    )]  # fmt: skip


def _concat(node: Any, array: ArrayHandle, flow: Any) -> Sequence[Any]:
    return list(_raw.TensorListConcatV2(
        input_handle=flow, element_shape=array.element, leading_dims=tf.constant([], tf.int64),
        element_dtype=array.dtype,
    ))  # fmt: skip


def _split(node: Any, array: ArrayHandle, x: Any, lengths: Any, flow: Any) -> list[Any]:
    return [_raw.TensorListSplit(tensor=value_of(x), element_shape=array.element, lengths=value_of(lengths))]


_ARRAYS: dict[str, Callable[..., Sequence[Any]]] = {
    "TensorArrayV3": _array,
    "TensorArrayWriteV3": _write,
    "TensorArrayReadV3": _read,
    "TensorArrayGatherV3": _gather,
    "TensorArrayScatterV3": _scatter,
    "TensorArrayConcatV3": _concat,
    "TensorArraySplitV3": _split,
    "TensorArraySizeV3": lambda node, array, flow: [_raw.TensorListLength(input_handle=flow)],
    "TensorArrayCloseV3": lambda node, array: [],
}


# operations that are translated, in addition to those that `on_resources` renames
RAISED = frozenset([*_SPECIAL, *_ARRAYS])
