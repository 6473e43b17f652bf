"""`x[key]` and `x[key] = value`: the standard's indexing, and NumPy's where the standard leaves it open."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft import views
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.array_api.core import traced_value_errors, tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.promotion import kind, of_scalar
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage

SCALARS = (bool, int, float, complex)


@dataclass
class Selection:
    """An index with arrays in it: a view of the array, some of whose axes are then indexed by arrays."""

    view: Geometry
    axes: list[int]  # axes of the view
    indices: list[Any]  # int64 arrays of the backend, not negative, in bounds
    adjacent: bool  # the axes are neighbours in the key: the result has theirs in their place, else in front

    def leading(self) -> tuple[int, ...]:
        """Return the order of the view's axes with the indexed ones in front."""
        return (*self.axes, *(a for a in range(len(self.view.shape)) if a not in self.axes))

    def placed(self, index_dims: int) -> tuple[int, ...]:
        """Return the permutation of (index axes, other axes) to the axes of the result."""
        rest = len(self.view.shape) - len(self.axes)
        at = self.axes[0] if self.adjacent else 0
        other_axes = range(index_dims, index_dims + rest)
        return (*other_axes[:at], *range(index_dims), *other_axes[at:])


def get(x: Array, key: Any, /) -> Array:
    """Index as NumPy does: integers, slices, None and ... give a view, arrays of integers or booleans a new array."""
    items, advanced = _parse(x, key)
    if not advanced:
        return x._view(views.indexed(x._full_geometry(), items))
    xp = x._cell.backend
    with xp.scope():
        selection = _select(x, items)
        lead = x._view(views.permuted(selection.view, selection.leading()))._value()
        out = xp.gather(lead, tuple(selection.indices))
        dims = xp.ndim(out) - (len(selection.view.shape) - len(selection.axes))
        order = selection.placed(dims)
        return new_array(out if order == tuple(range(len(order))) else xp.permute_dims(out, order), xp)


COMBINE = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}  # modes: the hub's functions


def put(x: Array, key: Any, value: Any, /, mode: str = "set") -> None:
    """Write into the array; every view of it sees the new values. The value is converted to its dtype, and broadcast;
    other modes combine it with the present values (`tg.scatter_update`).

    Raises, before anything is written, TypeError for a value of a kind that the dtype cannot hold, ValueError if the
    shape does not broadcast, IndexError.
    """
    items, advanced = _parse(x, key)
    if tracing.now.capture is not None and isinstance(cell := getattr(value, "_cell", None), Storage):
        tracing.join(x._cell, cell)
    xp = x._cell.backend
    with xp.scope():
        new = value_of(x, value)
        if not advanced:
            g = views.indexed(x._full_geometry(), items)
            new = _into(xp, new, g.shape)
            if mode != "set":
                new = getattr(xp, COMBINE[mode])(x._view(g)._value(), new)
            x._write(new, g)
            return
        (mask, *rest) = items
        if not rest and isinstance(mask, Array) and mask.dtype == bool and mask.shape == x.shape and xp.size(new) == 1:
            new = xp.reshape(new, ())
            if mode != "set":
                new = getattr(xp, COMBINE[mode])(x._value(), new)
            x._write(xp.where(mask._value(), new, x._value()))  # also while tracing
            return
        selection = _select(x, items)
        order = selection.leading()
        g = views.permuted(selection.view, order)
        index_shape = np.broadcast_shapes(*(xp.shape(i) for i in selection.indices))
        result_order = selection.placed(len(index_shape))
        full = (*index_shape, *g.shape[len(selection.axes) :])
        new = _into(xp, new, tuple(full[a] for a in result_order))
        new = xp.permute_dims(new, tuple(result_order.index(a) for a in range(len(result_order))))
        x._write(xp.scatter(x._view(g)._value(), tuple(selection.indices), new, mode=mode), g)


def value_of(x: Array, value: Any) -> Any:
    """Return a value that is to be written into `x`, as an array of its backend and dtype.

    Raises TypeError for one of a kind that `x` cannot hold (a float in an integer array) or on another device.
    """
    xp, dtype = x._cell.backend, x.dtype
    if isinstance(value, SCALARS):
        if isinstance(value, bool) and kind(dtype) != "b":
            value = int(value)  # in the same way as arrays of booleans
        if of_scalar(value, dtype) != dtype:
            raise TypeError(f"a Python {type(value).__name__} cannot be written into an array of {dtype}")
        return value.converted(xp, dtype) if isinstance(value, Number) else xp.full((), value, dtype)
    if isinstance(value, np.ndarray | np.generic):
        value = from_host(xp, np.asarray(value))
    if not isinstance(value, Array):
        raise TypeError(f"expected an array or a number to write into an array, got a {type(value).__qualname__}")
    if _on_different_backends(value, x):
        raise ValueError(f"an array on {value.device} cannot be written into one on {x.device}: move it with to_device")
    if "bifc".index(kind(value.dtype)) > "bifc".index(kind(dtype)):
        raise TypeError(f"an array of {value.dtype} cannot be written into one of {dtype}: convert it with astype")
    return xp.astype(value._dense(), dtype)


def _into(xp: Backend, value: Any, shape: tuple[int, ...]) -> Any:
    """Return `value` in a shape to which it broadcasts."""
    size = xp.shape(value)
    if size == shape:
        return value
    extra = len(size) - len(shape)
    if extra > 0 and size[:extra] == (1,) * extra:  # NumPy drops leading axes of one element
        value, size = xp.reshape(value, size[extra:]), size[extra:]
    try:
        is_broadcastable = np.broadcast_shapes(size, shape) == shape
    except ValueError:
        is_broadcastable = False
    if not is_broadcastable:
        raise ValueError(f"a value of shape {size} does not broadcast to {shape}, the shape of the elements to write")
    return xp.broadcast_to(value, shape)


