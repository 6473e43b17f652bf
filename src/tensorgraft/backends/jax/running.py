"""Running sums, products and extrema on the CPU, where XLA's own are associative scans of many passes.

Large arrays are scanned by kernels in C++: XLA's loops take a step for each row, and rows of the last axis have to be
transposed (724 x 724 of float32 along the last axis, in CPU ms: 5.6, the kernel 0.5, CPU PyTorch 0.8).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax import cpu_kernels
from tensorgraft.backends.jax.compilation import effort
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

_WIDE = 64  # elements along the other axes, with which a step is efficient
_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}
_LONG = 16_384  # an axis from this length on is scanned in blocks if it is not wide
_LARGE = 1 << 13  # elements from which on there is a kernel: compiling that takes longer than less work saves
_HAVE_KERNELS = frozenset(map(np.dtype, ("float32", "float64", "int32", "int64")))


def running(
    native: Callable[[Array, int], Array],
    join: Callable[..., Array],
    unit: Callable[[np.dtype], Any],
    rounds: bool = False,
    kernel: str = "",
) -> Callable[[Array, int], Array]:
    """Return a function that computes what `native(x, axis)` does, on the CPU by steps along the axis.

    Derivatives are those of `native`.

    Arguments:
        native: an inclusive scan of JAX, as `lax.cummax`.
        join: the associative function that it applies.
        unit: given the dtype, the value that `join` leaves others as they are with.
        rounds: `join` rounds. Errors add up along the axis, so float32 is accumulated in float64, as in PyTorch and
            NumPy; without 64-bit types it is left to `native`, which joins in pairs.
        kernel: the one that scans large arrays.
    """

    def by_steps(x: Array, axis: int = 1) -> Array:
        wide = _WIDER.get(x.dtype, x.dtype) if rounds else x.dtype
        return _by_steps(x, axis, join, unit(wide), wide)

    by_kernel = cpu_kernels.kernel(kernel, lambda x: (by_steps(x),)) if kernel else None

    def values(x: Array, axis: int) -> Array:
        if by_kernel is None or not is_large(x) or x.dtype not in _HAVE_KERNELS:
            return by_steps(x, axis)
        return along(by_kernel, x, axis)[0]

    def scan(x: Array, axis: int) -> Array:
        if not (effort.is_cpu_only() and isinstance(x.shape[axis], int) and x.shape[axis] > 1):
            return native(x, axis)
        if rounds and x.dtype in _WIDER and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return native(x, axis)
        step_by_step = jax.custom_jvp(lambda x: values(x, axis))
        step_by_step.defjvp(lambda primals, tangents: jax.jvp(lambda x: native(x, axis), primals, tangents))
        return step_by_step(x)

    return scan


def along(kernel: cpu_kernels.Fn, x: Array, axis: int) -> list[Array]:
    """Call a kernel that works along the second of three axes."""
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    return [lax.reshape(out, x.shape) for out in kernel(lax.reshape(x, (outer, x.shape[axis], inner)))]


def is_large(x: Array) -> bool:
    """Return True if a kernel takes an array: it has many elements, as far as they are known."""
    return all(isinstance(n, int) for n in x.shape) and math.prod(x.shape) >= _LARGE


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


# ---- extremes and their positions ------------------------------------------------------------------------------------


def _in_operations(largest: bool) -> cpu_kernels.Fn:
    """Return the function that the kernel computes, in operations of JAX: rows along the second of three axes."""

    def extremes(x: Array) -> tuple[Array, Array]:
        def step(total: tuple[Array, Array], row: tuple[Array, Array]) -> Any:
            takes = (row[0] >= total[0] if largest else row[0] <= total[0]) | (row[0] != row[0])
            joined = jnp.where(takes, row[0], total[0]), jnp.where(takes, row[1], total[1])
            return joined, joined

        rows = jnp.moveaxis(x, 1, 0)
        positions = lax.broadcasted_iota(np.int64, rows.shape, 0)
        out = lax.scan(step, (rows[0], positions[0]), (rows, positions))[1]
        return jnp.moveaxis(out[0], 0, 1), jnp.moveaxis(out[1], 0, 1)

    return extremes


_EXTREMES = {
    largest: cpu_kernels.kernel(name, _in_operations(largest), [np.dtype(np.int64)])
    for largest, name in ((True, "cummax_positions"), (False, "cummin_positions"))
}


def _kernel_dtype(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype in which a kernel computes elements exactly; None if there is none."""
    if dtype in _HAVE_KERNELS:
        return dtype
    if dtypes.is_floating(dtype):
        return np.dtype(np.float32)
    return np.dtype(np.int32) if dtypes.is_integer(dtype) and dtype.itemsize < 4 else None


def has_positions(x: Array, axis: int) -> bool:
    """Return True if `with_positions` takes an array."""
    has_64_bits = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    fits = is_large(x) and x.shape[axis] < 2**31 and _kernel_dtype(x.dtype) is not None
    return effort.is_cpu_only() and has_64_bits and fits


def with_positions(x: Array, axis: int, largest: bool) -> tuple[Array, Array]:
    """Compute `Backend.running_extreme` of a large array by a kernel."""
    kernel_dtype = _kernel_dtype(x.dtype)
    assert kernel_dtype is not None

    @jax.custom_jvp
    def extremes(x: Array) -> tuple[Array, Array]:
        values, positions = along(_EXTREMES[largest], lax.convert_element_type(x, kernel_dtype), axis)
        return lax.convert_element_type(values, x.dtype), positions

    @extremes.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        values, positions = extremes(*primals)
        moving = jnp.take_along_axis(tangents[0], positions, axis, mode="promise_in_bounds")
        return (values, positions), (moving, np.zeros(positions.shape, jax.dtypes.float0))

    return extremes(x)
