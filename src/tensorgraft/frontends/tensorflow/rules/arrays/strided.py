"""Slices, at positions that are known or that a loop computes, and writes into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tensorgraft.errors import ShapeError
from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.values import VariableCell, is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Ints = tuple[int, ...]


@dataclass(frozen=True)
class SliceMasks:
    """The masks of a strided slice: bits, one for each entry of its bounds."""

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0

    @classmethod
    def of(cls, node: GraphNode) -> SliceMasks:
        return cls(**{field.name: node.attributes.get(field.name, 0) for field in fields(cls)})

    def index(self, begin: np.ndarray, end: np.ndarray, strides: np.ndarray) -> tuple[Any, ...]:
        """Return the index as Python writes it. A shrunk axis is an integer that may be out of range."""
        entries: list[Any] = []
        for i in range(begin.size):
            bit = 1 << i
            if self.ellipsis_mask & bit:
                entries.append(Ellipsis)
            elif self.new_axis_mask & bit:
                entries.append(None)
            elif self.shrink_axis_mask & bit:
                entries.append(int(begin[i]))
            else:
                first = None if self.begin_mask & bit else int(begin[i])
                last = None if self.end_mask & bit else int(end[i])
                entries.append(slice(first, last, int(strides[i])))
        return tuple(entries)


@dataclass(frozen=True)
class Window:
    """A basic index of an array: `start`, `stop`, `step` (positive) and whether reversed, for each axis; and the shape
    of the result."""

    start: Ints
    stop: Ints
    step: Ints
    flipped: Ints
    shape: Ints

    @classmethod
    def of(cls, index: Sequence[Any], extents: Ints) -> Window:
        count = sum(1 for e in index if e is not None and e is not Ellipsis)
        if Ellipsis not in index:
            index = (*index, Ellipsis)
        start, stop, step, flipped, shape = [], [], [], [], []
        axis = 0
        for entry in index:
            if entry is None:
                shape.append(1)
                continue
            is_ellipsis = entry is Ellipsis
            for _ in range(len(extents) - count if is_ellipsis else 1):
                n = extents[axis]
                if isinstance(entry, int):
                    if not -n <= entry < n:
                        raise IndexError(
                            f"slice index {entry} of dimension {axis} is out of bounds for an axis with {n} elements"
                        )
                    first, last, by = entry % n, entry % n + 1, 1
                else:
                    first, last, by = (slice(None) if is_ellipsis else entry).indices(n)
                    length = len(range(first, last, by))
                    shape.append(length)
                    if not length:  # the start of an empty reversed slice may be out of range
                        first, last, by = 0, 0, 1
                    elif by < 0:
                        flipped.append(axis)
                        first, last, by = first + (length - 1) * by, first + 1, -by
                start.append(first)
                stop.append(last)
                step.append(by)
                axis += 1
        return cls(tuple(start), tuple(stop), tuple(step), tuple(flipped), tuple(shape))

    @property
    def inner(self) -> Ints:
        """The shape of the slice before axes are removed and inserted."""
        return tuple(len(range(b, e, s)) for b, e, s in zip(self.start, self.stop, self.step, strict=True))

    def read(self, xp: Backend, x: Array) -> Array:
        x = xp.slice(x, self.start, self.stop, self.step)
        if self.flipped:
            x = xp.flip(x, self.flipped)
        return xp.reshape(x, self.shape)

    def write(self, xp: Backend, x: Array, value: Array) -> Array:
        if not math.prod(self.inner):
            return x
        value = xp.reshape(xp.broadcast_to(value, self.shape), self.inner)
        if self.flipped:
            value = xp.flip(value, self.flipped)
        return xp.slice_update(x, value, self.start, self.step)


@rule("Slice", either=("begin",), known=("size",))
def slice_(xp: Backend, x: Array, begin: Any, size: np.ndarray) -> Array:
    extents = xp.shape(x)
    if is_known(begin):
        first = ints(begin)
        sizes = tuple(n - b if s < 0 else s for n, b, s in zip(extents, first, ints(size), strict=True))
        return xp.slice(x, first, tuple(b + s for b, s in zip(first, sizes, strict=True)), (1,) * len(first))
    if any(s < 0 for s in ints(size)):
        raise ShapeError(
            "a slice starts at a traced position and ends at the end of the axis, so that its size is unknown: pass"
            " its size"
        )
    return xp.dynamic_slice(x, _positions(xp, begin), ints(size))


def _positions(xp: Backend, begin: Array) -> list[Array]:
    return xp.unstack(xp.astype(begin, dtypes.int32), 0)


@rule("StridedSlice", either=("begin", "end"), known=("strides",))
def strided_slice(xp: Backend, x: Array, begin: Any, end: Any, strides: np.ndarray, *, node: GraphNode) -> Array:
    masks = SliceMasks.of(node)
    begin, end = _to_host(xp, begin), _to_host(xp, end)
    if is_known(begin) and is_known(end):
        return Window.of(masks.index(begin, end, strides), xp.shape(x)).read(xp, x)
    at, index, sizes = _dynamic_window(xp, masks, begin, strides, xp.shape(x))
    return Window.of(index, sizes).read(xp, xp.dynamic_slice(x, at, sizes))


def _to_host(xp: Backend, x: Any) -> Any:
    return x if is_known(x) or xp.is_traced(x) else xp.to_numpy(x)


def _dynamic_window(
    xp: Backend, masks: SliceMasks, begin: Any, strides: np.ndarray, extents: Ints
) -> tuple[list[Array], list[Any], Ints]:
    """Return (the begin of a window whose position is traced, the index within the window, its extents). Raises
    ShapeError if the extent of the result is traced."""
    begin = xp.unstack(xp.astype(lifted(xp, begin), dtypes.int32), 0)
    zeros = np.zeros(strides.size, np.int64)
    index = list(masks.index(zeros, zeros, strides))
    count = sum(1 for e in index if e is not None and e is not Ellipsis)
    zero = xp.zeros((), dtypes.int32)
    at: list[Array] = []
    sizes: list[int] = []
    for i, entry in enumerate(index):
        if isinstance(entry, int):
            n = extents[len(at)]
            at.append(xp.where(xp.less(begin[i], 0), xp.add(begin[i], n), begin[i]))
            sizes.append(1)
        elif entry is Ellipsis or isinstance(entry, slice):
            if entry is not Ellipsis and (entry.start, entry.stop) != (None, None):
                raise ShapeError(
                    "the bounds of a slice depend on values being traced, so that its size is unknown: use"
                    " tf.slice with a size, or tf.gather"
                )
            for _ in range(len(extents) - count if entry is Ellipsis else 1):
                sizes.append(extents[len(at)])
                at.append(zero)
    sizes += extents[len(at) :]
    at += [zero] * (len(extents) - len(at))
    return at, index, tuple(sizes)


def _put(xp: Backend, x: Array, masks: SliceMasks, begin: Any, end: Any, strides: np.ndarray, value: Array) -> Array:
    """Return `x` with `value` written to the elements that the slice selects."""
    begin, end, extents = _to_host(xp, begin), _to_host(xp, end), xp.shape(x)
    if is_known(begin) and is_known(end):
        return Window.of(masks.index(begin, end, strides), extents).write(xp, x, value)
    at, index, sizes = _dynamic_window(xp, masks, begin, strides, extents)
    part = Window.of(index, sizes).write(xp, xp.dynamic_slice(x, at, sizes), value)
    return xp.dynamic_update_slice(x, part, at)


@rule("StridedSliceGrad", known=("shape", "strides"), either=("begin", "end"))
def strided_slice_grad(
    xp: Backend, shape: np.ndarray, begin: Any, end: Any, strides: np.ndarray, d: Array, *, node: GraphNode
) -> Array:
    masks = SliceMasks.of(node)
    return _put(xp, xp.zeros(ints(shape), xp.dtype_of(d)), masks, begin, end, strides, d)


@rule("TensorStridedSliceUpdate", known=("strides",), either=("begin", "end"))
def tensor_strided_slice_update(
    xp: Backend, x: Array, begin: Any, end: Any, strides: np.ndarray, value: Array, *, node: GraphNode
) -> Array:
    masks = SliceMasks.of(node)
    return _put(xp, x, masks, begin, end, strides, value)


@rule("ResourceStridedSliceAssign", writes=True, either=("begin", "end"), known=("strides",))
def resource_strided_slice_assign(
    xp: Backend, cell: VariableCell, begin: Any, end: Any, strides: np.ndarray, value: Array, *, node: GraphNode
) -> list[Any]:
    cell.value = _put(xp, cell.value, SliceMasks.of(node), begin, end, strides, value)
    return []


@rule("XlaDynamicUpdateSlice")
def dynamic_update_slice(xp: Backend, x: Array, update: Array, starts: Array) -> Array:
    """Write `update` into `x` (as `keras.ops.slice_update` does); XLA moves starts so that the update fits."""
    starts = xp.astype(starts, dtypes.int32)
    return xp.dynamic_update_slice(x, update, [xp.reshape(i, ()) for i in xp.unstack(starts, 0)])
