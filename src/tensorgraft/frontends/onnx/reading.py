"""Files of ONNX, read and checked before anything is run."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from tensorgraft.frontends.onnx.element_types import STRING, Carried, dtype_of, wrapped
from tensorgraft.frontends.onnx.graph import Extent, OnnxFunction, OnnxGraph, OnnxModel, OnnxNode, ValueType

MOST_NESTED = 64  # graphs in graphs, calls in calls
MOST_NODES = 1 << 18  # with those of functions once for each call


class InvalidModelError(ValueError):
    """A file that is no ONNX model, or whose parts contradict each other."""


def read(program: Any) -> OnnxModel:
    """Return a model, or the one in a file, with its weights. External data is mapped into memory from files in the
    model's folder, which have to hold as many bytes as are declared.

    Raises FileNotFoundError for a file, or a file of external data, that is missing; InvalidModelError.
    """
    if isinstance(program, ModelProto):
        return model_of(program, None)
    path = os.fspath(program)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path!r} does not exist")
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise InvalidModelError(f"{path!r} is no ONNX model: {error}") from None
    return model_of(model, path)


def model_of(model: ModelProto, path: str | None) -> OnnxModel:
    """Return a parsed model as data. Raises InvalidModelError."""
    title = path or "the model"
    _check_text(model, title)
    reader = _Reader(os.path.dirname(os.path.abspath(path)) if path else None, title)
    opsets = reader.opsets(model)
    if not model.graph.node and not model.graph.output:
        raise InvalidModelError(f"{title} has no graph: it is no ONNX model")
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 1) > newest:
        raise InvalidModelError(
            f"{title} is written for opset {opsets['']}; onnx {onnx.__version__}, which reads it, knows operators up to"
            f" opset {newest}: install a newer onnx, or convert the model with onnx.version_converter"
        )
    try:
        functions = {(_domain(f.domain), f.name, f.overload): function_of(f, reader) for f in model.functions}
        graph = reader.graph(model.graph, set())
    except TypeError as error:  # of an element type
        raise reader.fail(str(error)) from None
    _check_calls(graph, functions, title)
    return OnnxModel(graph, functions, opsets, path)


FunctionKey = tuple[str, str, str]  # domain, name, overload


def _check_calls(graph: OnnxGraph, functions: Mapping[FunctionKey, OnnxFunction], title: str) -> None:
    """Raise InvalidModelError for functions that call themselves, and for calls in calls that make too many nodes."""
    counts: dict[FunctionKey, int] = {}

    def count(nodes: Iterable[OnnxNode], path: tuple[FunctionKey, ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op, node.overload)
            total += 1 + sum(count(g.nodes, path) for g in node.graphs())
            if key not in functions:
                continue
            if key in path:
                raise InvalidModelError(f"{title}: the function {node.op!r} calls itself, by {node}")
            if len(path) == MOST_NESTED:
                raise InvalidModelError(f"{title}: calls of functions are nested more than {MOST_NESTED} deep")
            if key not in counts:
                counts[key] = count(functions[key].nodes, (*path, key))
            total += counts[key]
        if total > MOST_NODES:
            raise InvalidModelError(f"{title}: with its functions written out it has more than {MOST_NODES} nodes")
        return total

    count(graph.nodes, ())


def _check_text(message: Any, title: str) -> None:
    """Raise InvalidModelError for names that are no text, which protobuf does not check."""
    if isinstance(message, TensorProto):
        if isinstance(message.name, bytes) or any(isinstance(e.value, bytes) for e in message.external_data):
            raise InvalidModelError(f"{title} has a tensor whose name is no text")
        return
    for field, value in message.ListFields():
        values = (value,) if isinstance(value, str | bytes | Message) else value
        if field.message_type is not None:
            for inner in values:
                _check_text(inner, title)
        elif field.type == field.TYPE_STRING and any(isinstance(v, bytes) for v in values):
            raise InvalidModelError(f"{title}: the field {field.full_name} is no text")


def function_of(function: FunctionProto, reader: _Reader | None = None) -> OnnxFunction:
    """Return a function of a model, or, without its reader, the one by which ONNX defines an operator: that one may
    lack results, which are those that a node leaves out."""
    is_definition = reader is None
    reader = reader or _Reader(None, f"the function {function.name}")
    defaults = dict.fromkeys(function.attribute) | {
        a.name: reader.attribute(a, set()) for a in function.attribute_proto
    }
    nodes, defined = [], set(function.input)
    for n in function.node:
        nodes.append(reader.node(n, defined, function.name))
        defined.update(n.output)
    reader.check_order(nodes, set(function.input), set())
    if not is_definition and (missing := [name for name in function.output if name not in defined]):
        raise reader.fail(f"no node computes the output {missing[0]!r} of the function {function.name!r}")
    return OnnxFunction(
        function.name, tuple(function.input), tuple(function.output), defaults, nodes, reader.opsets(function)
    )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def attribute_value(attribute: AttributeProto) -> Any:
    """Return the value of an attribute that is not part of a model: a default."""
    return _Reader(None, "a definition").attribute(attribute, set())


class _Reader:
    """Reads the messages of a model, whose external data is in `folder` (None: there may be none)."""

    def __init__(self, folder: str | None, title: str) -> None:
        self.folder, self.title = folder, title
        self._depth = 0

    def fail(self, message: str) -> InvalidModelError:
        return InvalidModelError(f"{self.title}: {message}")

    def opsets(self, message: ModelProto | FunctionProto) -> dict[str, int]:
        """Return the versions of the operators' domains that a model or a function states."""
        for o in message.opset_import:
            if not 0 < o.version < 1 << 31:
                raise self.fail(f"it is written for version {o.version} of the domain {o.domain!r}")
        return {_domain(o.domain): o.version for o in message.opset_import}

    # ---- graphs ----------------------------------------------------------------------------------------------------

    def graph(self, graph: GraphProto, outside: set[str]) -> OnnxGraph:
        """Return a graph, whose nodes may read the names `outside`."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self.fail(f"graphs are nested more than {MOST_NESTED} deep")
        initializers = {t.name: self.tensor(t) for t in graph.initializer}
        initializers |= {t.values.name: self.sparse(t) for t in graph.sparse_initializer}
        inputs = {v.name: value_type(v.type) for v in graph.input}
        inner = {*outside, *inputs, *initializers}
        nodes = []
        for node in graph.node:
            nodes.append(self.node(node, inner))
            inner.update(node.output)
        self.check_order(nodes, {*inputs, *initializers}, outside)
        outputs = {v.name: value_type(v.type) for v in graph.output}
        if missing := [name for name in outputs if name not in inner]:
            raise self.fail(f"no node computes the output {missing[0]!r} of the graph {graph.name!r}")
        self._check_initializers(inputs, initializers)
        self._depth -= 1
        return OnnxGraph(graph.name, nodes, inputs, outputs, initializers)

    def _check_initializers(self, inputs: Mapping[str, ValueType], initializers: Mapping[str, Any]) -> None:
        for name in inputs.keys() & initializers.keys():
            declared, value = inputs[name], initializers[name]
            if declared.shape is None or declared.kind != "tensor":
                continue
            fits = len(declared.shape) == value.ndim if isinstance(value, np.ndarray) else True
            fits = fits and all(
                not isinstance(n, int) or n == m for n, m in zip(declared.shape, value.shape, strict=False)
            )
            if not fits or value.dtype != declared.dtype:
                raise self.fail(f"the initializer {name!r} is {value.dtype}{value.shape}, its input {declared}")

    def check_order(self, nodes: Iterable[OnnxNode], defined: set[str], outside: set[str]) -> None:
        """Raise InvalidModelError if a node reads what no earlier node computes, or two compute one name."""
        defined = set(defined)
        for node in nodes:
            for name in node.inputs:
                if name and name not in defined and name not in outside:
                    raise self.fail(f"{node} reads {name!r}, which is no input and is computed by no node before it")
            for name in node.outputs:
                if name and name in defined:
                    raise self.fail(f"{node} computes {name!r}, which has a value already")
                defined.add(name)

    def node(self, node: NodeProto, outside: set[str], place: str = "") -> OnnxNode:
        attributes: dict[str, Any] = {}
        references = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                references[attribute.name] = attribute.ref_attr_name
            else:
                attributes[attribute.name] = self.attribute(attribute, outside)
        return OnnxNode(
            node.op_type, _domain(node.domain), node.name, tuple(node.input), tuple(node.output), attributes,
            references, node.overload, place, node,
        )  # fmt: skip

    def attribute(self, attribute: AttributeProto, outside: set[str]) -> Any:
        kind = AttributeProto.AttributeType.Name(attribute.type) if attribute.type else "UNDEFINED"
        readers: dict[str, tuple[Any, str]] = {
            "FLOAT": (_decimal, "f"), "INT": (int, "i"), "STRING": (_text, "s"), "TENSOR": (self.tensor, "t"),
            "SPARSE_TENSOR": (self.sparse, "sparse_tensor"), "GRAPH": (lambda g: self.graph(g, outside), "g"),
            "TYPE_PROTO": (value_type, "tp"),
        }  # fmt: skip
        one, field = readers.get(kind.removesuffix("S"), (None, ""))
        if one is None:
            raise self.fail(f"the attribute {attribute.name!r} has no type")
        return tuple(map(one, getattr(attribute, kind.lower()))) if kind[-1] == "S" else one(getattr(attribute, field))

    # ---- tensors ---------------------------------------------------------------------------------------------------

    def tensor(self, tensor: TensorProto) -> Any:
        """Return a tensor's values. Raises InvalidModelError if it has another number of elements than its shape."""
        try:
            if any(n < 0 for n in tensor.dims):
                raise ValueError(f"its shape is {tuple(tensor.dims)}")
            dtype = dtype_of(tensor.data_type)
            if tensor.data_location == TensorProto.EXTERNAL:
                return wrapped(self._external(tensor, dtype))
            if tensor.HasField("raw_data") and dtype != STRING:
                return wrapped(self._raw(tensor, dtype))
            self._check_length(tensor, dtype)
            values = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.fail(f"the tensor {tensor.name!r} cannot be read: {error}") from None
        if dtype == STRING:
            return np.array([_text(x) for x in values.ravel()], object).reshape(values.shape)
        return wrapped(values)

    def _raw(self, tensor: TensorProto, dtype: np.dtype) -> np.ndarray:
        """Return the values of a tensor whose elements are bytes, which each access of the field copies."""
        raw, wanted = tensor.raw_data, _byte_count(tensor, dtype)
        if wanted != len(raw):
            raise ValueError(f"its shape {tuple(tensor.dims)} of {dtype} takes {wanted} bytes, the file has {len(raw)}")
        if _bits(dtype) < 8 or sys.byteorder == "big":
            return onnx.numpy_helper.to_array(tensor)
        # Dynamo refuses memory that cannot be made writable, where it meets constants
        return np.frombuffer(raw if len(raw) > 4096 else bytearray(raw), dtype).reshape(tuple(tensor.dims))

    def _check_length(self, tensor: TensorProto, dtype: np.dtype) -> None:
        """Compare the elements that the file has with the shape before memory for that shape is asked for."""
        count = math.prod(tensor.dims)
        if dtype == STRING and len(tensor.string_data) != count:
            raise ValueError(f"its shape is {tuple(tensor.dims)}, the file has {len(tensor.string_data)} strings")
        if dtype != STRING and count > 64 * max(tensor.ByteSize(), 1):
            raise ValueError(f"its shape is {tuple(tensor.dims)}, the file has {tensor.ByteSize()} bytes of it")

    def _external(self, tensor: TensorProto, dtype: np.dtype) -> np.ndarray:
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        if self.folder is None:
            raise ValueError(f"its data is in the file {location!r}: pass the model's path instead of the model")
        path = self._path_in_folder(location)
        offset = int(entries.get("offset", 0))
        wanted = _byte_count(tensor, dtype)
        length = int(entries.get("length", wanted))
        size = os.path.getsize(path)
        if length != wanted or offset < 0 or offset + wanted > size:
            raise ValueError(
                f"its shape {tuple(tensor.dims)} of {dtype} takes {wanted} bytes; {location!r} has {size} and declares"
                f" {length} from {offset} on"
            )
        if _bits(dtype) < 8 or dtype == STRING:
            with open(path, "rb") as file:
                file.seek(offset)
                inline = TensorProto()
                inline.CopyFrom(tensor)
                del inline.external_data[:]
                inline.data_location, inline.raw_data = TensorProto.DEFAULT, file.read(wanted)
            return onnx.numpy_helper.to_array(inline)
        if not wanted:
            return np.zeros(tuple(tensor.dims), dtype)
        raw = np.memmap(path, np.uint8, "r", offset, (wanted,))
        return raw.view(dtype).reshape(tuple(tensor.dims))

    def _path_in_folder(self, location: str) -> str:
        """Return the path of a file of external data. Raises ValueError if it is not in the model's folder, and
        FileNotFoundError."""
        assert self.folder is not None
        folder = os.path.realpath(self.folder)
        path = os.path.realpath(os.path.join(folder, location))
        if not location or os.path.isabs(location) or os.path.commonpath([folder, path]) != folder:
            raise ValueError(f"its data is said to be in {location!r}, which is not in the model's folder")
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{self.title}: the file {location!r}, which has the data of tensors, is missing")
        return path

    def sparse(self, tensor: Any) -> Any:
        """Return a sparse tensor as a dense one."""
        shape = tuple(tensor.dims)
        values, indices = self.tensor(tensor.values), self.tensor(tensor.indices)
        size = int(np.prod(shape, dtype=object)) if min(shape, default=0) >= 0 else -1
        if isinstance(values, Carried) or values.ndim != 1 or not 0 <= size <= (1 << 20) + 1000 * values.size:
            raise self.fail(f"the sparse tensor {tensor.values.name!r} of shape {shape} cannot be read")
        flat = np.zeros(size, values.dtype)
        is_whole = not isinstance(indices, Carried) and indices.dtype.kind in "iu"
        is_grid = is_whole and indices.ndim == 2 and indices.shape[1] == len(shape)
        if is_grid and np.all((indices >= 0) & (indices < shape)):
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        is_within = is_whole and (not indices.size or (indices.min() >= 0 and indices.max() < flat.size))
        if not is_within or indices.shape != values.shape:
            raise self.fail(f"the sparse tensor {tensor.values.name!r} has positions outside of its shape {shape}")
        flat[indices] = values
        return flat.reshape(shape)


