"""A cache of the values of variables on the backend, which is validated by their addresses in memory.

After a call every variable holds its value in the memory of the backend's array, so that TensorFlow reads and writes as
usual. TensorFlow writes only memory without other references: while the tensor that was assigned to a variable is kept
here, a new value has another address. A variable whose value has the same address therefore has not been written.
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
    assigning,
    marks_of,
    read_variables,
    tensors_of,
)
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


class _CachedVariable:
    """One variable's value, as a tensor and as an array."""

    __slots__ = ("address", "array", "handle", "shape", "tensor")

    def __init__(self, handle: weakref.ref[tf.Tensor]) -> None:
        self.handle = handle
        self.tensor: tf.Tensor | None = None
        self.address: Any = object()  # nowhere
        self.shape: Any = None
        self.array: Any = None


class HeldVariables:
    """The values of variables on a backend, by the identity of their handles."""

    def __init__(self, xp: Backend) -> None:
        self.xp = xp
        self._entries: dict[int, _CachedVariable] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def group(self, handles: Sequence[tf.Tensor]) -> VariableGroup:
        """Return a group of variables that are read and written together."""
        return VariableGroup(self.xp, handles, [self._of(h) for h in handles])

    def _of(self, handle: tf.Tensor) -> _CachedVariable:
        key, cache = id(handle), self._entries
        if key not in cache:
            cache[key] = _CachedVariable(weakref.ref(handle, lambda _: cache.pop(key, None)))
        return cache[key]


class VariableGroup:
    """Variables that are read and written together. Raises TypeError for a resource that is no variable."""

    def __init__(self, xp: Backend, handles: Sequence[tf.Tensor], entries: list[_CachedVariable]) -> None:
        self.xp, self.handles, self._entries = xp, list(handles), entries
        handle_data = [_said_of(h) for h in handles]
        self._dtypes = tuple(x.dtype for x in handle_data)
        shapes = [tf.TensorShape(x.shape) for x in handle_data]
        self._writers: dict[tuple[int, ...], _Writer] = {}
        # their signature, if shapes cannot change
        self.signature = (self._dtypes, *map(tuple, shapes)) if all(s.is_fully_defined() for s in shapes) else None

    def read(self) -> list[Array]:
        """Return their values. Raises TensorFlow's FailedPreconditionError for a variable without a value."""
        tensors = read_variables(self.handles, self._dtypes)
        addresses, shapes = marks_of(tensors)
        known = self._entries
        if addresses != [entry.address for entry in known] or shapes != [entry.shape for entry in known]:
            for entry, tensor, address, shape in zip(known, tensors, addresses, shapes, strict=True):
                if address != entry.address or shape != entry.shape:
                    array = array_of(self.xp, tensor)  # may fail; the value is then unknown
                    entry.tensor, entry.address, entry.shape, entry.array = tensor, address, shape, array
        return [entry.array for entry in known]

    def write(self, positions: tuple[int, ...], arrays: Sequence[Array]) -> None:
        """Write arrays into the variables at these positions."""
        if not positions:
            return
        if positions not in self._writers:
            dtypes = tuple(tf.as_dtype(self._dtypes[i]) for i in positions)
            targets = [(self.handles[i], self._entries[i]) for i in positions]
            quantised = [(k, dtype) for k, dtype in enumerate(dtypes) if dtype.is_quantized]
            writer = assigning(dtypes), [h for h, _ in targets], [entry for _, entry in targets], quantised
            self._writers[positions] = writer
        function, handles, entries, quantised = self._writers[positions]
        tensors = tensors_of(self.xp, arrays)
        for k, dtype in quantised:  # plain integers elsewhere
            tensors[k] = tf.bitcast(tensors[k], dtype)
        assign_variables(handles, tensors, function)
        for entry, tensor, address, shape, array in zip(entries, tensors, *marks_of(tensors), arrays, strict=True):
            entry.tensor, entry.address, entry.shape, entry.array = tensor, address, shape, array


# (TensorFlow's function, the variables, their caches, the quantised ones)
_Writer = tuple[bytes, list[tf.Tensor], list[_CachedVariable], list[tuple[int, tf.DType]]]


@functools.cache
def held_on(xp: Backend) -> HeldVariables:
    return HeldVariables(xp)


def original_handle(handle: tf.Tensor) -> tf.Tensor:
    """Return the handle of which a function has passed a copy on: handles count by identity."""
    return getattr(handle, "_tensorgraft_handle", handle)


def _said_of(handle: tf.Tensor) -> Any:
    """Shape and dtype, as a handle tells them."""
    data = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or data is None or len(data.shape_and_type) != 1:
        raise TypeError(f"a {handle.dtype.name} is read where a variable is expected")
    return data.shape_and_type[0]
