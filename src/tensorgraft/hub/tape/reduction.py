"""Rules of reductions and cumulative operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _axes(xp: Any, x: Array, axis: Any) -> tuple[int, ...]:
    n = len(xp.shape(x))
    if axis is None:
        return tuple(range(n))
    return tuple(a % n for a in ((axis,) if isinstance(axis, int) else axis)) if n else ()


def _with_kept_axes(xp: Any, v: Array, x: Array, axis: Any) -> Array:
    """Return a reduced array with the reduced axes as axes of one element."""
    axes = _axes(xp, x, axis)
    return xp.reshape(v, tuple(1 if a in axes else n for a, n in enumerate(xp.shape(x))))


def _sum(xp: Any, y: Array, g: Array, x: Array, axis: Any = None, keepdims: bool = False) -> list[Any]:
    return [lambda: xp.astype(xp.broadcast_to(_with_kept_axes(xp, g, x, axis), xp.shape(x)), xp.dtype_of(x))]


def _prod(xp: Any, y: Array, g: Array, x: Array, axis: Any = None, keepdims: bool = False) -> list[Any]:
    """Return the product of the others, from both sides, so that zeros do no harm."""

    def pull() -> Array:
        axes = _axes(xp, x, axis)
        other_axes = tuple(a for a in range(len(xp.shape(x))) if a not in axes)
        order = (*other_axes, *axes)
        moved = xp.permute_dims(x, order)
        shape = xp.shape(moved)
        n = math.prod(shape[len(other_axes) :])
        flat = xp.reshape(moved, (*shape[: len(other_axes)], n))
        last = len(other_axes)
        one_value = xp.full((), 1, xp.dtype_of(x))
        edge = [(0, 0, 0)] * last
        left = xp.cumprod(xp.pad(flat, one_value, [*edge, (1, -1, 0)]), axis=last)
        right = xp.flip(xp.cumprod(xp.pad(xp.flip(flat, (last,)), one_value, [*edge, (1, -1, 0)]), axis=last), (last,))
        rest = xp.reshape(xp.multiply(left, right), shape)
        in_order = xp.permute_dims(rest, tuple(order.index(a) for a in range(len(order))))
        return xp.multiply(in_order, _with_kept_axes(xp, g, x, axis))

    return [pull]


def _extremum(xp: Any, y: Array, g: Array, x: Array, axis: Any = None, keepdims: bool = False) -> list[Any]:
    """Equal elements share."""

    def pull() -> Array:
        is_extreme = xp.equal(x, _with_kept_axes(xp, y, x, axis))
        share = xp.astype(is_extreme, xp.dtype_of(g))
        count = xp.sum(share, axis=_axes(xp, x, axis), keepdims=True)
        return xp.multiply(share, xp.divide(_with_kept_axes(xp, g, x, axis), count))

    return [pull]


def _cumsum(xp: Any, y: Array, g: Array, x: Array, axis: int) -> list[Any]:
    at = axis % len(xp.shape(x))
    return [lambda: xp.flip(xp.cumsum(xp.flip(g, (at,)), axis=at), (at,))]


def _cumprod(xp: Any, y: Array, g: Array, x: Array, axis: int) -> list[Any]:
    """Sum over j >= k of g[j] times the product of x[..j] without x[k]: exact where there are zeros, and quadratic."""

    def pull() -> Array:
        dtype = xp.dtype_of(x)
        rows, cotangent = xp.moveaxis(x, axis, -1), xp.moveaxis(g, axis, -1)
        n = xp.shape(rows)[-1]
        lead = xp.shape(rows)[:-1]
        wide = xp.broadcast_to(xp.expand_dims(rows, -2), (*lead, n, n))  # [..., k, i]
        excluded = xp.where(xp.eye(n, n, dtypes.bool_), xp.full((), 1, dtype), wide)
        products = xp.triu(xp.cumprod(excluded, axis=len(lead) + 1))  # [..., k, j], j >= k
        return xp.moveaxis(xp.sum(xp.multiply(products, xp.expand_dims(cotangent, -2)), axis=-1), -1, axis)

    return [pull]


def _cumulative_extremum(xp: Any, y: Array, g: Array, x: Array, axis: int) -> list[Any]:
    """Pull the cotangent back to the last place that has given the extremum."""

    def pull() -> Array:
        at = axis % len(xp.shape(x))
        shape = xp.shape(x)
        positions = xp.reshape(
            xp.iota(shape[at], dtypes.int64), tuple(n if a == at else 1 for a, n in enumerate(shape))
        )
        source = xp.cummax(xp.where(xp.equal(x, y), positions, xp.full((), 0, dtypes.int64)), axis=at)
        return xp.put_along_axis(xp.zeros_like(x), source, g, at, mode="add")

    return [pull]


RULES: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extremum,
    "min": _extremum,
    "cumsum": _cumsum,
    "cumprod": _cumprod,
    "cummax": _cumulative_extremum,
    "cummin": _cumulative_extremum,
}
