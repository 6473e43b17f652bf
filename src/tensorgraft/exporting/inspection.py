"""The content of a file: its inputs, results, parameters and operators, and which of these other frameworks lack."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.exporting.report import ArrayDescription
from tensorgraft.importing import required

MOST_AXES = 64  # NumPy's


@dataclass
class FileDescription:
    """A description of a file. `print(description)` shows it."""

    path: str
    kind: str
    inputs: list[ArrayDescription]
    outputs: list[ArrayDescription]
    parameters: int  # the number of elements
    arrays: int  # of parameters
    operators: dict[str, int]
    lacking: dict[str, list[str]] = field(default_factory=dict)  # backends in words -> operators that they lack
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kind}"]
        lines += [f"  input   {x}" for x in self.inputs]
        lines += [f"  result  {x}" for x in self.outputs]
        lines.append(f"  parameters: {self.parameters:,} elements in {self.arrays} arrays")
        counted = ", ".join(f"{name} {n}" for name, n in self.operators.items())
        lines.append(f"  operators: {counted}")
        for backend, names in self.lacking.items():
            lines.append(f"  {backend}: {'lacks ' + ', '.join(names) if names else 'has all of them'}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def inspect(path: str | os.PathLike[str]) -> FileDescription:
    """Describe a file of ONNX (.onnx), `torch.export` (.pt2), `jax.export` (.stablehlo) or LiteRT (.tflite), or a
    SavedModel.

    Raises FileNotFoundError, ValueError for other files, and ModuleNotFoundError if the package that reads it is not
    installed.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    if os.path.isdir(path):
        if not os.path.exists(os.path.join(path, "saved_model.pb")):
            raise ValueError(f"{path} is a folder that is no SavedModel")
        return _saved_model(path)
    suffix = os.path.splitext(path)[1]
    if suffix not in _READERS:
        raise ValueError(f"{path}: expected a SavedModel, or a file that ends with {', '.join(_READERS)}")
    kind, reader = _READERS[suffix]
    try:
        return reader(path)
    except (OSError, ImportError, NotImplementedError, MemoryError):
        raise
    except Exception as error:  # of any kind, where the file is broken
        if isinstance(error, ValueError) and path in str(error):
            raise
        raise ValueError(f"{path} is not {kind}, or is damaged: {type(error).__name__}: {error}") from error