def from_host(xp: Backend, values: np.ndarray) -> Array:
    """Convert an array of NumPy that is combined with an `Array`, as operand, index or value, by moving it to the
    array's device."""
    with xp.scope():
        return new_array(xp.asarray(values), xp)


def _on_different_backends(a: Array, b: Array) -> bool:
    """Return True if the arrays (of quantised arrays, their codes) are of different backends."""
    return a._cells()[0].backend is not b._cells()[0].backend


def _parse(x: Array, key: Any) -> tuple[list[Any], bool]:
    """Return (the index of each axis, with ... replaced; whether any are arrays). Raises IndexError for a wrong number
    of them."""
    keys = key if isinstance(key, tuple) else (key,)
    items: list[Any] = []
    used, dots, advanced = 0, None, False
    for k in keys:
        if k is Ellipsis:
            if dots is not None:
                raise IndexError("an index has at most one ellipsis (...)")
            dots = len(items)
            continue
        if isinstance(k, slice):
            k = slice(*(None if v is None else operator.index(v) for v in (k.start, k.stop, k.step)))
            if k.step == 0:
                raise ValueError("the step of a slice must not be zero")
            used += 1
        elif isinstance(k, bool | np.bool_):
            advanced = True
        elif isinstance(k, Array | np.ndarray):
            if isinstance(k, np.ndarray):
                with x._cell.backend.scope():
                    k = from_host(x._cell.backend, k)
            if _on_different_backends(k, x) and not tracing.join(*k._cells(), *x._cells()):
                raise ValueError(f"an index on {k.device} cannot index an array on {x.device}: move it with to_device")
            if kind(k.dtype) not in "bi":
                raise IndexError(f"expected an index array of integers or booleans, got {k.dtype}")
            used += k.ndim if k.dtype == bool else 1
            advanced = True
        elif k is not None:
            try:
                k = operator.index(k)
            except TypeError:
                raise IndexError(
                    f"expected an integer, a slice, ..., None or an array as an index, got a {type(k).__qualname__}"
                ) from None
            used += 1
        items.append(k)
    if used > x.ndim:
        raise IndexError(f"{used} indices for an array of {x.ndim} dimensions, of shape {x.shape}")
    dots = len(items) if dots is None else dots
    items[dots:dots] = [slice(None)] * (x.ndim - used)
    return items, advanced


def _select(x: Array, items: Sequence[Any]) -> Selection:
    xp = x._cell.backend
    basic: list[Any] = []
    axes: list[int] = []
    indices: list[Any] = []
    positions: list[int] = []  # in the key
    axis = 0  # the axis of x
    for at, k in enumerate(items):
        if k is None or isinstance(k, slice):
            basic.append(k)
            axis += k is not None
            continue
        positions.append(at)
        if isinstance(k, bool | np.bool_):  # a new axis, of one element or none
            axes.append(len(basic))
            basic.append(None)
            indices.append(xp.zeros((int(k),), dtypes.int64))
            continue
        if isinstance(k, Array) and k.dtype == bool:
            extents = x.shape[axis : axis + k.ndim]
            if any(m not in (n, 0) for m, n in zip(k.shape, extents, strict=True)):  # one without elements selects none
                raise IndexError(f"a mask of shape {k.shape} does not match axes of shape {extents}")
            if not k.ndim:
                axes.append(len(basic))
                basic.append(None)
                indices.append(xp.zeros((_mask_as_int(k),), dtypes.int64))
                continue
            index_arrays = true_positions(k, k._value())
        else:
            index = k._value() if isinstance(k, Array) else xp.full((), k, dtypes.int64)
            index_arrays = (wrapped(xp, index, axis, x.shape[axis]),)
        for index in index_arrays:
            axes.append(len(basic))
            basic.append(slice(None))
            indices.append(index)
            axis += 1
    adjacent = positions == list(range(positions[0], positions[-1] + 1))
    return Selection(views.indexed(x._full_geometry(), basic), axes, indices, adjacent)


def _mask_as_int(x: Array) -> int:
    """0 or 1, the value of a mask without axes. Raises ShapeError while it is traced."""
    try:
        return int(bool(x))
    except TracedValueError:
        pass
    raise traced_value_errors.result_shape_needed(x)


def true_positions(x: Array, mask: Any) -> tuple[Any, ...]:
    """Return the positions at which a mask, computed from `x`, is true. Raises ShapeError while it is traced."""
    xp, capture = x._cell.backend, tracing.now.capture
    if capture is None or not capture.is_input(x._cell):
        try:
            return xp.nonzero(mask)
        except TracedValueError:
            pass
    raise traced_value_errors.result_shape_needed(x)


def wrapped(xp: Backend, index: Any, axis: int, n: int) -> Any:
    """Negative indices counted from the end. Raises IndexError for one out of bounds, once it is known."""
    index = xp.astype(index, dtypes.int64)
    if not xp.is_traced(index) and xp.size(index):
        ends = xp.stack([xp.min(index), xp.max(index)])

        def check(value: np.ndarray) -> None:
            low, high = (int(v) for v in value)
            if low < -n or high >= n:
                index_out = low if low < -n else high
                raise IndexError(f"index {index_out} is out of bounds for axis {axis} of size {n}")

        if not xp.is_traced(ends):
            xp.when_known(ends, check)
    return xp.where(xp.less(index, 0), xp.add(index, n), index)
