"""Models of LiteRT (TensorFlow Lite), as TensorFlow's converter writes them."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from tensorgraft import files
from tensorgraft.codegen.program import by_path
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.formats.saved_model import saved_module, specifications
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject, tensor_name

SCHEMES = ("int8_dynamic", "int8_static_asymmetric")
ROUNDING = 4 / 127  # of the results of a product whose operands have 8 bits, relative to the largest


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    if converted.state:
        module, signature = _stateful(converted, subject, sizes)
    else:
        module, signature = saved_module(converted, subject, sizes)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, os.path.join(folder, "model"), signatures={"serving_default": signature})
        converter = tf.lite.TFLiteConverter.from_saved_model(os.path.join(folder, "model"))
        if "quantize" in options:
            _quantize(converter, subject, options)
        with warnings.catch_warnings():  # the converter measures ranges with an interpreter that it declares deprecated
            warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated", UserWarning)
            model = converter.convert()
    files.write(path, model)
    if "quantize" not in options:
        return []
    products = quantized_products(model)
    converted.tolerance = ROUNDING * max(products, 1) ** 0.5
    return [f"{options['quantize']}: {products} products with int8 weights; a result may differ by"
            f" {converted.tolerance:.0e} of the largest entry"]  # fmt: skip


def _stateful(converted: Converted, subject: Subject, sizes: OpenSizes) -> tuple[Any, Any]:
    """Return (a module with the weights, a function of named tensors that takes the state and returns the new one)."""
    specs = specifications(subject, sizes)
    names = [tensor_name(name) for name in subject.names]
    arguments = {path: tensor_name(path) for path in converted.state}
    arguments = {path: f"{name}_state" if name in names else name for path, name in arguments.items()}
    converted.state_arguments = {name: path for path, name in arguments.items()}
    converted.state_results = {f"{name}_new": path for path, name in arguments.items()}
    specs += [tf.TensorSpec(x.shape, np.asarray(x).dtype, name=arguments[path]) for path, x in converted.state.items()]

    @tf.function(autograph=False)
    def step(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        state = {path: tensors[name] for path, name in arguments.items()}
        out, new = converted.call(state, [tensors[name] for name in names])
        results = {tensor_name(path): x for path, x in by_path(out).items()}
        results |= {name: new[path] for name, path in converted.state_results.items()}
        return {name: tf.identity(x, name) for name, x in results.items()}

    module = tf.Module()
    module.program_variables = list(converted.variables.values())
    return module, step.get_concrete_function(**{s.name: s for s in specs})


def _validate(options: Mapping[str, Any]) -> None:
    scheme, batches = options.get("quantize"), options.get("calibrate")
    if scheme is None and batches is None:
        return
    if scheme not in SCHEMES:
        raise ValueError(f"quantize={scheme!r}: a model of LiteRT has one of {', '.join(map(repr, SCHEMES))}")
    if scheme == "int8_dynamic" and batches is not None:
        raise ValueError(f"quantize={scheme!r} measures operands when the model runs: leave out calibrate")
    if scheme == "int8_static_asymmetric" and not batches:
        raise ValueError(f"quantize={scheme!r}: expected calibrate=[batch, ...], on which ranges are measured")


def _quantize(converter: Any, subject: Subject, options: Mapping[str, Any]) -> None:
    """Set the converter's options for a scheme."""
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if batches := options.get("calibrate"):
        names = [tensor_name(name) for name in subject.names]
        converter.representative_dataset = lambda: (dict(zip(names, arrays, strict=True)) for arrays in batches)


def quantized_products(model: bytes) -> int:
    """Return the number of products and convolutions whose weights are int8."""
    products = {"FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D", "BATCH_MATMUL"}
    count = 0
    for name, graph, operator in operators(parsed(model)):
        if name in products:
            operands = [operator.Inputs(k) for k in range(operator.InputsLength())]
            count += any(graph.Tensors(k).Type() == schema.TensorType.INT8 for k in operands if k >= 0)
    return count


def operators(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, graph, operator) for the operators of a model."""
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    for graph in tables(model, "Subgraphs"):
        for operator in tables(graph, "Operators"):
            code = model.OperatorCodes(operator.OpcodeIndex())
            name = names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            yield code.CustomCode().decode() if name == "CUSTOM" else name, graph, operator


def parsed(content: bytes) -> Any:
    """Return the table of a model, whose parts are read when they are asked for.

    Raises ValueError if it is none, or if its graphs have more tensors and operators than it has room for: tables of
    flatbuffers may be the same bytes.
    """
    if content[4:8] != b"TFL3":
        raise ValueError("it is not a model of LiteRT")
    model = schema.Model.GetRootAs(content)
    count = 0
    for graph in tables(model, "Subgraphs"):
        count += graph.TensorsLength() + graph.OperatorsLength()
        if 4 * count > len(content):  # each has a place of 4 bytes in its vector
            raise ValueError(f"its graphs have {count:,} tensors and operators in {len(content):,} bytes")
    return model


def tables(owner: Any, field: str) -> Iterator[Any]:
    """Yield the tables of a vector."""
    yield from map(getattr(owner, field), range(getattr(owner, f"{field}Length")()))


FORMAT = Format(
    "litert",
    "tensorflow",
    "litert",
    ".tflite",
    _write,
    ("quantize", "calibrate"),
    keeps_state=False,
    validate=_validate,
)
