"""Models of LiteRT (TensorFlow Lite), as TensorFlow's converter writes them."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from tensorgraft import files
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.formats.saved_model import saved_module
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject, tensor_name

SCHEMES = ("int8_dynamic", "int8_static_asymmetric")
ROUNDING = 4 / 127  # of the results of a product whose operands have 8 bits, relative to the largest


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    if subject.writes(subject.evaluate(subject.arrays).buffers):
        raise NotImplementedError(f"{subject.name} writes its variables, which a model of LiteRT does not keep")
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
    for name, graph, operator in operators(model):
        if name in products:
            count += any(graph.tensors[k].type == schema.TensorType.INT8 for k in operator.inputs if k >= 0)
    return count


def operators(model: bytes) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, graph, operator) for the operators of a model."""
    loaded = parsed(model)
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    for graph in loaded.subgraphs or []:
        for operator in graph.operators or []:
            code = loaded.operatorCodes[operator.opcodeIndex]
            name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
            yield code.customCode.decode() if name == "CUSTOM" else name, graph, operator


def parsed(model: bytes) -> Any:
    """Return the content of a model as the objects of its schema. Raises ValueError if it is none."""
    if model[4:8] != b"TFL3":
        raise ValueError("it is not a model of LiteRT")
    return schema.ModelT.InitFromPackedBuf(model, 0)


FORMAT = Format("litert", "tensorflow", "litert", ".tflite", _write, ("quantize", "calibrate"), _validate)
