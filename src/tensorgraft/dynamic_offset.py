"""Reads and writes of a storage at an offset that is an operand: one program serves all offsets of a form.

A program depends on shape and strides, and on the offset only in whether a window wraps around the end of the rows of
the memory. Offsets therefore fall into a few forms (`Form`), which are determined at the call; within a form the offset
is an ordinary operand. Windows are inside the storage, because a tensor has an offset at which its strides fit.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorgraft import storage, strided_slice
from tensorgraft.hub import cold, dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, positions
from tensorgraft.strided_slice import Box, contiguous_strides

Shape = tuple[int, ...]


class Form(NamedTuple):
    """The way in which a tensor is read and written at an offset: all properties of the offset that a program depends
    on.

    empty: there are no elements. slice: a slice of the array. block: a slice of a dense block of the flat memory, which
    begins at a multiple of the outermost stride (`aligned`) or else at the tensor's offset, and may extend beyond the
    storage (`short`). points: single elements. memory: a view, if the backend has views.
    """

    kind: Literal["empty", "slice", "block", "points", "memory"]
    aligned: bool = False
    short: bool = False


@functools.lru_cache(maxsize=4096)
def form_of(
    shape: Shape, strides: Shape, offset: int, dtype: np.dtype, array_shape: Shape, array_dtype: np.dtype
) -> Form:
    """Return the form of a geometry of a storage whose array has the shape `array_shape` and the dtype
    `array_dtype`."""
    if 0 in shape:
        return Form("empty")
    if dtype is dtypes.complex32:
        return form_of(*storage.in_halves(Geometry(shape, strides, offset, dtype)), array_shape, array_dtype)
    if dtype == array_dtype and strided_slice.of_array.__wrapped__(shape, strides, offset, array_shape) is not None:
        return Form("slice")
    size = math.prod(array_shape) * array_dtype.itemsize // dtype.itemsize
    plan = strided_slice.of_memory.__wrapped__(shape, strides, offset, size)
    if plan is None:
        return Form("points")
    return Form("block", plan.begin % _outermost(plan) == 0, plan.end > size)


def read(xp: Backend, array: Array, geometry: Geometry, form: Form, offset: Array) -> Array:
    """Compute `storage.read` with the offset given as an integer array without axes; the one in `geometry` is
    ignored."""
    shape, dtype = geometry.shape, geometry.dtype
    if form.kind == "empty":
        return xp.zeros(shape, dtypes.of_values(dtype))
    offset = _integer(xp, offset)
    if dtype is dtypes.complex32:
        halves = read(xp, array, storage.in_halves(geometry), form, xp.multiply(offset, 2))
        return storage.from_halves(xp, halves)
    if form.kind == "slice":
        plan, start = _slice(xp, geometry, offset, xp.shape(array))
        return plan.outward(xp, _window(xp, array, start, plan))
    flat = _flat(xp, array, dtype)
    if form.kind == "points":
        return xp.gather(flat, (_points(xp, geometry, offset),))
    block = _Block(xp, geometry, form, offset, flat)
    return block.plan.outward(xp, block.box())


def read_concrete(xp: Backend, array: Array, geometry: Geometry) -> Array:
    """Compute `storage.read` of an array that has values, by a program that serves every offset of the form."""
    if not geometry.offset or xp.mutable or xp.compound or xp.is_traced(array):
        return storage.read(xp, array, geometry)
    out = cold.attempt(xp, ("look", geometry), lambda host, x: storage.read(host, x, geometry), (array,))
    if out is not None:
        return out[0]
    form = form_of(*geometry, tuple(xp.shape(array)), xp.dtype_of(array))
    return _reader(xp, geometry._replace(offset=0), form)(array, xp.place(geometry.offset))[0]


@functools.lru_cache(maxsize=256)
def _reader(xp: Backend, geometry: Geometry, form: Form) -> Callable[..., tuple[Array, ...]]:
    return xp.compile(lambda array, offset: (read(xp, array, geometry, form, offset),))


def write(xp: Backend, array: Array, geometry: Geometry, value: Array, form: Form, offset: Array) -> Array:
    """Compute `storage.write` with the offset an operand, on backends whose arrays are immutable."""
    if form.kind == "empty":
        return array
    offset = _integer(xp, offset)
    if geometry.dtype is dtypes.complex32:
        halves = storage.to_halves(xp, value)
        return write(xp, array, storage.in_halves(geometry), halves, form, xp.multiply(offset, 2))
    array_shape, array_dtype = xp.shape(array), xp.dtype_of(array)
    if form.kind == "slice":
        plan, start = _slice(xp, geometry, offset, array_shape)
        value = plan.inward(xp, value)
        if max(plan.step) > 1:  # into the window that the steps span
            origin = (0,) * len(array_shape)
            value = xp.slice_update(xp.dynamic_slice(array, start, _spans(plan)), value, origin, plan.step)
        return xp.dynamic_update_slice(array, value, start)
    flat = _flat(xp, array, geometry.dtype)
    if form.kind == "points":
        flat = xp.scatter(flat, (_points(xp, geometry, offset),), value)
    else:
        block = _Block(xp, geometry, form, offset, flat)
        flat = block.put(block.plan.inward(xp, value))
    if array_dtype != geometry.dtype:
        flat = xp.bitcast(flat, array_dtype)
    return xp.reshape(flat, array_shape)


def _integer(xp: Backend, offset: Any) -> Array:
    return xp.asarray(np.asarray(offset, np.int64)) if isinstance(offset, int) else xp.astype(offset, dtypes.int64)


def _flat(xp: Backend, array: Array, dtype: np.dtype) -> Array:
    flat = xp.reshape(array, (math.prod(xp.shape(array)),))
    return flat if xp.dtype_of(array) == dtype else xp.bitcast(flat, dtype)


def _points(xp: Backend, geometry: Geometry, offset: Array) -> Array:
    return xp.add(positions(xp, geometry._replace(offset=0)), offset)


def _first_element(geometry: Geometry) -> int:
    """Return the distance from the offset to the first element in memory: negative with negative strides, else 0."""
    return sum((n - 1) * s for n, s in zip(geometry.shape, geometry.strides, strict=True) if s < 0)


def _least_offset(xp: Backend, geometry: Geometry, offset: Array) -> Array:
    least = _first_element(geometry)
    return xp.add(offset, least) if least else offset


def _number(xp: Backend, n: int) -> Array:
    return xp.full((), n, dtypes.int64)


def _divided(xp: Backend, n: Array, by: int) -> tuple[Array, Array]:
    """Quotient and remainder."""
    if by == 1:
        return n, _number(xp, 0)
    quotient = xp.integer_floor_divide(n, _number(xp, by))
    return quotient, xp.subtract(n, xp.multiply(quotient, _number(xp, by)))


def _spans(plan: Box) -> Shape:
    """Return the extents of the box including the elements that its steps skip."""
    return tuple((n - 1) * by + 1 for n, by in zip(plan.extents, plan.step, strict=True))


def _window(xp: Backend, dense: Array, start: Sequence[Array], plan: Box) -> Array:
    """Return the box of a plan in an array, from `start`."""
    spans = _spans(plan)
    if spans != xp.shape(dense):
        dense = xp.dynamic_slice(dense, start, spans)
    return dense if spans == plan.extents else xp.slice(dense, (0,) * len(spans), spans, plan.step)


def _slice(xp: Backend, geometry: Geometry, offset: Array, array_shape: Shape) -> tuple[Box, list[Array]]:
    """Return (how the geometry is a slice of an array of shape `array_shape`, where that begins)."""
    plan = strided_slice.of_array(geometry.shape, geometry.strides, -_first_element(geometry), array_shape)
    assert plan is not None
    rest, start = _least_offset(xp, geometry, offset), []
    for array_stride, span, n in zip(contiguous_strides(array_shape), _spans(plan), array_shape, strict=True):
        if n == 1:
            start.append(_number(xp, 0))
            continue
        at, rest = _divided(xp, rest, array_stride)
        start.append(at if span < n else _number(xp, 0))
    return plan, start


def _outermost(plan: Box) -> int:
    """Return the stride of the first axis of a block."""
    return math.prod(plan.dense[1:])


class _Block:
    """The dense block of flat memory in which a geometry is a box."""

    def __init__(self, xp: Backend, geometry: Geometry, form: Form, offset: Array, flat: Array) -> None:
        self.xp = xp
        self.size = xp.shape(flat)[0]
        plan = strided_slice.of_memory(geometry.shape, geometry.strides, -_first_element(geometry), self.size)
        assert plan is not None
        self.plan = plan
        outer = _outermost(plan)
        self.extent = math.prod(plan.dense)
        # only the first element of the last outermost stride needs to be in the storage: pad for the others
        self.flat = xp.pad(flat, 0, [(0, outer - 1, 0)]) if form.short else flat
        self.all = not form.short and self.extent == self.size
        self.begin = _least_offset(xp, geometry, offset)
        self.start: list[Array] | None = None  # the begin of the box; None: that of the block
        if form.aligned:
            block, rest = _divided(xp, self.begin, outer)
            self.begin = xp.multiply(block, _number(xp, outer))
            self.start = [_number(xp, 0)]
            for before, smaller in itertools.pairwise(_steps(plan)):
                at, rest = _divided(xp, rest, smaller)
                self.start.append(at if before > smaller else _number(xp, 0))
        if plan.extents == plan.dense:
            self.start = None

    def dense(self) -> Array:
        xp = self.xp
        block = self.flat if self.all else xp.dynamic_slice(self.flat, [self.begin], (self.extent,))
        return xp.reshape(block, self.plan.dense)

    def box(self) -> Array:
        if self.start is not None:
            return _window(self.xp, self.dense(), self.start, self.plan)
        return strided_slice.take_box(self.xp, self.dense(), self.plan)

    def put(self, value: Array) -> Array:
        """Return the flat memory with another box."""
        xp, plan = self.xp, self.plan
        if plan.extents != plan.dense:
            if self.start is None:
                value = xp.slice_update(self.dense(), value, (0,) * len(plan.dense), (1,) * len(plan.dense))
            else:
                value = xp.dynamic_update_slice(self.dense(), value, self.start)
        value = xp.reshape(value, (self.extent,))
        flat = value if self.all else xp.dynamic_update_slice(self.flat, value, [self.begin])
        return flat if xp.shape(flat) == (self.size,) else xp.slice(flat, (0,), (self.size,), (1,))


def _steps(plan: Box) -> Shape:
    """Return the distance between neighbours along each axis of a block."""
    return contiguous_strides(plan.dense)
