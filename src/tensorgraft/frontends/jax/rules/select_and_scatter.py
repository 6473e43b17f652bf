"""One element of every window: the gradients of pooling by maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.associative_scan import Combine
from tensorgraft.frontends.jax.rules.reduction import identity
from tensorgraft.frontends.jax.rules.scalar_functions import ScalarFunction, scalar_function
from tensorgraft.frontends.jax.rules.windowed import Ints, Pads, folded_windows, of_present, pad_with
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# the reduction of a name -> the mode of the hub's scatter
_MODES = {"sum": "add", "prod": "multiply", "max": "max", "min": "min"}


def _by_comparison(name: str) -> Combine:
    """Return a function that selects, of two elements, the first where it is `ge` or `le` the second, and other
    operands along with it."""

    def combine(xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        first = (xp.greater_equal if name == "ge" else xp.less_equal)(a[0], b[0])
        return [xp.where(first, u, v) for u, v in zip(a, b, strict=True)]

    return combine


def _by_function(select: ScalarFunction) -> Combine:
    def combine(xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        first = select(xp, a[0], b[0])[0]
        return [xp.where(first, u, v) for u, v in zip(a, b, strict=True)]

    return combine


def _extreme(select_prim: Any, dtype: np.dtype) -> Any:
    """Return the value that `select_prim` never selects, except among its equals."""
    return identity("max" if select_prim.name == "ge" else "min", dtype)


def _positions(xp: Backend, x: Array, combine: Combine, window: Ints, strides: Ints) -> Array:
    """Return the place in the flat array of the element that each window chooses: 1-d."""
    shape = xp.shape(x)
    at = xp.reshape(xp.iota(math.prod(shape), dtypes.int64), shape)
    winners = folded_windows(xp, [x, at], combine, window, strides, (1,) * len(window))[1]
    return xp.reshape(winners, (xp.size(winners),))


def _unpadded(xp: Backend, flat: Array, wide: Ints, padding: Pads, shape: Ints) -> Array:
    start = tuple(int(low) for low, _ in padding)
    stop = tuple(low + n for low, n in zip(start, shape, strict=True))
    dilated = xp.reshape(flat, tuple(wide))
    return dilated if tuple(wide) == tuple(shape) else xp.slice(dilated, start, stop, (1,) * len(shape))


@rule("select_and_scatter_add")
def select_and_scatter_add(
    xp: Backend,
    source: Array,
    operand: Array,
    *,
    select_prim: Any,
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Pads,
    **_: Any,
) -> Array:
    shape, dtype = xp.shape(operand), xp.dtype_of(source)
    if not xp.size(source) or not xp.size(operand):
        return xp.zeros(shape, dtype)
    unit_steps = (1,) * len(shape)
    padded = pad_with(xp, operand, _extreme(select_prim, xp.dtype_of(operand)), padding, unit_steps)
    wide = xp.shape(padded)
    at = _positions(xp, padded, _by_comparison(select_prim.name), window_dimensions, window_strides)
    flat = xp.zeros((math.prod(wide),), dtype)
    return _unpadded(xp, xp.scatter(flat, [at], xp.reshape(source, xp.shape(at)), mode="add"), wide, padding, shape)


@rule("select_and_gather_add")
def select_and_gather_add(
    xp: Backend,
    tangents: Array,
    operand: Array,
    *,
    select_prim: Any,
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Pads,
    base_dilation: Ints,
    window_dilation: Ints,
    out: Any,
    **_: Any,
) -> Array:
    shape, dtype = tuple(out[0].shape), xp.dtype_of(operand)
    if 0 in shape:
        return xp.zeros(shape, dtype)
    least = _extreme(select_prim, dtype)
    keys = pad_with(xp, operand, least, padding, base_dilation)
    values = pad_with(xp, tangents, 0, padding, base_dilation)
    combine = _by_comparison(select_prim.name)
    selected = folded_windows(xp, [keys, values], combine, window_dimensions, window_strides, window_dilation)
    return combine(xp, [xp.full(shape, least, dtype), xp.zeros(shape, dtype)], selected)[1]


@rule("select_and_scatter")
def select_and_scatter(
    xp: Backend,
    operand: Array,
    source: Array,
    initial: Array,
    *,
    select_jaxpr: Any,
    select_consts: Sequence[Any],
    scatter_jaxpr: Any,
    scatter_consts: Sequence[Any],
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Pads,
    **_: Any,
) -> Array:
    """Select and scatter by any two functions (StableHLO, `select_and_scatter`). Borders are not selected, as XLA does
    it."""
    shape, dtype = xp.shape(operand), xp.dtype_of(operand)
    unit_steps = (1,) * len(shape)
    padded = pad_with(xp, operand, 0, padding, unit_steps)
    wide = xp.shape(padded)
    flat = xp.full((math.prod(wide),), initial, dtype)
    if xp.size(source):
        is_element = pad_with(xp, xp.full(shape, True, dtypes.bool_), False, padding, unit_steps)
        select = of_present(_by_function(scalar_function(select_jaxpr, select_consts)))
        numbers = xp.reshape(xp.iota(math.prod(wide), dtypes.int64), wide)
        at = folded_windows(xp, [is_element, padded, numbers], select, window_dimensions, window_strides, unit_steps)[2]
        at = xp.reshape(at, (xp.size(at),))
        updates = xp.reshape(source, xp.shape(at))
        function = scalar_function(scatter_jaxpr, scatter_consts)
        mode = _MODES.get(function.monoid or "")
        if mode is not None and not (mode in ("min", "max") and dtypes.is_complex(dtype)):
            flat = xp.scatter(flat, [at], updates, mode=mode)
        else:
            flat = _scattered(xp, flat, at, updates, function)
    return _unpadded(xp, flat, wide, padding, shape)


def _scattered(xp: Backend, flat: Array, at: Array, updates: Array, function: ScalarFunction) -> Array:
    """Apply the updates one after the other."""

    def step(carry: Array, row: tuple[Array, Array]) -> tuple[Array, tuple[()]]:
        where, update = row
        old = xp.dynamic_slice(carry, [where], (1,))
        return xp.dynamic_update_slice(carry, function(xp, old, xp.reshape(update, (1,)))[0], [where]), ()

    return xp.scan(step, flat, (at, updates), length=xp.size(at))[0]
