"""Single operations of a graph, computed by TensorFlow itself, eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute


class EagerOperation:
    """A node of a graph as an operation that TensorFlow runs at once."""

    def __init__(self, operation: tf.Operation) -> None:
        self._name, self._count, self._device = operation.type, len(operation.outputs), operation.device
        attributes = operation.node_def.attr
        self._attributes: list[Any] = []
        for attribute in operation.op_def.attr:
            if attribute.name in attributes:
                self._attributes += [attribute.name, _attribute(attributes[attribute.name])]

    def __call__(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        inputs, attributes = list(operands), tuple(self._attributes)
        if self._device:
            with tf.device(self._device):
                results = execute.execute(self._name, self._count, inputs, attributes, context.context())
        else:
            results = execute.execute(self._name, self._count, inputs, attributes, context.context())
        return results if isinstance(results, list) else []


def _attribute(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        items = value.list
        kind = next((k for k in ("s", "i", "f", "b", "type", "shape", "func") if len(getattr(items, k))), "s")
        return [_plain(kind, x) for x in getattr(items, kind)]
    return None if kind is None else _plain(kind, getattr(value, kind))


def _plain(kind: str, x: Any) -> Any:
    if kind == "shape":
        shape = tf.TensorShape(x)
        return None if shape.rank is None else shape.as_list()
    return x.name if kind == "func" else x
