"""A snapshot of TensorFlow: raw operations, with their inputs, outputs and attributes."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensorgraft.cli.drift import Kinds, hashed


def kinds() -> Kinds:
    found = {}
    for name in dir(tf.raw_ops):
        definition = op_def_registry.get(name)
        if definition is not None:
            found[name] = hashed(_said(definition))
    return {"raw operations": found}


def _said(definition: object) -> str:
    text = str(definition)
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith(("summary", "description")))
