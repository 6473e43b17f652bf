"""Primitives that move elements: shapes, slices, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Ints = Sequence[int]

# dtypes in which every backend counts exactly as far as the dtype does
_COUNTS = frozenset((dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64))


def reshaped(xp: Backend, x: Array, shape: Ints) -> Array:
    """Return `x` itself where it has the shape."""
    shape = tuple(shape)
    return x if xp.shape(x) == shape else xp.reshape(x, shape)


def permuted(xp: Backend, x: Array, axes: Ints) -> Array:
    axes = tuple(axes)
    return x if axes == tuple(range(len(axes))) else xp.permute_dims(x, axes)


# ---- shapes --------------------------------------------------------------------------------------------------------


@rule("broadcast_in_dim")
def broadcast_in_dim(
    xp: Backend, x: Array, *dynamic_shape: Array, shape: Ints, broadcast_dimensions: Ints, **_: Any
) -> Array:
    shape, new_shape, axes = tuple(shape), xp.shape(x), tuple(broadcast_dimensions)
    rank = len(shape)
    if axes != tuple(range(rank - len(axes), rank)):  # else broadcasting puts the new axes in front by itself
        wide = [1] * rank
        for axis, extent in zip(axes, new_shape, strict=True):
            wide[axis] = extent
        new_shape = tuple(wide)
        x = xp.reshape(x, new_shape)
    return x if new_shape == shape else xp.broadcast_to(x, shape)


@rule("reshape")
def reshape(xp: Backend, x: Array, *dynamic_shape: Array, dimensions: Ints | None, out: Any, **_: Any) -> Array:
    if dimensions is not None:
        x = permuted(xp, x, dimensions)
    return reshaped(xp, x, out[0].shape)


@rule("dim_as_value")
def dim_as_value(xp: Backend, *, dim: Any, out: Any) -> Array:
    """Return a symbolic extent (`frontends.jax.extents`), or the framework's symbol for it, as an array."""
    return xp.full((), dim, out[0].dtype)


@rule("squeeze")
def squeeze(xp: Backend, x: Array, *, out: Any, **_: Any) -> Array:
    return reshaped(xp, x, out[0].shape)


@rule("transpose")
def transpose(xp: Backend, x: Array, *, permutation: Ints, **_: Any) -> Array:
    return permuted(xp, x, permutation)


@rule("rev")
def rev(xp: Backend, x: Array, *, dimensions: Ints) -> Array:
    return xp.flip(x, tuple(dimensions)) if dimensions else x


@rule("tile")
def tile(xp: Backend, x: Array, *, reps: Ints, out: Any, **_: Any) -> Array:
    extra = len(reps) - xp.ndim(x)
    x = reshaped(xp, x, (1,) * extra + xp.shape(x))
    return x if all(n == 1 for n in reps) else reshaped(xp, xp.tile(x, tuple(reps)), out[0].shape)


# ---- several arrays ------------------------------------------------------------------------------------------------


@rule("concatenate")
def concatenate(xp: Backend, *arrays: Array, dimension: int) -> Array:
    return arrays[0] if len(arrays) == 1 else xp.concat(arrays, axis=dimension)


@rule("stack")
def stack(xp: Backend, *arrays: Array, axis: int, **_: Any) -> Array:
    return xp.stack(arrays, axis=axis)


@rule("unstack")
def unstack(xp: Backend, x: Array, *, axis: int, **_: Any) -> Sequence[Array]:
    return xp.unstack(x, axis=axis)


@rule("split")
def split(xp: Backend, x: Array, *, sizes: Ints, axis: int) -> Sequence[Array]:
    return [x] if len(sizes) == 1 else xp.split(x, tuple(sizes), axis=axis)


# ---- slices --------------------------------------------------------------------------------------------------------


@rule("slice")
def slice_(xp: Backend, x: Array, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> Array:
    steps = tuple(strides) if strides is not None else (1,) * len(start_indices)
    start, stop = tuple(start_indices), tuple(limit_indices)
    if not any(start) and stop == xp.shape(x) and all(s == 1 for s in steps):
        return x
    return xp.slice(x, start, stop, steps)


def _corner(start: Sequence[Any], sizes: Ints, shape: Ints) -> tuple[int, ...] | None:
    """Return where a window begins, clamped, on the axes on which it has a choice (0 on others); None if that is not
    constant."""
    free = [size != n for size, n in zip(sizes, shape, strict=True)]
    if any(at is None and f for at, f in zip(start, free, strict=True)):
        return None
    extents = zip(start, free, sizes, shape, strict=True)
    return tuple(min(max(int(at), 0), n - size) if f else 0 for at, f, size, n in extents)


@rule("dynamic_slice")
def dynamic_slice(xp: Backend, x: Array, *start: Array, slice_sizes: Ints, known: Any) -> Array:
    sizes, shape = tuple(slice_sizes), xp.shape(x)
    if sizes == shape:
        return x
    corner = _corner(known[1 : 1 + len(sizes)], sizes, shape)
    if corner is None:
        return xp.dynamic_slice(x, start[: len(sizes)], sizes)
    stop = tuple(at + n for at, n in zip(corner, sizes, strict=True))
    return xp.slice(x, corner, stop, (1,) * len(sizes))


@rule("dynamic_update_slice")
def dynamic_update_slice(xp: Backend, x: Array, update: Array, *start: Array, known: Any) -> Array:
    shape, sizes = xp.shape(x), xp.shape(update)
    if shape == sizes:
        return update
    corner = _corner(known[2:], sizes, shape)
    if corner is None:
        return xp.dynamic_update_slice(x, update, start)
    return xp.slice_update(x, update, corner, (1,) * len(sizes))


def plain(constant: Any, value: Array) -> Any:
    """Return the Python number that a 0-d array is known to be, or the array. Backends make less of a number."""
    return value if constant is None else np.asarray(constant).item()


@rule("pad")
def pad(xp: Backend, x: Array, value: Array, *, padding_config: Sequence[tuple[int, int, int]], known: Any) -> Array:
    config = tuple((int(low), int(high), int(interior)) for low, high, interior in padding_config)
    return xp.pad(x, plain(known[1], value), config) if any(map(any, config)) else x


# ---- creation ------------------------------------------------------------------------------------------------------


@rule("iota")
def iota(xp: Backend, *dynamic_shape: Array, dtype: Any, shape: Ints, dimension: int, **_: Any) -> Array:
    dtype = np.dtype(dtype)
    indices = xp.iota(shape[dimension], dtype if dtype in _COUNTS else dtypes.int64)
    indices = indices if dtype in _COUNTS else xp.astype(indices, dtype)
    return broadcast_in_dim(xp, indices, shape=shape, broadcast_dimensions=(dimension,))


@rule("empty", "empty2")
def empty(xp: Backend, *, out: Any, **_: Any) -> Array:
    return xp.zeros(tuple(out[0].shape), np.dtype(out[0].dtype))
