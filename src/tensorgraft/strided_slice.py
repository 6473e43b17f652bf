"""Strided geometries as boxes: of an array, or of a block of its flat memory.

Such reads and writes are slices, reshapes and transpositions, which compilers fold away.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Shape = tuple[int, ...]


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, in elements."""
    strides, n = [], 1
    for extent in reversed(shape):
        strides.append(n)
        n *= max(extent, 1)
    return tuple(reversed(strides))


class Box(NamedTuple):
    """A geometry as a box in a dense block of the flat storage.

    `flat[begin:end]`, padded if the storage ends before `end`, and reshaped to `dense`, contains the box that begins at
    `start` and has `extents`, in steps of `step`; its axes of more than one element are those of the geometry that
    move, ordered by falling stride.
    """

    begin: int
    end: int
    dense: Shape
    start: Shape
    extents: Shape
    step: Shape
    order: tuple[int, ...]  # the axis of the geometry that each axis of the box is
    shape: Shape
    fixed: tuple[int, ...]  # axes that do not move: of one element, or of stride 0
    backward: tuple[int, ...]  # axes of negative stride

    def outward(self, xp: Backend, box: Array) -> Array:
        """Reshape the box to the geometry's shape."""
        moving = sorted(self.order)
        if self.order:
            extents = tuple(self.shape[axis] for axis in self.order)
            box = xp.reshape(box, extents) if extents != self.extents else box
            perm = tuple(self.order.index(axis) for axis in moving)
            if perm != tuple(range(len(perm))):
                box = xp.permute_dims(box, perm)
        moving_shape = tuple(1 if axis in self.fixed else n for axis, n in enumerate(self.shape))
        if xp.shape(box) != moving_shape:
            box = xp.reshape(box, moving_shape)
        if moving_shape != self.shape:
            box = xp.broadcast_to(box, self.shape)
        return xp.flip(box, self.backward) if self.backward else box

    def inward(self, xp: Backend, value: Array) -> Array:
        """Reshape a value of the geometry's shape to the box; of elements in one place, the last is kept."""
        if self.backward:
            value = xp.flip(value, self.backward)
        if any(self.shape[axis] != 1 for axis in self.fixed):
            start = tuple(n - 1 if axis in self.fixed else 0 for axis, n in enumerate(self.shape))
            value = xp.slice(value, start, self.shape, (1,) * len(start))
        moving = sorted(self.order)
        value = xp.reshape(value, tuple(self.shape[axis] for axis in moving))
        perm = tuple(moving.index(axis) for axis in self.order)
        if perm != tuple(range(len(perm))):
            value = xp.permute_dims(value, perm)
        return xp.reshape(value, self.extents)


def _axes(shape: Shape, strides: Shape, offset: int) -> tuple[int, Shape, Shape, Shape]:
    """Return (the place of the least element, axes of negative stride, axes that do not move, the others by falling
    stride)."""
    backward = tuple(axis for axis, (n, s) in enumerate(zip(shape, strides, strict=True)) if s < 0 and n > 1)
    for axis in backward:
        offset += (shape[axis] - 1) * strides[axis]
    moving = [axis for axis, n in enumerate(shape) if n != 1 and strides[axis] != 0]
    fixed_axes = tuple(axis for axis in range(len(shape)) if axis not in moving)
    return offset, backward, fixed_axes, tuple(sorted(moving, key=lambda axis: (-abs(strides[axis]), axis)))


@functools.lru_cache(maxsize=65536)
def of_memory(shape: Shape, strides: Shape, offset: int, size: int) -> Box | None:
    """Return a geometry of a flat storage of `size` elements as a box; None if it is not one."""
    offset, backward, fixed_axes, order = _axes(shape, strides, offset)
    steps = [abs(s) for s in strides]
    if not order:
        return Box(offset, offset + 1, (1,), (0,), (1,), (1,), order, shape, fixed_axes, backward)
    # extents of the dense block: the ratio of each stride to the next
    outer, inner = steps[order[0]], steps[order[-1]]
    extents = [shape[axis] for axis in order]
    dense, start, rest, is_box = [shape[order[0]]], [0], offset % outer, True
    for before, axis in itertools.pairwise(order):
        ratio, remainder = divmod(steps[before], steps[axis])
        if remainder or ratio < shape[axis]:
            return None  # axes overlap or interleave
        at, rest = divmod(rest, steps[axis])
        is_box &= at + shape[axis] <= ratio
        dense.append(ratio)
        start.append(at)
    begin = offset // outer * outer
    if not is_box:  # an axis would wrap round the edge of the block: let the block begin at the offset itself
        begin, start, rest = offset, [0] * len(start), 0
    if inner > 1:
        dense.append(inner)
        start.append(rest)
        extents.append(1)
    end = begin + math.prod(dense)
    steps = [1] * len(dense)
    return Box(begin, end, tuple(dense), tuple(start), tuple(extents), tuple(steps), order, shape, fixed_axes, backward)


@functools.lru_cache(maxsize=65536)
def of_array(shape: Shape, strides: Shape, offset: int, full: Shape) -> Box | None:
    """Return a geometry as a basic slice of its storage's array of shape `full`, which then need not be
    flattened; None if it is not one."""
    offset, backward, fixed, order = _axes(shape, strides, offset)
    array_strides = contiguous_strides(full)
    start = [offset // array_stride % n for array_stride, n in zip(array_strides, full, strict=True)]
    counts, step = [1] * len(full), [1] * len(full)
    before = -1
    for axis in order:
        # the only axis of the array along which its elements can be
        at = next((a for a, n in enumerate(full) if n > 1 and array_strides[a] <= abs(strides[axis])), None)
        if at is None or at <= before or strides[axis] % array_strides[at]:
            return None
        by = abs(strides[axis]) // array_strides[at]
        if start[at] + (shape[axis] - 1) * by >= full[at]:
            return None
        counts[at], step[at], before = shape[axis], by, at
    return Box(0, math.prod(full), full, tuple(start), tuple(counts), tuple(step), order, shape, fixed, backward)


def take_box(xp: Backend, dense: Array, plan: Box) -> Array:
    """Return the box of a plan in its dense block."""
    if plan.extents == plan.dense:
        return dense
    ends = (at + (n - 1) * by + 1 for at, n, by in zip(plan.start, plan.extents, plan.step, strict=True))
    return xp.slice(dense, plan.start, tuple(ends), plan.step)


def block(xp: Backend, flat: Array, plan: Box) -> Array:
    """Return the dense block of a plan."""
    (size,) = xp.shape(flat)
    if plan.end > size:
        flat = xp.pad(flat, 0, [(-plan.begin, plan.end - size, 0)])
    elif plan.begin or plan.end != size:
        flat = xp.slice(flat, (plan.begin,), (plan.end,), (1,))
    return xp.reshape(flat, plan.dense)
