"""Values in a graph other than arrays of the backend and known values (`numpy.ndarray`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.tensorflow.graph import GraphNode, Shape
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@dataclass(eq=False)
class VariableCell:
    """A variable while a program runs, with its current value."""

    value: Any
    name: str = ""


def is_known(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic)


@dataclass(frozen=True, eq=False)
class CountedRows:
    """An array whose number of rows is computed by a traced program: the rows of `array` before `count` (an int64) are
    valid, the others are padding. Operations without a rule in `counted` raise an error."""

    array: Any
    count: Any


@dataclass(frozen=True, eq=False)
class CountedSizes:
    """Integers that a traced program finds out, extents of `CountedRows` among them. `at_most` is a bound of each, and
    its value where it is not `open`."""

    array: Any
    at_most: np.ndarray
    open: np.ndarray


def lifted(xp: Backend, x: Any) -> Any:
    """Return a known value as an array of the backend. Raises TracedValueError for rows of which it is not known how
    many there are."""
    if isinstance(x, CountedRows):
        raise TracedValueError(
            "an array whose shape depends on values that are being traced is returned from a compiled program, or"
            " carried by a loop: call the program without compiling it, or return a value of known shape (a sum,"
            " a scatter, a mask)"
        )
    if isinstance(x, CountedSizes):
        return x.array
    return xp.asarray(np.asarray(x)) if is_known(x) else x


@dataclass(frozen=True, eq=False)
class TracedText:
    """A string that depends on values which a traced program will compute, for operations that print it: the first
    result of a node."""

    node: GraphNode
    operands: tuple[Any, ...]


def on_strings(node: GraphNode) -> str:
    """Return the message for an operation on strings whose operands are being traced."""
    return (
        f"{node.op} computes on strings, which the host does, and its operands are being traced: call the program"
        " without compiling it"
    )


@dataclass(frozen=True, eq=False)
class OptionalValue:
    """The values that a branch has kept for its derivative: none, where the other branch has run."""

    values: tuple[Any, ...] | None


@dataclass(frozen=True, eq=False)
class EitherOptional:
    """The values kept by each of two branches, of which it is not known which one has run. A branch of the derivative
    takes those of the branch that it belongs to."""

    yes: OptionalValue | EitherOptional
    no: OptionalValue | EitherOptional


@dataclass(frozen=True, eq=False)
class TensorList:
    """A list of tensors in one of three forms: separate elements (`items`, None for one that was not written); one
    array with spare capacity (`stack`) and a count (`length`), in a traced loop; or a count of elements that all have
    one known value (`common`)."""

    dtype: np.dtype
    shape: Shape  # the shape of an element
    items: tuple[Any, ...] | None = ()
    stack: Any = None
    length: Any = None
    common: np.ndarray | None = None

    def count(self) -> Any:
        return np.asarray(len(self.items), np.int32) if self.items is not None else self.length

    def extents(self) -> tuple[int, ...]:
        """Return the shape of an element. Raises ShapeError where it is not known."""
        shapes = [tuple(x.shape) for x in self.items or () if x is not None]
        if self.stack is not None or self.common is not None:
            return tuple(self.stack.shape)[1:] if self.common is None else self.common.shape
        if shapes:
            return shapes[0]
        if self.shape is None or None in self.shape:
            raise ShapeError("a tensor list has elements of unknown shape: pass element_shape= to tf.TensorArray")
        return tuple(n for n in self.shape if n is not None)

    def item(self, xp: Backend, i: int) -> Any:
        assert self.items is not None
        x = self.items[i]
        return np.zeros(self.extents(), self.dtype) if x is None else x

    def get(self, xp: Backend, index: Any) -> Any:
        if self.common is not None:
            return self.common
        if self.items is not None and is_known(index):
            return self.item(xp, int(index))
        stacked_list = self.stacked(xp)
        return _row(xp, stacked_list.stack, index)

    def set(self, xp: Backend, index: Any, x: Any, grows: bool = False) -> TensorList:
        """`grows`: with room for any index."""
        if self.items is not None and is_known(index):
            i = int(index)
            items = self.items + (None,) * (i + 1 - len(self.items))
            return replace(self, items=(*items[:i], x, *items[i + 1 :]))
        if grows:
            raise ShapeError(
                "a tensor list that grows (dynamic_size=True) is written at a traced index: create the"
                " tf.TensorArray with its final size, without dynamic_size"
            )
        shaped = replace(self, shape=tuple(x.shape)) if self.shape is None or None in self.shape else self
        stacked_list = shaped.stacked(xp)
        return replace(stacked_list, stack=_put(xp, stacked_list.stack, index, lifted(xp, x)))

    def push(self, xp: Backend, x: Any) -> TensorList:
        if self.items is not None:
            return replace(self, items=(*self.items, x))
        if self.common is not None:
            if not _is_equal(self.common, x):
                raise ShapeError(
                    "a tensor list of equal numbers gets a different number in a loop that is being traced"
                )
            return replace(self, length=_plus(xp, self.length, 1))
        stack = _put(xp, self.stack, self.length, lifted(xp, x))
        return replace(self, stack=stack, length=_plus(xp, self.length, 1))

    def pop(self, xp: Backend) -> tuple[TensorList, Any]:
        if self.items is not None:
            return replace(self, items=self.items[:-1]), self.item(xp, len(self.items) - 1)
        last = _plus(xp, self.length, -1)
        return replace(self, length=last), _row(xp, self.stack, last) if self.common is None else self.common

    def resized(self, xp: Backend, n: int) -> TensorList:
        if self.items is not None:
            return replace(self, items=(self.items + (None,) * n)[:n])
        return self.stacked(xp, n, n)

    def stacked(self, xp: Backend, capacity: int | None = None, length: Any = None) -> TensorList:
        """Return the list in one array, with room for so many elements (of lists that are apart: those there are, if
        None)."""
        if self.common is not None:
            if not is_known(self.length):
                raise ShapeError("a tensor list to be written has a length that depends on values being traced")
            return self.unstacked().stacked(xp, capacity, length)
        if self.items is None:
            stack, capacity_now = self.stack, self.stack.shape[0]
            if capacity is not None and capacity > capacity_now:
                rest = xp.zeros((capacity - capacity_now, *self.extents()), self.dtype)
                stack = xp.concat([stack, rest], axis=0)
            return replace(self, stack=stack, length=self.length if length is None else np.asarray(length, np.int32))
        capacity = len(self.items) if capacity is None else max(capacity, len(self.items))
        extents = self.extents()
        if all(x is None for x in self.items):
            stack = xp.zeros((capacity, *extents), self.dtype)
        else:
            rows = [lifted(xp, self.item(xp, i)) for i in range(len(self.items))]
            if any(isinstance(x, TensorList) or tuple(x.shape) != extents for x in rows):
                raise ShapeError(
                    "elements of a tensor list have different shapes, but a program being traced requires one shape"
                )
            fillers = [xp.zeros((capacity - len(rows), *extents), self.dtype)] if capacity > len(rows) else []
            stack = xp.concat([xp.stack(rows, axis=0), *fillers], axis=0)
        return replace(self, items=None, stack=stack, length=self.count() if length is None else length)

    def unstacked(self) -> TensorList:
        """Return a list of equal elements, each of them by itself, where it is known how many there are."""
        if self.common is None or not is_known(self.length):
            return self
        return replace(self, items=(self.common,) * int(self.length), length=None, common=None)

    def array(self, xp: Backend) -> Array:
        """Return all elements in one array. Raises ShapeError where it is not known how many there are."""
        if self.items is not None or self.common is not None:
            return self.stacked(xp).stack
        if is_known(self.length):
            return xp.take_slice(self.stack, 0, 0, int(self.length))
        raise ShapeError("a tensor list to be stacked has a length that depends on values being traced")


def _is_equal(a: Any, b: Any) -> bool:
    return is_known(a) and is_known(b) and a.dtype == b.dtype and np.array_equal(a, b)


def all_the_same(items: Sequence[Any]) -> np.ndarray | None:
    """Return the known value that all of these are; None where they are not."""
    return items[0] if items and all(_is_equal(items[0], x) for x in items) else None


def _plus(xp: Backend, x: Any, n: int) -> Any:
    return np.asarray(int(x) + n, np.int32) if is_known(x) else xp.add(x, n)


def _start(xp: Backend, stack: Array, index: Any) -> list[Array]:
    index = xp.astype(lifted(xp, index), np.dtype(np.int32))
    zero = xp.zeros((), np.dtype(np.int32))
    return [xp.reshape(index, ()), *[zero] * (xp.ndim(stack) - 1)]


def _row(xp: Backend, stack: Array, index: Any) -> Array:
    if is_known(index):
        return xp.squeeze(xp.take_slice(stack, 0, int(index), int(index) + 1), 0)
    shape = xp.shape(stack)
    return xp.reshape(xp.dynamic_slice(stack, _start(xp, stack, index), (1, *shape[1:])), shape[1:])


def _put(xp: Backend, stack: Array, index: Any, x: Array) -> Array:
    return xp.dynamic_update_slice(stack, xp.expand_dims(x, 0), _start(xp, stack, index))


def added(xp: Backend, lists: Sequence[TensorList]) -> TensorList:
    """Their elements' sums."""
    if all(x.items is not None for x in lists):
        count = max(len(x.items or ()) for x in lists)
        sums = []
        for i in range(count):
            present = [x.items[i] for x in lists if x.items is not None and i < len(x.items) and x.items[i] is not None]
            total = present[0] if present else None
            for x in present[1:]:
                total = xp.add(lifted(xp, total), lifted(xp, x))
            sums.append(total)
        return replace(lists[0], items=tuple(sums))
    extents = next(x for x in lists if x.items is None).extents()
    stacked_lists = [replace(x, shape=extents).stacked(xp) for x in lists]
    capacity = max(x.stack.shape[0] for x in stacked_lists)
    total = stacked_lists[0].stacked(xp, capacity)
    for x in stacked_lists[1:]:
        total = replace(total, stack=xp.add(total.stack, x.stacked(xp, capacity).stack))
    return total
