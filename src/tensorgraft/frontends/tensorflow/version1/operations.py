"""What single operations of a TensorFlow 1 graph become in a function of TensorFlow 2.

Variables by reference are `tf.Variable`s: an operation that writes one is that on resources of the same name
(`ScatterAdd`: `ResourceScatterAdd`), and one that takes its value reads it then. Arrays of tensors are tensor lists:
the list goes where the array's flow goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.framework import op_def_registry, ops

from tensorgraft.frontends.tensorflow.planning import UnsupportedOperationError


class Holder(Protocol):
    """What has the state of a graph: a session, usually."""

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
    shape: tf.TensorShape  # of an element

    @property
    def element(self) -> tf.Tensor:
        extents = None if self.shape.rank is None else [-1 if n is None else n for n in self.shape.as_list()]
        return tf.constant(-1 if extents is None else extents, tf.int32)


def value_of(x: Any) -> tf.Tensor:
    """What an operation sees that takes a value."""
    if isinstance(x, Reference):
        return x.variable.read_value()
    if isinstance(x, ArrayHandle):
        raise UnsupportedOperationError("a TensorArray of a TensorFlow 1 graph is used as a value")
    return x


class SessionOperations:
    """The nodes of a graph, and how each of them is traced."""

    def __init__(self, nodes: Sequence[Any], functions: Mapping[str, Any], holder: Holder) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.places = {node.name: i for i, node in enumerate(nodes)}
        self.functions, self.holder = functions, holder

    def run(self, node: Any, operands: list[Any]) -> Sequence[Any]:
        """The results. Raises ValueError for a placeholder, which was not fed."""
        special = _SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, operands)
        if node.op in _ARRAYS:
            return _ARRAYS[node.op](node, *operands)
        definition = op_def_registry.get(node.op)
        if definition is not None and any(a.is_ref for a in definition.input_arg):
            return _by_reference(node, operands)
        return self._same(node, [value_of(x) for x in operands])

    def _same(self, node: Any, operands: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        called = node.attr["f"].func.name if node.op in _CALLS else node.op
        if called in self.functions:
            function = self.functions[called]
            return _listed(function._call_flat(operands, function.captured_inputs))
        graph: Any = ops.get_default_graph()
        attributes = {k: self._renamed(a) for k, a in node.attr.items() if not k.startswith("_")}
        op = graph._create_op_internal(node.op, operands, name=node.name, attrs=attributes)
        return op.outputs

    def _renamed(self, attribute: Any) -> Any:
        """With the names that functions of the graph have here."""
        kind = attribute.WhichOneof("value")
        some = [attribute.func] if kind == "func" else attribute.list.func if kind == "list" else []
        if not any(f.name in self.functions for f in some):
            return attribute
        new = type(attribute)()
        new.CopyFrom(attribute)
        for f in [new.func] if kind == "func" else new.list.func:
            f.name = self.functions[f.name].name
        return new


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def _listed(results: Any) -> list[tf.Tensor]:
    return [] if results is None or isinstance(results, tf.Operation) else list(tf.nest.flatten(results))


# ---- variables -------------------------------------------------------------------------------------------------------


def _variable(self: SessionOperations, node: Any, operands: list[Any]) -> list[Any]:
    variable = self.holder.variable(node)
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
        f"the placeholder {node.name!r} ({tf.as_dtype(node.attr['dtype'].type).name}) of the graph is asked for, and is"
        " none of the signature's inputs: choose feeds and fetches with .function(feeds, fetches)"
    )


_RESOURCES = {
    "Assign": "AssignVariableOp",
    "AssignAdd": "AssignAddVariableOp",
    "AssignSub": "AssignSubVariableOp",
    "IsVariableInitialized": "VarIsInitializedOp",
}


def _by_reference(node: Any, operands: list[Any]) -> list[Any]:
    """The operation on resources of this name; what it gives by reference is the variable."""
    old = op_def_registry.get(node.op)
    name = _RESOURCES.get(node.op, f"{node.op}V2" if "Table" in node.op else f"Resource{node.op}")
    new = op_def_registry.get(name)
    if new is None:
        raise UnsupportedOperationError(
            f"{node.op} {node.name!r} of a TensorFlow 1 graph writes by reference, and there is no such operation on"
            " resources: leave this part to TensorFlow"
        )
    graph: Any = ops.get_default_graph()
    inputs = [x.variable.handle if a.is_ref and isinstance(x, Reference) else value_of(x)
              for a, x in zip(old.input_arg, operands, strict=True)]  # fmt: skip
    own = {a.name for a in new.attr}
    attributes = {k: a for k, a in node.attr.items() if k in own}
    if "dtype" in own and "dtype" not in attributes:
        attributes["dtype"] = node.attr["T"]
    op = graph._create_op_internal(name, inputs, name=node.name, attrs=attributes)
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
