"""TensorFlow's part: single operations of a graph, run eagerly; and values that it shares with the backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from tensorgraft.frontends.tensorflow.exchange import array_of, tensor_of, view
from tensorgraft.hub.backend import Backend

Array = Any
_FEW = 16  # integers that may be a shape, axes or a count


class EagerOperation:
    """A node of a graph as an operation that TensorFlow runs at once."""

    def __init__(self, operation: tf.Operation) -> None:
        self._name, self._count, self._device = operation.type, len(operation.outputs), operation.device
        attributes = operation.node_def.attr
        self._attributes: list[Any] = []
        for asked in operation.op_def.attr:
            if asked.name in attributes:
                self._attributes += [asked.name, _attribute(attributes[asked.name])]

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


class Crossing:
    """A value that TensorFlow has, or the backend, or both."""

    __slots__ = ("_array", "_tensor")

    def __init__(self, tensor: tf.Tensor | None = None, array: Array = None) -> None:
        self._tensor, self._array = tensor, array

    def tensor(self, xp: Backend) -> tf.Tensor:
        if self._tensor is None:
            self._tensor = tensor_of(xp, self._array)
        return self._tensor

    def array(self, xp: Backend) -> Array:
        if self._array is None:
            self._array = array_of(xp, self._tensor)
        return self._array

    def small(self, xp: Backend) -> np.ndarray | None:
        """The values of a few integers; None for anything else."""
        x: Any = self._tensor if self._array is None else self._array
        if math.prod(x.shape) > _FEW:
            return None
        values = np.asarray(xp.to_numpy(x) if self._tensor is None else view(self._tensor))
        return values if values.dtype.kind in "iu" else None
