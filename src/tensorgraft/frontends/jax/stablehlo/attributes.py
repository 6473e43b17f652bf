"""Attributes and types of operations, as Python has them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from tensorgraft.frontends.jax.stablehlo.errors import UnsupportedStableHLOError


def ints(op: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of integers."""
    if name not in op.attributes:
        return default
    attribute = op.attributes[name]
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return np.array(attribute)
    return [int(n) for n in attribute]


def flag(op: Any, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


def kind_of_region(op: Any) -> str | None:
    """Return the operation of a region that consists of one, of both its arguments."""
    block = op.operation.regions[0].blocks[0]
    operations = [*block.operations]
    return operations[0].operation.name.partition(".")[2] if len(operations) == 2 else None


def dtype_of(type_: Any) -> np.dtype:
    """Return the dtype of a type of elements."""
    names = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
             "complex<f32>": "complex64", "complex<f64>": "complex128"}  # fmt: skip
    text = str(type_)
    if text in names:
        return np.dtype(jax.numpy.dtype(names[text]))
    if text.startswith("ui"):
        return np.dtype(f"uint{text[2:]}")
    if text.startswith("i"):
        return np.dtype(f"int{text[1:]}")
    raise UnsupportedStableHLOError(f"elements of {text}")


def result_dtype(op: Any) -> np.dtype:
    return dtype_of(ir.RankedTensorType(op.operation.results[0].type).element_type)


def known(x: Any) -> list[int]:
    """Return a shape that is an operand."""
    if not isinstance(x, np.ndarray):
        raise UnsupportedStableHLOError("a shape that depends on values")
    return [int(n) for n in x.reshape(-1)]
