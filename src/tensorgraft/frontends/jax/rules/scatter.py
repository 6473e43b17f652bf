"""Scatter and its kinds, for all dimension numbers. Updates whose window does not fit are dropped, but in mode clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.gather_windows import GatherWindows, gather_windows
from tensorgraft.frontends.jax.rules.scalar_functions import ScalarFunction, scalar_function
from tensorgraft.frontends.jax.rules.structural import permuted, reshaped
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

Ints = tuple[int, ...]
Apply = Callable[[Array, Array], Array]  # (present value, update) -> new value

# kind -> the hub's operation of two arrays
_COMBINE = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}


def _looked_up(
    xp: Backend, x: Array, indices: Array, updates: Array, numbers: Any, mode: Any, known: Any
) -> tuple[GatherWindows, Array]:
    """Return (the positions to which updates are written, the updates): batch axes first, then those of the windows, in
    the order of the operand."""
    shape, update_shape = xp.shape(x), xp.shape(updates)
    points = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    extents = iter([update_shape[a] for a in numbers.update_window_dims])
    sizes = tuple(1 if a in points else next(extents) for a in range(len(shape)))
    where = gather_windows(
        xp,
        shape,
        indices,
        sizes,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        masked=GatherScatterMode.from_any(mode) != GatherScatterMode.CLIP,
        known=known,
    )
    batch_axes = [a for a in range(len(update_shape)) if a not in numbers.update_window_dims]
    updates = permuted(xp, updates, (*batch_axes, *numbers.update_window_dims))
    return where, reshaped(xp, updates, (*where.batch, *sizes))


def _window_mask(xp: Any, mask: AnyArray, extra_ndim: int) -> AnyArray:
    """Return a mask of the batch, to broadcast with updates of `extra_ndim` axes in a window."""
    return xp.reshape(mask, (*xp.shape(mask), *(1,) * extra_ndim)) if extra_ndim else mask


def _put_one(xp: Backend, x: Array, where: GatherWindows, update: Array, apply: Apply) -> Array:
    """Put `update` into the only window."""
    update = xp.reshape(update, where.sizes)
    if not where.axes:
        old, new = x, apply(x, update)
        return new if where.fits is None else xp.where(xp.reshape(where.fits, ()), new, old)
    at = where.corner(xp)
    old = xp.dynamic_slice(x, at, where.sizes)
    new = apply(old, update)
    if where.fits is not None:
        new = xp.where(xp.reshape(where.fits, ()), new, old)
    return xp.dynamic_update_slice(x, new, at)


def _put(xp: Backend, x: Array, where: GatherWindows, updates: Array, kind: str) -> Array:
    """Scatter all windows at once."""
    rank, n = len(where.shape), len(where.batch)
    axes, spans, full = where.axes, where.spans, where.full_axes
    if where.fits is not None and kind != "set":
        neutral = xp.full((), _identity(kind, xp.dtype_of(x)), xp.dtype_of(x))
        updates = xp.where(_window_mask(xp, where.fits, rank), updates, neutral)
    # points have extent 1: they go
    order = (*range(n), *(n + a for a in (*spans, *full)), *(n + a for a in axes if a not in spans))
    extents = tuple(where.sizes[a] for a in (*spans, *full))
    updates = reshaped(xp, permuted(xp, updates, order), (*where.batch, *extents))
    moved = permuted(xp, x, (*axes, *full))
    index = where.index(xp)
    if not axes:  # everything, many times
        moved, index = xp.expand_dims(moved, 0), [xp.zeros(where.batch, dtypes.int64)]
    if where.fits is not None and kind == "set":
        out = _set_inside(xp, moved, index, updates, _window_mask(xp, where.fits, len(spans)))
    else:
        out = xp.scatter(moved, index, updates, mode=kind)
    if not axes:
        return reshaped(xp, out, where.shape)
    return permuted(xp, out, np.argsort((*axes, *full)).tolist())


@with_operators
def _set_inside(xp: ValueBackend, x: Value, index: list[Value], updates: Value, in_range: Value) -> Value:
    """Set the updates that are in range. Updates out of range go, in a small array, to an extra row that is cut off; in
    a large one, to avoid a copy, they repeat the last update that is in range."""
    shape, k = x.shape, len(index)
    rows = math.prod(shape[:k])
    flat: Any = None
    for at, n in zip(index, shape[:k], strict=True):
        flat = at if flat is None else flat * n + at
    rest = shape[k:]
    rowwise = xp.reshape(x, (rows, *rest))
    if xp.size(x) <= 4 * xp.size(updates) + _SMALL:
        flat = xp.where(in_range, flat, xp.full((), rows, dtypes.int64))
        wide = xp.concat([rowwise, xp.zeros((1, *rest), x.dtype)], axis=0)
        return xp.reshape(xp.take_slice(xp.scatter(wide, [flat], updates), 0, 0, rows), shape)
    count = xp.size(flat)
    in_range = xp.reshape(xp.broadcast_to(in_range, flat.shape), (count,))
    flat, updates = xp.reshape(flat, (count,)), xp.reshape(updates, (count, *rest))
    last = xp.max(xp.where(in_range, xp.iota(count, dtypes.int64), xp.full((), -1, dtypes.int64)))
    example = xp.reshape(xp.maximum(last, 0), (1,))
    row = xp.take(flat, example, axis=0)  # if none is in range, some row is set to its present value
    value = xp.where(last >= 0, xp.take(updates, example, axis=0), xp.take(rowwise, row, axis=0))
    updates = xp.where(_window_mask(xp, in_range, len(rest)), updates, value)
    return xp.reshape(xp.scatter(rowwise, [xp.where(in_range, flat, row)], updates), shape)


_SMALL = 1 << 14


def _identity(kind: str, dtype: np.dtype) -> Any:
    if kind == "add":
        return -0.0 if dtypes.is_floating(dtype) else 0
    if kind == "multiply":
        return 1
    return dtypes.highest(dtype) if kind == "min" else dtypes.lowest(dtype)


def _scatter(kind: str) -> Callable[..., Any]:
    def run(
        xp: Backend,
        x: Array,
        indices: Array,
        updates: Array,
        *,
        dimension_numbers: Any,
        mode: Any,
        update_jaxpr: Any,
        update_consts: Any,
        known: Any,
        **_: Any,
    ) -> Array:
        if not xp.size(updates) or not xp.size(x):
            return x
        if kind == "subtract":
            updates = xp.subtract(xp.zeros_like(updates), updates)
        where, updates = _looked_up(xp, x, indices, updates, dimension_numbers, mode, known[1])
        if kind == "set" and update_jaxpr is None:
            apply: Apply = lambda old, new: new  # noqa: E731
        elif kind == "set" or (kind in ("min", "max") and dtypes.is_complex(xp.dtype_of(x))):
            return _apply_each(xp, x, where, updates, scalar_function(update_jaxpr, update_consts))
        else:
            combine = _COMBINE["add" if kind == "subtract" else kind]
            apply = lambda old, new: getattr(xp, combine)(old, new)  # noqa: E731
        if where.count == 1:
            return _put_one(xp, x, where, updates, apply)
        return _put(xp, x, where, updates, "add" if kind == "subtract" else kind)

    return run


def _apply_each(xp: Backend, x: Array, where: GatherWindows, updates: Array, function: ScalarFunction) -> Array:
    """Apply a function of (present value, update) one window after the other, because an index may occur twice."""
    n = where.count

    def step(carry: Array, row: tuple[Any, Array]) -> tuple[Array, tuple[()]]:
        (starts, in_range), update = row
        window = GatherWindows(
            where.shape, where.sizes, (), dict(zip(where.starts, starts, strict=True)), in_range, where.batching
        )
        return _put_one(xp, carry, window, update, lambda old, new: function(xp, old, new)[0]), ()

    flat = [xp.reshape(xp.broadcast_to(at, where.batch), (n,)) for at in where.starts.values()]
    in_range = None if where.fits is None else xp.reshape(where.fits, (n,))
    windows = xp.reshape(updates, (n, *where.sizes))
    return xp.scan(step, x, ((flat, in_range), windows), length=n)[0]


rule("scatter")(_scatter("set"))
for _name, _kind in {"add": "add", "sub": "subtract", "mul": "multiply", "min": "min", "max": "max"}.items():
    rule(f"scatter-{_name}")(_scatter(_kind))
    rule(f"scatter_{_name}")(_scatter(_kind))