def _bits(dtype: np.dtype) -> int:
    narrow = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
    return narrow.get(dtype.name, dtype.itemsize * 8)


def _byte_count(tensor: TensorProto, dtype: np.dtype) -> int:
    return (math.prod(tensor.dims) * _bits(dtype) + 7) // 8


def _decimal(x: float) -> float:
    """Return the shortest decimal number that is the float32 number of a file: 1e-5, not 9.999999747378752e-6."""
    return float(str(np.float32(x)))


def _text(x: Any) -> str:
    return x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x)


def value_type(proto: TypeProto) -> ValueType:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        dtype = dtype_of(tensor.elem_type) if tensor.elem_type else None
        return ValueType("tensor", dtype, tuple(_extents(tensor.shape)) if tensor.HasField("shape") else None)
    if kind == "map_type":
        return ValueType("map")
    if kind is None:
        return ValueType("tensor")
    return ValueType(kind.removesuffix("_type"), element=value_type(getattr(proto, kind).elem_type))


def _extents(shape: Any) -> Iterator[Extent]:
    for dim in shape.dim:
        field = dim.WhichOneof("value")
        if field == "dim_value":
            yield dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for one that is not known
        else:
            name = dim.dim_param if field else ""
            yield name if any(c.isalnum() for c in name) else None  # `?` is no name
