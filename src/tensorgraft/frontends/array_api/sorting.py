"""Sorting functions of the standard. Always stable; NaN is the greatest."""

from __future__ import annotations

from tensorgraft.frontends.array_api.array import Array, made
from tensorgraft.frontends.array_api.calls import axis_of, operand


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order along `axis`."""
    xp = operand("sort", x, "if")
    at = axis_of("sort", x, axis)
    with xp.scope():
        (out,) = xp.sort((x._value(),), axis=at)
        return made(xp.flip(out, (at,)) if descending else out, xp, x)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """int64: where the elements are, in their order along `axis`."""
    xp = operand("argsort", x, "if")
    at = axis_of("argsort", x, axis)
    with xp.scope():
        return made(xp.argsort(x._value(), axis=at, descending=descending), xp)


__all__ = ["argsort", "sort"]
