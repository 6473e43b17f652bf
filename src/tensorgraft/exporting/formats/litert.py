"""Models of LiteRT (TensorFlow Lite), as TensorFlow's converter writes them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tensorgraft import files
from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.formats.saved_model import saved_module
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    if subject.writes(subject.evaluate(subject.arrays).buffers):
        raise NotImplementedError(f"{subject.name} writes its variables, which a model of LiteRT does not keep")
    module, signature = saved_module(converted, subject, sizes)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, os.path.join(folder, "model"), signatures={"serving_default": signature})
        converter = tf.lite.TFLiteConverter.from_saved_model(os.path.join(folder, "model"))
        model = converter.convert()
    files.write(path, model)
    return []


FORMAT = Format("litert", "tensorflow", "litert", ".tflite", _write)
