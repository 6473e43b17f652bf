"""What variables hold, on the backend: kept from call to call, and found to be out of date by where it lies.

After a call every variable holds its value, in the memory of the backend's array, so that TensorFlow reads and writes
as ever. It writes into memory that nobody else holds: while the tensor that a variable was given is kept here, another
value lies elsewhere. So a variable whose value lies where it was put has not been written.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorgraft.frontends.tensorflow.exchange import (
    array_of,
    assign_variables,
    mark_of,
    read_variables,
    tensor_and_mark,
)
from tensorgraft.hub.backend import Backend

Array = Any


class _Held:
    __slots__ = ("array", "handle", "mark", "tensor")

    def __init__(self, handle: weakref.ref[tf.Tensor]) -> None:
        self.handle = handle
        self.tensor: tf.Tensor | None = None
        self.mark: Any = None
        self.array: Array = None


class HeldVariables:
    """By the identity of their handles."""

    def __init__(self, xp: Backend) -> None:
        self.xp = xp
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def group(self, handles: Sequence[tf.Tensor]) -> VariableGroup:
        """Variables that are read and written together."""
        return VariableGroup(self.xp, handles, [self._of(h) for h in handles])

    def _of(self, handle: tf.Tensor) -> _Held:
        key, held = id(handle), self._held
        if key not in held:
            held[key] = _Held(weakref.ref(handle, lambda _: held.pop(key, None)))
        return held[key]


class VariableGroup:
    """Raises TypeError for a resource that is no variable."""

    def __init__(self, xp: Backend, handles: Sequence[tf.Tensor], held: list[_Held]) -> None:
        self.xp, self.handles, self._held = xp, list(handles), held
        said = [_said_of(h) for h in handles]
        self._dtypes = tuple(x.dtype for x in said)
        shapes = [tf.TensorShape(x.shape) for x in said]
        # what they all look like, where that cannot change
        self.look = (self._dtypes, *map(tuple, shapes)) if all(s.is_fully_defined() for s in shapes) else None

    def read(self) -> list[Array]:
        """Raises TensorFlow's FailedPreconditionError for a variable without a value."""
        arrays = []
        for held, tensor in zip(self._held, read_variables(self.handles, self._dtypes), strict=True):
            mark = mark_of(tensor)
            if mark is None or mark != held.mark:
                held.tensor, held.mark, held.array = tensor, mark, array_of(self.xp, tensor)
            arrays.append(held.array)
        return arrays

    def write(self, places: Sequence[int], arrays: Sequence[Array]) -> None:
        """Into those at these places."""
        lent = [tensor_and_mark(self.xp, x) for x in arrays]
        assign_variables([self.handles[i] for i in places], [tensor for tensor, _ in lent])
        for i, (tensor, mark), array in zip(places, lent, arrays, strict=True):
            held = self._held[i]
            held.tensor, held.mark, held.array = tensor, mark, array


@functools.cache
def held_on(xp: Backend) -> HeldVariables:
    return HeldVariables(xp)


def original_handle(handle: tf.Tensor) -> tf.Tensor:
    """That of which a function has handed a copy on: handles count by identity."""
    return getattr(handle, "_tensorgraft_handle", handle)


def _said_of(handle: tf.Tensor) -> Any:
    """Shape and dtype, as a handle tells them."""
    data = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or data is None or len(data.shape_and_type) != 1:
        raise TypeError(f"a {handle.dtype.name} that is no variable is read where only those are")
    return data.shape_and_type[0]
