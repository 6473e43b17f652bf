"""Sorting functions of the standard. Always stable; NaN is the greatest."""

from __future__ import annotations

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import axis_of, operand, orderable


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the elements in order along `axis`."""
    xp = operand("sort", x, "bif")
    at = axis_of("sort", x, axis)
    with xp.scope():
        (out,) = xp.sort((orderable(xp, x),), axis=at)
        return new_array(xp.astype(xp.flip(out, (at,)) if descending else out, x.dtype), xp, x)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return int64 positions of the elements in ascending (or descending) order along `axis`."""
    xp = operand("argsort", x, "bif")
    at = axis_of("argsort", x, axis)
    with xp.scope():
        return new_array(xp.argsort(orderable(xp, x), axis=at, descending=descending), xp)


__all__ = ["argsort", "sort"]
