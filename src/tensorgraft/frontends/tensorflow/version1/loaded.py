"""Graphs with a session into which their variables and tables have been restored: SavedModels of TensorFlow 1, frozen
graphs, and SavedModels of TensorFlow 2 that `tf.saved_model.load` refuses."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import (
    descriptor_pool,
    message,
    message_factory,
    text_format,
)

from tensorgraft.frontends.tensorflow.version1.operations import SessionOperations
from tensorgraft.frontends.tensorflow.version1.raising import trace
from tensorgraft.frontends.tensorflow.version1.structure import parse_name

v1 = tf.compat.v1
Names = Mapping[str, str]  # the user's name of a tensor -> its name in the graph ("x:0")


class SessionGraph:
    """A graph, its variables and its tables. These are read from the session when a function first uses them.

    Arguments:
        graph: the `GraphDef`.
        restore: imports the graph into the default graph, and loads the values of variables and tables into the
            session that it is called with.
        trainable: the names of the variables that are trained.
    """

    def __init__(self, graph: Any, restore: Callable[[Any], None], trainable: Sequence[str]) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._session = v1.Session(graph=self.graph)
            restore(self._session)
        self._trainable = frozenset(trainable)
        self._variables: dict[str, tf.Variable] = {}
        self._tables: dict[str, Any] = {}
        library = {f.signature.name: f for f in graph.library.function}
        self._operations = SessionOperations(graph.node, library, self)

    def function(self, feeds: Names, fetches: Names) -> Any:
        """Return a `tf.function` that takes the tensors of `feeds`, in order, and returns those of `fetches` in a
        dictionary. Raises ValueError for a name that is not in the graph."""
        fetches = dict(fetches)
        inputs, results = [parse_name(t) for t in feeds.values()], [parse_name(t) for t in fetches.values()]
        specs = [self.spec(t) for t in feeds.values()]
        for t in fetches.values():
            self.spec(t)  # raises ValueError

        def run(*values_fed: tf.Tensor) -> dict[str, tf.Tensor]:
            values_fed = tuple([_widened(x, spec) for x, spec in zip(values_fed, specs, strict=True)])
            values = trace(self._operations, dict(zip(inputs, values_fed, strict=True)), results)
            return dict(zip(fetches, values, strict=True))

        return tf.function(run, autograph=False)

    def spec(self, name: str) -> tf.TensorSpec:
        """Return the spec of a tensor. Raises ValueError for an unknown name."""
        try:
            x = self.graph.as_graph_element(name if ":" in name else f"{name}:0", allow_operation=False)
        except (KeyError, ValueError) as error:
            raise ValueError(f"the graph has no tensor {name!r}") from error
        return tf.TensorSpec(x.shape, x.dtype.base_dtype)

    def default_signature(self) -> tuple[Names, Names]:
        """Return (feeds, fetches) for a graph without signatures: its placeholders, and tensors that no other node
        reads."""
        nodes = self._operations.nodes.values()
        consumed = {i.partition(":")[0].lstrip("^") for node in nodes for i in node.input}
        feeds = {n.name: f"{n.name}:0" for n in nodes if n.op in ("Placeholder", "PlaceholderWithDefault")}
        last = [n.name for n in nodes if n.name not in consumed and n.name not in feeds]
        return feeds, {n: f"{n}:0" for n in last if len(self.graph.get_operation_by_name(n).outputs)}

    # ---- state -----------------------------------------------------------------------------------------------------

    def variable(self, node: Any) -> tf.Variable:
        """Return a `tf.Variable` that begins with the session's value, always the same one for a variable.

        Arguments:
            node: the `NodeDef` of a variable.

        Raises ValueError for a variable that the model did not save.
        """
        name = node.attr["shared_name"].s.decode() or node.name
        if name not in self._variables:
            with tf.init_scope():
                value = self._read(node)
                shape = tf.TensorShape(node.attr["shape"].shape)
                trainable = name in self._trainable or node.name in self._trainable
                new_variable = tf.Variable(
                    value, trainable=trainable, name=name, shape=shape if shape.rank is not None else None
                )
            self._variables[name] = new_variable
        return self._variables[name]

    def _read(self, node: Any) -> np.ndarray:
        with self.graph.as_default():
            x = self.graph.get_tensor_by_name(f"{node.name}:0")
            if node.op == "VarHandleOp":
                x = tf.raw_ops.ReadVariableOp(resource=x, dtype=node.attr["dtype"].type)
            try:
                return self._session.run(x)
            except tf.errors.FailedPreconditionError as error:
                raise ValueError(
                    f"the variable {node.name!r} of the graph has no value: the model was saved without it"
                ) from error

    def table(self, node: Any) -> tf.Tensor:
        """Return the handle of a static copy of a lookup table, made once. `node`: the `NodeDef` of the table."""
        if node.name not in self._tables:
            keys, values = (tf.as_dtype(node.attr[a].type) for a in ("key_dtype", "value_dtype"))
            export = tf.raw_ops.LookupTableExportV2 if node.op.endswith("V2") else tf.raw_ops.LookupTableExport
            with self.graph.as_default():
                handle = self.graph.get_tensor_by_name(f"{node.name}:0")
                content = self._session.run(export(table_handle=handle, Tkeys=keys, Tvalues=values))
            with tf.init_scope():
                rows = tf.lookup.KeyValueTensorInitializer(
                    tf.constant(content[0], keys), tf.constant(content[1], values)
                )
                default = b"" if values == tf.string else np.zeros((), values.as_numpy_dtype)
                self._tables[node.name] = tf.lookup.StaticHashTable(rows, default)
        return self._tables[node.name].resource_handle


def _widened(x: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Return `x`, cast to int64 if it is int32 and `spec` is int64: JAX makes int32 by default. Raises TypeError if the
    dtypes differ otherwise."""
    if x.dtype == spec.dtype:
        return x
    if (x.dtype, spec.dtype) == (tf.int32, tf.int64):
        return tf.cast(x, tf.int64)
    raise TypeError(f"expected an array of {spec.dtype.name}, got one of {x.dtype.name}")


