"""ONNX: the recorded program in ONNX's operators; large weights are in a file beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper

from tensorgraft import files
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.onnx.writing import OPSETS, model_of
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject

OPSET = 20
EXTERNAL = 64 * 2**20  # bytes of weights from which on they are in a file of their own
_ALIGNMENT = 4096  # of arrays in that file, so that they can be mapped


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    written = model_of(subject, sizes, options.get("opset", OPSET))
    model, arrays, notes = written.proto, written.arrays, written.notes
    converted.state_results = written.state
    large = {t.name: t for t in model.graph.initializer if not t.HasField("raw_data")}
    if sum(arrays[n].nbytes for n in large) > EXTERNAL:
        _write_beside(path, large, arrays)
        notes.append(f"the weights are in {os.path.basename(path)}.data, which belongs beside the file")
        files.write(path, model.SerializeToString())
    else:
        files.write(path, model_bytes(model, arrays))
    onnx.checker.check_model(path, full_check=True)
    return notes


def _validate(options: Mapping[str, Any]) -> None:
    if (opset := options.get("opset", OPSET)) not in OPSETS:
        raise ValueError(f"opset={opset}: expected {OPSETS[0]} to {OPSETS[-1]}")


def model_bytes(model: Any, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a model with the values of its initializers inside."""
    for tensor in model.graph.initializer:
        if not tensor.HasField("raw_data"):
            tensor.raw_data = _bytes(arrays[tensor.name])
    return bytes(model.SerializeToString())


def _bytes(x: np.ndarray) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def _write_beside(path: str, tensors: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays one after the other, as external data."""
    name = f"{os.path.basename(path)}.data"
    at = 0
    with files.replacing(f"{path}.data") as file:
        for key, tensor in tensors.items():
            gap = -at % _ALIGNMENT
            file.write(b"\0" * gap)
            at += gap
            data = _bytes(arrays[key])
            file.write(data)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.raw_data = b""
            external_data_helper.set_external_data(tensor, name, at, len(data))
            tensor.ClearField("raw_data")
            at += len(data)


FORMAT = Format("onnx", None, "onnx", ".onnx", _write, ("opset",), validate=_validate)
