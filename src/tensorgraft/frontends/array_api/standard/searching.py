"""Searching functions of the standard (`where` is with the elementwise ones)."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import (
    Axis,
    axes_of,
    axis_of,
    backend_of,
    check_kind,
    converted,
    dtype_of_call,
    fail,
    of_python,
    operand,
    orderable,
)
from tensorgraft.frontends.array_api.core.indexing import true_positions
from tensorgraft.frontends.array_api.core.taking import take
from tensorgraft.hub import dtypes


def _position(name: str, x: Array, axis: int | None, keepdims: bool) -> Array:
    xp = operand(name, x, "bif")
    at = None if axis is None else axis_of(name, x, axis)
    if not (x.size if at is None else x.shape[at]):
        fail(name, (x,), "at least one element to choose from")
    with xp.scope():
        value = orderable(xp, x)
        if at is not None:
            return new_array(getattr(xp, name)(value, at, bool(keepdims)), xp)
        out = getattr(xp, name)(xp.reshape(value, (x.size,)), 0, False)
        return new_array(xp.reshape(out, (1,) * x.ndim if keepdims else ()), xp)


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return int64 position of the first greatest value, or of the first NaN; of all elements, row-major, without
    `axis`."""
    return _position("argmax", x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return int64 position of the first least value, or of the first NaN; of all elements, row-major, without
    `axis`."""
    return _position("argmin", x, axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the number of elements that are not zero (or true), as int64."""
    xp = operand("count_nonzero", x)
    axes = axes_of("count_nonzero", x, axis)
    with xp.scope():
        is_nonzero = xp.astype(xp.astype(x._value(), dtypes.bool_), dtypes.int64)
        return new_array(xp.sum(is_nonzero, axis=axes, keepdims=bool(keepdims)), xp)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Return int64 positions of the elements that are not zero (or true), row-major, one array for each axis."""
    xp = operand("nonzero", x)
    if not x.ndim:
        fail("nonzero", (x,), "an array of at least one dimension")
    with xp.scope():
        return tuple(new_array(at, xp) for at in true_positions(x, xp.astype(x._value(), dtypes.bool_)))


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Return int64 positions at which the values `x2` would be inserted in `x1` (one-dimensional and ascending,
    possibly after indexing with `sorter`)."""
    x2 = of_python(x2)
    operand("searchsorted", x1, "if")
    xp = backend_of("searchsorted", x1, x2)
    dtype = dtype_of_call("searchsorted", (x1, x2))
    check_kind("searchsorted", "if", dtype, (x1, x2))
    if x1.ndim != 1:
        fail("searchsorted", (x1, x2), "boundaries of one dimension")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: expected side 'left' or 'right', got {side!r}")
    boundaries = x1 if sorter is None else take(x1, sorter, axis=0)
    with xp.scope():
        values = converted(xp, x2, dtype)
        positions = xp.searchsorted(
            converted(xp, boundaries, dtype), xp.reshape(values, (xp.size(values),)), side == "right"
        )
        return new_array(xp.reshape(positions, xp.shape(values)), xp)


__all__ = ["argmax", "argmin", "count_nonzero", "nonzero", "searchsorted"]
