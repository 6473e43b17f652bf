"""`Array`, the type of arrays in annotations.

A module that computes by operations of a backend alone (`xp.add(x, y)`) annotates arrays as `Array`. One that calls
methods or functions of a framework writes `from tensorgraft.hub.array import NativeArray as Array`.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeAlias, TypeVar


class Array(Protocol):
    """An array of some backend: a `numpy.ndarray`, `jax.Array`, `torch.Tensor` or `tf.Tensor`, or a stand-in for one,
    such as a tracer, a variable of a recorded program or a `ShapeDtype`.

    Nothing beyond shape and dtype is the same in all frameworks, and their types differ too: `Backend.shape` gives a
    tuple of integers, `Backend.dtype_of` a NumPy dtype. Everything else is an operation of the array's backend.
    """

    @property
    def shape(self) -> Any:
        """The extents, in the framework's own type."""

    @property
    def dtype(self) -> Any:
        """The dtype, in the framework's own type."""


class HasShape:
    """A base class of arrays with a `shape`: the properties that follow from it."""

    __slots__ = ()
    shape: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


NativeArray: TypeAlias = Any
"""An array of one known backend, whose own attributes and methods the code uses. Not checked."""

Scalar: TypeAlias = bool | int | float | complex
"""A Python number, which takes the dtype of the array that it is combined with."""

OptionalArray = TypeVar("OptionalArray", Array, Array | None)
"""The argument and result of a function that returns None for None, and an array for an array."""
