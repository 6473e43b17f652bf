"""Running sums, products and extrema on the CPU, where XLA's own are associative scans of many passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.compilation import effort
from tensorgraft.hub.array import NativeArray as Array

_WIDE = 64  # elements along the other axes, with which a step is efficient
_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
_LONG = 16_384  # an axis from this length on is scanned in blocks if it is not wide


def running(
    native: Callable[[Array, int], Array],
    join: Callable[..., Array],
    unit: Callable[[np.dtype], Any],
    rounds: bool = False,
) -> Callable[[Array, int], Array]:
    """Return a function that computes what `native(x, axis)` does, on the CPU by steps along the axis.

    Derivatives are those of `native`.

    Arguments:
        native: an inclusive scan of JAX, as `lax.cummax`.
        join: the associative function that it applies.
        unit: given the dtype, the value that `join` leaves others as they are with.
        rounds: `join` rounds. Errors add up along the axis, so float32 is accumulated in float64, as in PyTorch and
            NumPy; without 64-bit types it is left to `native`, which joins in pairs.
    """

    def scan(x: Array, axis: int) -> Array:
        if not (effort.is_cpu_only() and isinstance(x.shape[axis], int) and x.shape[axis] > 1):
            return native(x, axis)
        wide = _WIDER.get(x.dtype, x.dtype) if rounds else x.dtype
        if wide != x.dtype and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return native(x, axis)
        step_by_step = jax.custom_jvp(lambda x: _by_steps(x, axis, join, unit(wide), wide))
        step_by_step.defjvp(lambda primals, tangents: jax.jvp(lambda x: native(x, axis), primals, tangents))
        return step_by_step(x)

    return scan


def _by_steps(x: Array, axis: int, join: Callable[..., Array], unit: Any, wide: np.dtype) -> Array:
    """Scan row by row, accumulated in the dtype `wide`: what lies in memory between is as narrow as `x`. A long axis
    with few elements along the others is divided into blocks, which are scanned together, each from the total of those
    before it on."""
    length, others = x.shape[axis], math.prod(n for a, n in enumerate(x.shape) if a != axis)
    rows = jnp.moveaxis(x, axis, 0)
    start = jnp.full(rows.shape[1:], unit, wide)
    if length < _LONG or others >= _WIDE or not others:
        out = _scan(rows, join, start)
    else:
        blocks = math.isqrt(length)
        steps = -(-length // blocks)
        padding = [(0, blocks * steps - length), *[(0, 0)] * (x.ndim - 1)]
        padded = jnp.pad(rows, padding, constant_values=unit).reshape(blocks, steps, *rows.shape[1:])
        by_step = jnp.moveaxis(padded, 1, 0)
        totals = _total(by_step, join, jnp.full(by_step.shape[1:], unit, wide))
        before = jnp.concatenate([start[None], _scan(totals, join, start)[:-1]])
        out = jnp.moveaxis(_scan(by_step, join, before), 0, 1).reshape(blocks * steps, *rows.shape[1:])[:length]
    return jnp.moveaxis(out, 0, axis)


def _scan(rows: Array, join: Callable[..., Array], start: Array) -> Array:
    """Return the scan along the first axis, from `start` on."""

    def step(total: Array, row: Array) -> tuple[Array, Array]:
        joined = join(total, lax.convert_element_type(row, total.dtype))
        return joined, lax.convert_element_type(joined, row.dtype)

    return lax.scan(step, start, rows)[1]


def _total(rows: Array, join: Callable[..., Array], start: Array) -> Array:
    def step(total: Array, row: Array) -> tuple[Array, None]:
        return join(total, lax.convert_element_type(row, total.dtype)), None

    return lax.scan(step, start, rows)[0]