def frozen_graph(path: str) -> SessionGraph:
    """Read a frozen graph from a file. Raises ValueError for any other file."""
    graph = v1.GraphDef()
    try:
        with open(path, "rb") as file:
            graph.ParseFromString(file.read())
    except Exception as error:  # protobuf raises several kinds
        raise ValueError(f"{path} is not a GraphDef of TensorFlow") from error
    return SessionGraph(graph, lambda _: tf.import_graph_def(graph, name=""), [])


def saved_graph(directory: str, meta: Any) -> SessionGraph:
    """Return the graph of a SavedModel. `meta`: the `MetaGraphDef` to take (`chosen_meta`)."""
    tags = list(meta.meta_info_def.tags)

    def restore(session: Any) -> None:
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel(logging.ERROR)  # it warns that this is the way of TensorFlow 1
        try:
            v1.saved_model.load(session, tags, directory)
        finally:
            logger.setLevel(level)

    return SessionGraph(meta.graph_def, restore, _trained(meta))


def _trained(meta: Any) -> list[str]:
    """Return the names of variables that are trained: those in the collection of TensorFlow 1 (`trainable_variables`),
    and those in the object graph of TensorFlow 2."""
    names, variable = [], _message("VariableDef")
    for data in meta.collection_def["trainable_variables"].bytes_list.value:
        names.append(variable.FromString(data).variable_name.partition(":")[0])
    for node in meta.object_graph_def.nodes:
        if node.WhichOneof("kind") == "variable" and node.variable.trainable:
            names.append(node.variable.name.partition(":")[0])
    return names


def _message(name: str) -> Any:
    """Return the class of one of TensorFlow's protobuf messages."""
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(f"tensorflow.{name}"))


def _saved_model(directory: str) -> Any:
    """Return the `SavedModel` message in a directory. Raises OSError if there is none, or it cannot be parsed."""
    saved = _message("SavedModel")()
    parsers = {
        "saved_model.pb": saved.ParseFromString,
        "saved_model.pbtxt": lambda content: text_format.Parse(content.decode(), saved),
    }
    for name, parse in parsers.items():
        path = tf.io.gfile.join(directory, name)
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                content = file.read()
            try:
                parse(content)
            except (message.DecodeError, text_format.ParseError) as error:
                raise OSError(f"Cannot parse file {path}: {error}.") from error
            return saved
    raise OSError(f"SavedModel file does not exist at: {directory}{os.path.sep}{{saved_model.pbtxt|saved_model.pb}}")


def chosen_meta(directory: str) -> Any:
    """Return the meta graph of a SavedModel tagged "serve", or the only one. Raises ValueError if neither is unique."""
    metas = _saved_model(os.fspath(directory)).meta_graphs
    serving = [m for m in metas if "serve" in m.meta_info_def.tags]
    if len(metas) == 1 or len(serving) == 1:
        return (serving or metas)[0]
    raise ValueError(
        f"{directory} has graphs of {[list(m.meta_info_def.tags) for m in metas]}, none of which is chosen"
    )
