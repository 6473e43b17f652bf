"""Indexing functions of the standard."""

from __future__ import annotations

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import axis_of, backend_of, check_kind, fail
from tensorgraft.frontends.array_api.core.indexing import wrapped


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Return the elements at `indices` along `axis`; negative ones count from the end. Raises IndexError."""
    xp = backend_of("take", x, indices)
    if not isinstance(indices, Array) or not isinstance(x, Array):
        fail("take", (x, indices), "an array of integers as indices", TypeError)
    check_kind("take", "i", indices.dtype, (x, indices))
    if axis is None and x.ndim != 1:
        fail("take", (x, indices), "an axis, as the array is not of one dimension")
    at = axis_of("take", x, 0 if axis is None else axis)
    with xp.scope():
        where = wrapped(xp, indices._value(), at, x.shape[at])
        return new_array(xp.take(x._value(), where, at), xp)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Along `axis`, the elements at `indices`, whose other axes broadcast with those of `x`. Raises IndexError."""
    xp = backend_of("take_along_axis", x, indices)
    if not isinstance(indices, Array) or not isinstance(x, Array):
        fail("take_along_axis", (x, indices), "an array of integers as indices", TypeError)
    check_kind("take_along_axis", "i", indices.dtype, (x, indices))
    at = axis_of("take_along_axis", x, axis)
    if indices.ndim != x.ndim or any(
        a != at and n != m and 1 not in (n, m) for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))
    ):
        fail("take_along_axis", (x, indices), f"indices whose axes other than {at} broadcast with those of the array")
    shapes = [max(n, m) if n and m else 0 for n, m in zip(x.shape, indices.shape, strict=True)]
    with xp.scope():
        where = wrapped(xp, indices._value(), at, x.shape[at])
        where = xp.broadcast_to(where, tuple(indices.shape[at] if a == at else n for a, n in enumerate(shapes)))
        value = xp.broadcast_to(x._value(), tuple(x.shape[at] if a == at else n for a, n in enumerate(shapes)))
        return new_array(xp.take_along_axis(value, where, at), xp)


__all__ = ["take", "take_along_axis"]
