"""Storage: views and in-place writes on any backend's arrays, immutable ones included.

A `Storage` holds one array of a backend. A tensor is a storage and a `Geometry`: shape, strides and offset, counted in
elements of the tensor's dtype along the storage's elements in row-major order, as in PyTorch. `read` gives the array
that a geometry sees; `write` gives the storage's array with new values where the geometry looks. Both are pure
functions on immutable backends, so gradients and traces go through them; on mutable ones they are real views and real
writes. All tensors of one storage see each write, because it replaces the storage's array.

The cheap cases (whole, reshape, permutation, basic slice, broadcast) come down to reshapes, slices and transpositions,
which compilers fold away; anything else (overlapping windows, say) is a gather or a scatter.

Elements of complex32, in which no framework computes, are pairs of float16 in the storage's array. They are read as
complex64, which holds them exactly, and written rounded.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorgraft import strided_slice
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array, NativeArray
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Placement
from tensorgraft.strided_slice import contiguous_strides

Shape = tuple[int, ...]


# type of a cold tier's arrays -> a function that gives one as a host array over the same memory, row-major
host_view: dict[type, Callable[[Any], np.ndarray]] = {np.ndarray: lambda x: x}


made_during: list[weakref.WeakSet[Storage]] = []  # for each trace in progress, the storages that were created in it


class Storage:
    """One array of a backend, replaced as a whole on every write (mutable backends write into it)."""

    __slots__ = ("__weakref__", "array", "backend", "capture", "cold", "placement", "shared")

    def __init__(self, array: Array | None, backend: Backend, cold: Any = None) -> None:
        if cold is None:
            self.array: NativeArray = array
        self.cold = cold  # the memory of a `ColdStorage`
        self.backend = backend
        self.placement: Placement | None = None  # the placement of a `Placed` storage
        self.capture: Any = None  # the trace that knows of it (front ends)
        self.shared = False  # its memory is known outside (DLPack, a caller's own array): never to be donated
        if made_during:
            for those in made_during:
                those.add(self)

    def cool(self, cold: Any) -> None:
        """Replace the array by memory of a cold tier that has no other references."""
        del self.array
        self.cold = cold
        self.__class__ = ColdStorage


_array_in = vars(Storage)["array"].__get__
put_array = vars(Storage)["array"].__set__  # (storage, array): for an array that has its placement already


class ColdStorage(Storage):
    """A storage with memory of a cold tier, `cold`, which has no other reference and may be written in place. It
    becomes an ordinary storage with an array when its array is read or replaced."""

    __slots__ = ()

    def _adopted(self) -> Array:
        cold = self.cold
        if cold is not None:
            self._set(self.backend.adopt(host_view[cold.__class__](cold)))
        return _array_in(self)

    def _set(self, array: Array) -> None:
        put_array(self, array)
        self.cold = None
        self.__class__ = Storage  # type: ignore[assignment]

    array = property(_adopted, _set)


class Placed(Storage):
    """A storage whose array stays spread over a mesh as `placement` says, whatever is written: `pin` makes one."""

    __slots__ = ()

    def _set(self, array: Array) -> None:
        assert self.placement is not None
        put_array(self, self.backend.constrain(array, self.placement))

    array = property(_array_in, _set)


def put_as_it_is(cell: Storage, array: Array) -> None:
    """Put an array into a storage without the move to where that of a `Placed` one is to be, which may fail."""
    if cell.__class__ is Placed:
        put_array(cell, array)
    else:
        cell.array = array


def move_to_placement(cell: Storage) -> None:
    """Move the array of a `Placed` storage, which was put there without its placement, to the placement."""
    cell.array = cell.array


def pin(cell: Storage, array: Array, placement: Placement) -> None:
    """Put `array`, which has the storage's elements in any shape, into it, and keep it placed so from now on.

    Raises ValueError, before anything is changed, where the backend cannot."""
    with cell.backend.scope():
        array = cell.backend.constrain(array, placement)
    cell.placement, cell.cold = placement, None
    cell.__class__ = Placed
    put_array(cell, array)


class Geometry(NamedTuple):
    """The shape and strides of a tensor in its storage; strides and offset in elements of `dtype`."""

    shape: Shape
    strides: Shape
    offset: int
    dtype: np.dtype


def in_halves(geometry: Geometry) -> Geometry:
    """Return the geometry, with one more axis, of the parts of complex32 elements."""
    shape, strides, offset, _ = geometry
    return Geometry((*shape, 2), (*[2 * s for s in strides], 1), 2 * offset, dtypes.float16)


def from_halves(xp: Backend, parts: Array) -> Array:
    """Return complex64 (...) of float16 (..., 2)."""
    return xp.complex(*xp.unstack(xp.astype(parts, dtypes.float32), xp.ndim(parts) - 1))


def to_halves(xp: Backend, values: Array) -> Array:
    """Return float16 (..., 2), rounded, of complex64 (...)."""
    return xp.astype(xp.stack([xp.real(values), xp.imag(values)], xp.ndim(values)), dtypes.float16)


def in_rows(xp: Backend, array: Array) -> bool:
    """Return True if an array of a mutable backend is contiguous and can be a storage. Read-only arrays have to be
    copied in any case."""
    memory = xp.memory(array)
    return memory is None or same_strides(xp.shape(array), memory[1], contiguous_strides(xp.shape(array)))


def contiguous_geometry(shape: Shape, dtype: np.dtype) -> Geometry:
    """Return the geometry of a contiguous array that fills its storage."""
    return Geometry(shape, contiguous_strides(shape), 0, dtype)


def same_strides(shape: Shape, a: Shape, b: Shape) -> bool:
    """Return True if two strides are the same for a shape; those of axes with one element do not matter."""
    return all(n <= 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


def read(xp: Backend, array: Array, geometry: Geometry) -> Array:
    """Return the array, of the geometry's shape and dtype (complex64 for complex32), that the geometry sees in a
    storage's `array`."""
    shape, strides, offset, dtype = geometry
    if xp.compound:
        return xp.read_view(array, geometry)
    if dtype is dtypes.complex32:
        return from_halves(xp, read(xp, array, in_halves(geometry)))
    if xp.mutable:
        if strides and min(strides) < 0:
            forward_view, backward = _without_negative_strides(geometry)
            return xp.flip(xp.strided_view(array, *forward_view), backward)
        return xp.strided_view(array, shape, strides, offset, dtype)
    return xp.recall(array, geometry, _read) if xp.recalls else _read(xp, array, geometry)


