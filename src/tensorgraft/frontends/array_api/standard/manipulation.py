"""Manipulation functions of the standard. Views wherever strides allow."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from tensorgraft import views
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import (
    Axis,
    arrays_of,
    axes_of,
    axis_of,
    backend_of,
    broadcast_shape,
    check_kind,
    converted,
    extents_of,
    fail,
    operand,
    shape_of,
    show,
)

Arrays = Sequence[Array]

# ---- views -----------------------------------------------------------------------------------------------------------


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """Return a view, which cannot be written where it shows elements several times."""
    operand("broadcast_to", x)
    extents = shape_of("broadcast_to", shape)
    return x._view(views.broadcast(x._full_geometry(), extents))


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Views of one shape."""
    if not arrays:
        return ()
    for x in arrays:
        operand("broadcast_arrays", x)
    backend_of("broadcast_arrays", *arrays)
    shape = broadcast_shape("broadcast_arrays", arrays, [x.shape for x in arrays])
    return tuple(broadcast_to(x, shape) for x in arrays)


def broadcast_shapes(*shapes: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return the shape to which shapes broadcast; None for an extent that is not known."""
    out: list[int | None] = []
    for at in range(1, max(map(len, shapes), default=0) + 1):
        extents = {shape[-at] for shape in shapes if at <= len(shape)} - {1}
        known = extents - {None}
        if len(known) > 1:
            raise ValueError(f"broadcast_shapes: the shapes {', '.join(map(str, map(tuple, shapes)))} do not broadcast")
        # an extent that is not known is 1 or what another is, where that is known
        out.append(known.pop() if known else None if extents else 1)
    return tuple(reversed(out))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Return a view with its axes in another order."""
    operand("permute_dims", x)
    order = axes_of("permute_dims", x, tuple(axes))
    if len(order) != x.ndim:
        fail("permute_dims", (x,), f"all of the axes, got {tuple(axes)}")
    return x._view(views.permuted(x._full_geometry(), order))


def matrix_transpose(x: Array, /) -> Array:
    """Return a view of matrices with rows and columns exchanged."""
    operand("matrix_transpose", x)
    return x.mT


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Return a view in which axes have other places."""
    operand("moveaxis", x)
    origin = axes_of("moveaxis", x, source)
    destinations = axes_of("moveaxis", x, destination)
    if len(origin) != len(destinations):
        fail("moveaxis", (x,), f"as many axes as places for them, got {source} and {destination}")
    order = [a for a in range(x.ndim) if a not in origin]
    for position, a in sorted(zip(destinations, origin, strict=True)):
        order.insert(position, a)
    return x._view(views.permuted(x._full_geometry(), order))


def expand_dims(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Return a view with new axes of one element, at these positions in the result."""
    operand("expand_dims", x)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    new = axes_of("expand_dims", x, axis, x.ndim + count)
    key = [None if a in new else slice(None) for a in range(x.ndim + count)]
    return x._view(views.indexed(x._full_geometry(), key))


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Return a view without axes of one element. Raises ValueError for an axis of more or none."""
    operand("squeeze", x)
    squeezed = axes_of("squeeze", x, axis)
    if any(x.shape[a] != 1 for a in squeezed):
        fail("squeeze", (x,), f"axes of one element, got axis={axis}")
    return x._view(views.indexed(x._full_geometry(), [0 if a in squeezed else slice(None) for a in range(x.ndim)]))


def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """Return a view with the order of elements reversed along axes."""
    operand("flip", x)
    return x._view(views.flipped(x._full_geometry(), axes_of("flip", x, axis)))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Views, one for each index along `axis`."""
    operand("unstack", x)
    at = axis_of("unstack", x, axis)
    g = x._full_geometry()
    before = [slice(None)] * at
    after_axis = [slice(None)] * (x.ndim - at - 1)
    return tuple(x._view(views.indexed(g, [*before, i, *after_axis])) for i in range(x.shape[at]))


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """Return the elements, row-major, in another shape, of which one extent may be -1: a view where strides allow.

    `copy`: True for a copy always, False for ValueError where a copy is needed.
    """
    xp = operand("reshape", x)
    g = x._full_geometry()
    try:
        extents = views.shape_with(extents_of("reshape", shape), x.size)
    except ValueError as error:
        raise ValueError(f"reshape({show((x,))}, {shape}): {error}") from None
    view = None if copy else views.reshaped(g, extents)
    if view is not None:
        return x._view(view)
    if copy is False:
        fail("reshape", (x,), f"strides that let it be seen as {extents} without a copy (copy=False)")
    with xp.scope():
        return new_array(xp.reshape(xp.copy(x._value()), extents), xp, x)


# ---- new arrays ------------------------------------------------------------------------------------------------------


def concat(arrays: Arrays, /, *, axis: int | None = 0) -> Array:
    """Join arrays along an existing axis (None: flattened)."""
    arrays = list(arrays)
    if not arrays:
        raise ValueError("concat: expected at least one array")
    xp, dtype = arrays_of("concat", *arrays, kinds="bifc")
    if axis is None:
        arrays, axis = [reshape(x, (-1,)) for x in arrays], 0
    if not arrays[0].ndim:
        fail("concat", arrays, "arrays of at least one dimension")
    at = axis_of("concat", arrays[0], axis)
    rest = {(*x.shape[:at], *x.shape[at + 1 :]) if x.ndim > at else None for x in arrays}
    if len(rest) > 1:
        fail("concat", arrays, f"shapes that are equal but for axis {at}")
    with xp.scope():
        return new_array(xp.concat([converted(xp, x, dtype) for x in arrays], axis=at), xp, *arrays)


def stack(arrays: Arrays, /, *, axis: int = 0) -> Array:
    """Return arrays of one shape joined along a new axis."""
    arrays = list(arrays)
    if not arrays:
        raise ValueError("stack: expected at least one array")
    xp, dtype = arrays_of("stack", *arrays, kinds="bifc")
    if len({x.shape for x in arrays}) > 1:
        fail("stack", arrays, "arrays of one shape")
    at = axis_of("stack", arrays[0], axis, arrays[0].ndim + 1)
    with xp.scope():
        return new_array(xp.stack([converted(xp, x, dtype) for x in arrays], at), xp)


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """Return `x` side by side with itself, so many times along each axis (the last axes, where fewer are given)."""
    xp = operand("tile", x)
    times = shape_of("tile", tuple(repetitions))
    n = max(len(times), x.ndim)
    times = (1,) * (n - len(times)) + times
    with xp.scope():
        value = xp.reshape(x._value(), (1,) * (n - x.ndim) + x.shape)
        return new_array(xp.tile(value, times), xp, x)


def roll(x: Array, /, shift: int | Sequence[int], *, axis: Axis = None) -> Array:
    """Elements moved along axes, round the end (None: of all elements, row-major)."""
    xp = operand("roll", x)
    if isinstance(shift, Array):
        shift = operator.index(shift)
    axes: tuple[int, ...]
    shifts: tuple[int, ...]
    if axis is None:
        if not isinstance(shift, int):
            fail("roll", (x,), f"one shift where no axis is given, got {shift}")
        axes, shifts = (0,), (shift,)
    else:
        axes = tuple(axis_of("roll", x, a) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
        shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
        if len(shifts) != len(axes):
            fail("roll", (x,), f"one shift for each axis, got {shift} for {axis}")
    with xp.scope():
        out = x._value()
        if axis is None:
            out = xp.reshape(out, (x.size,))
        for a, by in zip(axes, shifts, strict=True):
            out = xp.roll(out, by, a)
        return new_array(xp.reshape(out, x.shape), xp, x)


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Return each element (along `axis`; None: of all, row-major) `repeats` times, which may be an array of
    integers."""
    if isinstance(repeats, Array):
        xp = backend_of("repeat", x, repeats)
        check_kind("repeat", "i", repeats.dtype, (x, repeats))
    elif isinstance(repeats, int):
        xp = operand("repeat", x)
    else:
        raise TypeError(f"repeat: expected an int or an array of integers, got {repeats!r}")
    source = reshape(x, (-1,)) if axis is None else x
    at = 0 if axis is None else axis_of("repeat", x, axis)
    n = source.shape[at]
    with xp.scope():
        value = source._value()
        if isinstance(repeats, Array) and repeats.size != 1:
            if repeats.shape != (n,):
                fail("repeat", (x, repeats), f"one count for each of the {n} elements of axis {at}")
            counts = repeats._host("index").astype(np.int64)
            if (counts < 0).any():
                fail("repeat", (x, repeats), "counts that are not negative")
            where = xp.asarray(np.repeat(np.arange(n), counts))
            return new_array(xp.take(value, where, at), xp, x)
        times = int(repeats._host("index").reshape(())) if isinstance(repeats, Array) else repeats
        if times < 0:
            fail("repeat", (x, repeats), "counts that are not negative")
        before, after_axis = source.shape[:at], source.shape[at + 1 :]
        repeated = xp.broadcast_to(xp.reshape(value, (*before, n, 1, *after_axis)), (*before, n, times, *after_axis))
        return new_array(xp.reshape(repeated, (*before, n * times, *after_axis)), xp, x, source)


__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]
