"""A snapshot of TensorFlow: raw operations, with their inputs, outputs and attributes."""

from __future__ import annotations

import tensorflow as tf

from tensorgraft.cli.drift import Kinds, hashed


def kinds() -> Kinds:
    definitions, graph = {}, tf.Graph()
    for name in dir(tf.raw_ops):
        if not name.startswith("_"):
            definitions[name] = hashed(_definition_text(graph.op_def_for_type(name)))
    return {"raw operations": definitions}


def _definition_text(definition: object) -> str:
    text = str(definition)
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith(("summary", "description")))