def _read(xp: Backend, array: Array, geometry: Geometry) -> Array:
    shape, strides, offset, dtype = geometry
    array_shape = xp.shape(array)
    as_is = xp.dtype_of(array) == dtype
    if as_is and array_shape == shape and not offset and same_strides(shape, strides, contiguous_strides(shape)):
        return array
    if 0 in shape:
        return xp.zeros(shape, dtype)
    if as_is:
        plan = strided_slice.of_array(shape, strides, offset, array_shape)
        if plan is not None:
            return plan.outward(xp, strided_slice.take_box(xp, array, plan))
    flat = xp.reshape(array, (math.prod(array_shape),))
    if not as_is:
        flat = xp.bitcast(flat, dtype)
    plan = strided_slice.of_memory(shape, strides, offset, xp.shape(flat)[0])
    if plan is None:
        return xp.gather(flat, (positions(xp, geometry),))
    return plan.outward(xp, strided_slice.take_box(xp, strided_slice.block(xp, flat, plan), plan))


def write(xp: Backend, array: Array, geometry: Geometry, value: Array) -> Array:
    """Return the storage's array with `value` (of the geometry's shape and dtype; complex64, which is rounded, for
    complex32) written at the geometry.

    On a mutable backend `array` itself is changed and returned.
    """
    shape, strides, offset, dtype = geometry
    if xp.compound:
        return xp.put(array, geometry, value)
    if dtype is dtypes.complex32:
        return write(xp, array, in_halves(geometry), to_halves(xp, value))
    if xp.mutable:
        if strides and min(strides) < 0:
            forward_view, backward = _without_negative_strides(geometry)
            xp.assign(xp.strided_view(array, *forward_view), xp.flip(value, backward))
        else:
            xp.assign(xp.strided_view(array, shape, strides, offset, dtype), value)
        return array
    if 0 in shape:
        return array
    array_shape, array_dtype = xp.shape(array), xp.dtype_of(array)
    n = math.prod(array_shape)
    if array_dtype == dtype and array_shape == shape and same_strides(shape, strides, contiguous_strides(shape)):
        return value
    if array_dtype == dtype:
        plan = strided_slice.of_array(shape, strides, offset, array_shape)
        if plan is not None and max(plan.step, default=1) == 1:  # else the block's own box is written, which is dense
            value = plan.inward(xp, value)
            return value if plan.extents == array_shape else xp.slice_update(array, value, plan.start, plan.step)
    size = n if array_dtype == dtype else n * array_dtype.itemsize // dtype.itemsize
    plan = strided_slice.of_memory(shape, strides, offset, size)
    flat: Any = None
    if plan is None or math.prod(plan.extents) != size:  # something of the old values stays
        flat = xp.reshape(array, (n,))
        if array_dtype != dtype:
            flat = xp.bitcast(flat, dtype)
    if plan is None:
        flat = xp.scatter(flat, (positions(xp, geometry),), value)
    else:
        value = plan.inward(xp, value)
        if flat is None:
            flat = xp.reshape(value, (size,))
        else:
            block = value
            if plan.extents != plan.dense:
                block = xp.slice_update(strided_slice.block(xp, flat, plan), value, plan.start, (1,) * len(plan.start))
            region = xp.reshape(block, (math.prod(plan.dense),))
            kept_count = min(plan.end, size) - plan.begin
            if kept_count != plan.end - plan.begin:
                region = xp.slice(region, (0,), (kept_count,), (1,))
            flat = region if kept_count == size else xp.slice_update(flat, region, (plan.begin,), (1,))
    if array_dtype != dtype:
        flat = xp.bitcast(flat, array_dtype)
    return xp.reshape(flat, array_shape)


def _without_negative_strides(geometry: Geometry) -> tuple[Geometry, tuple[int, ...]]:
    """Return (the geometry of the same elements without negative strides, which PyTorch lacks; the axes that are
    reversed)."""
    shape, strides, offset, dtype = geometry
    backward = tuple(axis for axis, s in enumerate(strides) if s < 0)
    for axis in backward:
        offset += max(shape[axis] - 1, 0) * strides[axis]
    return Geometry(shape, tuple(map(abs, strides)), offset, dtype), backward


def positions(xp: Backend, geometry: Geometry) -> Array:
    """Return the int64 positions of a geometry's elements in the flat storage."""
    shape, strides, offset, _ = geometry
    at = xp.full(shape, offset, dtypes.int64)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        if n > 1 and stride:
            axis_positions = xp.multiply(xp.iota(n, dtypes.int64), stride)
            at = xp.add(at, xp.reshape(axis_positions, tuple(n if a == axis else 1 for a in range(len(shape)))))
    return at


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Return True if the elements fill a block of memory without gaps, each once (non-overlapping and dense, in
    PyTorch)."""
    expected = 1
    for stride, n in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != expected:
            return 0 in shape
        expected *= n
    return True