def _total(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    return sum(int(np.prod(s, dtype=np.int64)) for s in shapes.values()), len(shapes)


def _sorted(names: Any) -> dict[str, int]:
    return dict(sorted(collections.Counter(names).items(), key=lambda item: (-item[1], item[0])))


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def _onnx(path: str) -> FileDescription:
    required("onnx", by="tensorgraft inspect", extra="onnx")
    import onnx

    from tensorgraft.frontends.onnx import rules  # noqa: F401  (they register themselves)
    from tensorgraft.frontends.onnx.rule import RULES

    model = onnx.load(path, load_external_data=False)
    weights = {t.name: tuple(t.dims) for t in model.graph.initializer}
    nodes = list(_nodes(model.graph))
    opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    domains = {("" if domain == "ai.onnx" else domain, op) for domain, op in RULES}
    functions = {(f.domain, f.name) for f in model.functions}
    missing = sorted({
        node.op_type for node in nodes
        if (node.domain, node.op_type) not in domains | functions and not _is_function(onnx, node, model)
    })  # fmt: skip
    total, arrays = _total(weights)
    return FileDescription(
        path, f"ONNX, {', '.join(f'{domain} {version}' for domain, version in opsets.items())}",
        [_onnx_array(onnx, x) for x in model.graph.input if x.name not in weights],
        [_onnx_array(onnx, x) for x in model.graph.output],
        total, arrays, _sorted(node.op_type for node in nodes),
        {"PyTorch, JAX, TensorFlow, NumPy": missing},
    )  # fmt: skip


def _nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _is_function(onnx: Any, node: Any, model: Any) -> bool:
    """Return True for an operator that ONNX defines by others."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _onnx_array(onnx: Any, info: Any) -> ArrayDescription:
    tensor = info.type.tensor_type
    name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name if tensor.elem_type else "?"
    shape: list[int | str] = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return ArrayDescription(info.name, name, shape)


# ---- torch.export ----------------------------------------------------------------------------------------------------


def _pt2(path: str) -> FileDescription:
    required("torch", by="tensorgraft inspect")
    import torch

    from tensorgraft.transforms.program_files import exported_program

    program = exported_program(path)
    state = {n: tuple(t.shape) for n, t in [*program.named_parameters(), *program.named_buffers()]}
    nodes = {node.name: node for node in program.graph.nodes}
    call_nodes = [node for node in nodes.values() if node.op == "call_function"]

    def described(name: Any) -> ArrayDescription:
        value = nodes[name].meta.get("val") if isinstance(name, str) else None
        if not isinstance(value, torch.Tensor):
            return ArrayDescription(str(name), type(value).__name__, [])
        return ArrayDescription(name, str(value.dtype).removeprefix("torch."), [
            int(n) if isinstance(n, int) else str(n) for n in value.shape
        ])  # fmt: skip

    names = program.graph_signature
    total, arrays = _total(state)
    return FileDescription(
        path, "torch.export", [described(n) for n in names.user_inputs], [described(n) for n in names.user_outputs],
        total, arrays, _sorted(_operator(node.target) for node in call_nodes),
        {"JAX, TensorFlow, NumPy": _lacking_kernels([node.target for node in call_nodes])},
        [f"writes {', '.join(map(str, names.buffers_to_mutate.values()))}"] if names.buffers_to_mutate else [],
    )  # fmt: skip


def _operator(target: Any) -> str:
    return str(target) if hasattr(target, "namespace") else getattr(target, "__name__", str(target))


def _lacking_kernels(targets: Any) -> list[str]:
    """Return the operators of ATen that have no kernel on the device, nor are views or made of others."""
    from tensorgraft.frontends.torch.core import schema
    from tensorgraft.frontends.torch.kernels.reasons import operators

    computed = operators()
    composite = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
    return sorted({
        str(op) for op in targets
        if getattr(op, "namespace", "") == "aten" and schema.short_name(op) not in computed and not op.is_view
        and not any(schema.has_kernel(op, key) for key in composite)
    })  # fmt: skip


# ---- jax.export ------------------------------------------------------------------------------------------------------


def _stablehlo(path: str) -> FileDescription:
    from tensorgraft.frontends.jax import stablehlo
    from tensorgraft.transforms.program_files import exported_function

    exported = exported_function(path)
    with stablehlo.naming(path):
        inputs = [_aval(f"x{k}", a) for k, a in enumerate(exported.in_avals)]
        outputs = [_aval(f"{k}", a) for k, a in enumerate(exported.out_avals)]
        operators, lacking = stablehlo.operators(exported), stablehlo.lacking(exported)
    return FileDescription(
        path, f"StableHLO of jax.export, for {', '.join(exported.platforms)}", inputs, outputs, 0, 0,
        operators, {"PyTorch, TensorFlow, NumPy": lacking},
        ["weights that are inside are constants, which are not counted"],
    )  # fmt: skip


def _aval(name: str, aval: Any) -> ArrayDescription:
    return ArrayDescription(name, aval.dtype.name, [n if isinstance(n, int) else str(n) for n in aval.shape])


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def _saved_model(path: str) -> FileDescription:
    required("tensorflow", by="tensorgraft inspect")
    import tensorflow as tf

    from tensorgraft.frontends.tensorflow import rules  # noqa: F401  (they register themselves)
    from tensorgraft.frontends.tensorflow.rule import RULES

    loaded = tf.saved_model.load(path)  # holds the variables
    signatures = loaded.signatures
    if not signatures:
        raise ValueError(f"{path} has no signatures")
    name = "serving_default" if "serving_default" in signatures else next(iter(signatures))
    function = signatures[name]
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    skipped = {"NoOp", "Placeholder", "Const", "Identity", "IdentityN", "VarHandleOp", "DisableCopyOnRead"}
    used = [n.op for n in nodes if n.op not in skipped and not n.op.endswith("PartitionedCall")]
    total, arrays = _total({v.name: tuple(v.shape) for v in function.variables})
    inputs = function.structured_input_signature[1]
    return FileDescription(
        path, f"SavedModel, {name}", [_spec(n, x) for n, x in sorted(inputs.items())],
        [_spec(n, x) for n, x in sorted(function.structured_outputs.items())], total, arrays, _sorted(used),
        {"PyTorch, JAX, NumPy": sorted({op for op in used if op not in RULES})},
        [f"other signatures: {', '.join(sorted({*signatures} - {name}))}"] if len(signatures) > 1 else [],
    )  # fmt: skip


def _spec(name: str, spec: Any) -> ArrayDescription:
    return ArrayDescription(name, spec.dtype.name, ["?" if n is None else int(n) for n in spec.shape])


# ---- LiteRT ----------------------------------------------------------------------------------------------------------


def _litert(path: str) -> FileDescription:
    required("tensorflow", by="tensorgraft inspect")
    from tensorflow.lite.python import schema_py_generated as schema

    from tensorgraft.exporting.formats import litert

    with open(path, "rb") as file:
        content = file.read()
    model = litert.parsed(content)
    types = {value: name.lower() for name, value in vars(schema.TensorType).items() if isinstance(value, int)}

    def described(graph: Any, k: int, name: bytes | None = None) -> ArrayDescription:
        tensor = graph.Tensors(k)
        shape = _extents(tensor, "ShapeSignature") or _extents(tensor, "Shape")
        return ArrayDescription(
            (tensor.Name() if name is None else name).decode(),
            types[tensor.Type()],
            ["?" if n < 0 else n for n in shape],
        )

    stored = ("float32", "float16", "bfloat16", "int8", "int4")
    weights = [
        _extents(tensor, "Shape") for graph in litert.tables(model, "Subgraphs")
        for tensor in litert.tables(graph, "Tensors")
        if tensor.ShapeLength() and not model.Buffers(tensor.Buffer()).DataIsNone() and types[tensor.Type()] in stored
    ]  # fmt: skip
    total, arrays = _total({str(k): tuple(shape) for k, shape in enumerate(weights)})
    if model.SignatureDefsLength():
        signature = model.SignatureDefs(0)
        graph = model.Subgraphs(signature.SubgraphIndex())
        title = f"LiteRT, {signature.SignatureKey().decode()}"
        inputs, outputs = (
            [described(graph, x.TensorIndex(), x.Name()) for x in litert.tables(signature, field)]
            for field in ("Inputs", "Outputs")
        )
    else:
        graph, title = model.Subgraphs(0), "LiteRT, without a signature"
        inputs = [described(graph, graph.Inputs(k)) for k in range(graph.InputsLength())]
        outputs = [described(graph, graph.Outputs(k)) for k in range(graph.OutputsLength())]
    return FileDescription(
        path, title, inputs, outputs, total, arrays, _sorted(name for name, _, _ in litert.operators(model)), {},
        [f"{len(content):,} bytes; tensorgraft does not run models of LiteRT"],
    )  # fmt: skip


def _extents(tensor: Any, field: str) -> list[int]:
    """Return a shape of a tensor of LiteRT."""
    rank = getattr(tensor, f"{field}Length")()
    if rank > MOST_AXES:
        raise ValueError(f"a tensor has {rank:,} axes")
    return [getattr(tensor, field)(k) for k in range(rank)]


_READERS: dict[str, tuple[str, Callable[[str], FileDescription]]] = {
    ".onnx": ("a model of ONNX", _onnx),
    ".pt2": ("a file of torch.export", _pt2),
    ".stablehlo": ("a file of jax.export", _stablehlo),
    ".tflite": ("a model of LiteRT", _litert),
}
