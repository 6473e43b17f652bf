"""Values that TensorFlow shares with the backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.frontends.tensorflow.exchange import array_of, tensor_of, view
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_FEW = 16  # integers that may be a shape, axes or a count


class Crossing:
    """A value that TensorFlow has, or the backend, or both."""

    __slots__ = ("_array", "_tensor")

    def __init__(self, tensor: tf.Tensor | None = None, array: Array | None = None) -> None:
        self._tensor: Any = tensor
        self._array: Any = array

    def tensor(self, xp: Backend) -> tf.Tensor:
        if self._tensor is None:
            self._tensor = tensor_of(xp, self._array)
        return self._tensor

    def array(self, xp: Backend) -> Array:
        if self._array is None:
            self._array = array_of(xp, self._tensor)
        return self._array

    def small(self, xp: Backend) -> np.ndarray | None:
        """Return the values of a few integers; None for anything else."""
        x: Any = self._tensor if self._array is None else self._array
        if math.prod(x.shape) > _FEW:
            return None
        values = np.asarray(xp.to_numpy(x) if self._tensor is None else view(self._tensor))
        return values if values.dtype.kind in "iu" else None
