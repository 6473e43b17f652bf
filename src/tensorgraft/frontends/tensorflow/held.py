"""What variables hold, on the backend: kept from call to call, and found to be out of date by where it lies.

After a call every variable holds its value, in the memory of the backend's array, so that TensorFlow reads and writes
as ever. It writes into memory that nobody else holds: while the tensor that a variable was given is kept here, another
value lies elsewhere. So a variable whose value lies where it was put has not been written.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensorgraft.frontends.tensorflow.exchange import array_of, assign_variable, read_variable, tensor_of, view
from tensorgraft.hub.backend import Backend

Array = Any


@dataclass(slots=True)
class _Held:
    handle: weakref.ref[tf.Tensor]
    tensor: tf.Tensor
    address: int
    array: Array


class HeldVariables:
    """By the identity of their handles."""

    def __init__(self, xp: Backend) -> None:
        self.xp = xp
        self._held: dict[int, _Held] = {}

    def read(self, handle: tf.Tensor) -> Array:
        """Raises TensorFlow's FailedPreconditionError for a variable without a value."""
        tensor = read_variable(handle, dtype_of(handle))
        held = self._held.get(id(handle))
        address = _address(tensor)
        if held is not None and address and held.address == address:
            return held.array
        array = array_of(self.xp, tensor)
        self._keep(handle, tensor, address, array)
        return array

    def write(self, handle: tf.Tensor, array: Array) -> None:
        tensor = tensor_of(self.xp, array)
        assign_variable(handle, tensor)
        self._keep(handle, tensor, _address(tensor), array)

    def _keep(self, handle: tf.Tensor, tensor: tf.Tensor, address: int, array: Array) -> None:
        key, held = id(handle), self._held
        if (known := held.get(key)) is not None:
            known.tensor, known.address, known.array = tensor, address, array
        else:
            held[key] = _Held(weakref.ref(handle, lambda _: held.pop(key, None)), tensor, address, array)


@functools.cache
def held_on(xp: Backend) -> HeldVariables:
    return HeldVariables(xp)


def original_handle(handle: tf.Tensor) -> tf.Tensor:
    """That of which a function has handed a copy on: handles count by identity."""
    return getattr(handle, "_tensorgraft_handle", handle)


def is_variable(handle: tf.Tensor) -> bool:
    return handle.dtype == tf.resource and dtype_of(handle) is not None


def dtype_of(handle: tf.Tensor) -> tf.DType | None:
    data = getattr(handle, "_handle_data", None)
    return tf.as_dtype(data.shape_and_type[0].dtype) if data is not None and len(data.shape_and_type) == 1 else None


def _address(tensor: tf.Tensor) -> int:
    """Where a value lies; 0 for what is read anew each time: numbers and what has no elements."""
    values = view(tensor) if tensor.shape.rank else None
    return 0 if values is None or not values.size else values.__array_interface__["data"][0]
