"""Reductions and scans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from tensorgraft.backends.jax.compilation import effort
from tensorgraft.backends.jax.operation import axes_of, operation
from tensorgraft.backends.jax.running import has_positions, running, with_positions
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.reduction import Reduction

Axis = int | tuple[int, ...] | None
Fn = Callable[..., Array]


def _keep(out: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if not keepdims:
        return out
    return lax.reshape(out, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))


def _reduction(fn: Fn, logical: Fn) -> Fn:
    """Return `fn(x, axes)`, 16-bit floats accumulated in float32; bool by `logical`."""

    def reduce(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Array:
        axes = axes_of(x, axis)
        if x.dtype == np.bool_:
            return _keep(logical(x, axes), x, axes, keepdims)
        wide = lax.convert_element_type(x, dtypes.accumulator(x.dtype))
        return _keep(lax.convert_element_type(fn(wide, axes), x.dtype), x, axes, keepdims)

    return reduce


_LONG = 128  # elements from which on an axis is cut


def _product(x: Array, axes: tuple[int, ...]) -> Array:
    """Multiply along axes. On CPUs, XLA vectorises no product along the last axis, which is cut into rows here."""
    last = len(x.shape) - 1
    if not effort.is_cpu_only() or last not in axes or not isinstance(x.shape[last], int) or x.shape[last] < _LONG:
        return lax.reduce_prod(x, axes)
    in_rows = jax.custom_jvp(lambda x: _product_of_rows(x, axes))
    in_rows.defjvp(lambda primals, tangents: jax.jvp(lambda x: lax.reduce_prod(x, axes), primals, tangents))
    product: Array = in_rows(x)
    return product


def _product_of_rows(x: Array, axes: tuple[int, ...]) -> Array:
    # without barriers all would be one loop, in which the elements of a column follow each other
    if len(axes) > 1:
        x = lax.optimization_barrier(lax.reduce_prod(x, tuple(a for a in axes if a != len(x.shape) - 1)))
    last = len(x.shape) - 1
    columns = 1 << max(x.shape[last].bit_length() // 2, 6)
    rows, rest = divmod(x.shape[last], columns)
    whole, left = lax.split(x, (rows * columns, rest), last) if rest else (x, None)
    matrix = lax.reshape(whole, (*x.shape[:last], rows, columns))
    out = lax.reduce_prod(lax.optimization_barrier(lax.reduce_prod(matrix, (last,))), (last,))
    return out if left is None else lax.mul(out, lax.reduce_prod(left, (last,)))


def _position(fn: Fn, extreme: Fn) -> Fn:
    """Return a function that finds where the `extreme` is. `fn`: that of JAX, which XLA does not vectorise on a CPU,
    where two reductions take a sixth of its time."""

    def find(x: Array, /, axis: int, keepdims: bool = False) -> Array:
        if not x.shape:
            return lax.full((), 0, np.int64)
        axes = axes_of(x, axis)
        # int64 positions inside would be lost where the program is part of one that is lowered without 64-bit types
        inner = np.dtype(np.int32 if x.shape[axes[0]] < 2**31 else np.int64)
        if effort.is_cpu_only() and x.dtype != np.bool_ and isinstance(x.shape[axes[0]], int):
            at = _first(x, extreme(x, axes), axes[0], inner)
        else:
            at = fn(x, axes[0], inner)
        return _keep(lax.convert_element_type(at, np.int64), x, axes, keepdims)

    return find


def _first(x: Array, value: Array, axis: int, dtype: np.dtype) -> Array:
    """Return the first position along an axis where `x` is a value of its other axes, or NaN."""
    found = x == lax.expand_dims(value, (axis,))
    if dtypes.is_inexact(x.dtype):
        found |= x != x
    positions = lax.broadcasted_iota(dtype, x.shape, axis)
    return lax.reduce_min(lax.select(found, positions, lax.full_like(positions, x.shape[axis] - 1)), (axis,))


_CUMSUM = running(lax.cumsum, lax.add, lambda dtype: -0.0 if dtypes.is_inexact(dtype) else 0, True, "cumsum")
_CUMPROD = running(lax.cumprod, lax.mul, lambda dtype: 1, True, "cumprod")
_CUMMAX = running(lax.cummax, lax.max, dtypes.lowest, kernel="cummax")
_CUMMIN = running(lax.cummin, lax.min, dtypes.highest, kernel="cummin")


def _scan(fn: Fn, of_bool: Fn) -> Fn:
    """Return `fn(x, axis)` in the accumulator's dtype; bool as 0 and 1, of which sums are maxima and products
    minima."""

    def scan(x: Array, /, axis: int) -> Array:
        axis %= len(x.shape)
        if x.dtype == np.bool_:
            return lax.convert_element_type(of_bool(lax.convert_element_type(x, np.uint8), axis), np.bool_)
        return lax.convert_element_type(fn(lax.convert_element_type(x, dtypes.accumulator(x.dtype)), axis), x.dtype)

    return scan


_extremes = operation(with_positions, ("axis", "largest"))


class JaxReduction:
    sum = operation(_reduction(lax.reduce_sum, lax.reduce_or), ("axis", "keepdims"))
    prod = operation(_reduction(_product, lax.reduce_and), ("axis", "keepdims"))
    max = operation(_reduction(lax.reduce_max, lax.reduce_or), ("axis", "keepdims"))
    min = operation(_reduction(lax.reduce_min, lax.reduce_and), ("axis", "keepdims"))
    any = operation(_reduction(lax.reduce_or, lax.reduce_or), ("axis", "keepdims"))
    all = operation(_reduction(lax.reduce_and, lax.reduce_and), ("axis", "keepdims"))
    argmax = operation(_position(lax.argmax, lax.reduce_max), ("axis", "keepdims"))
    argmin = operation(_position(lax.argmin, lax.reduce_min), ("axis", "keepdims"))
    cumsum = operation(_scan(_CUMSUM, _CUMMAX), ("axis",))
    cumprod = operation(_scan(_CUMPROD, _CUMMIN), ("axis",))
    cummax = operation(_scan(_CUMMAX, _CUMMAX), ("axis",))
    cummin = operation(_scan(_CUMMIN, _CUMMIN), ("axis",))

    def running_extreme(self, x: Array, axis: int, largest: bool = True) -> tuple[Array, Array]:
        axis %= len(x.shape)
        if not has_positions(x, axis):
            return Reduction.running_extreme(self, x, axis, largest)  # type: ignore[arg-type]
        return _extremes(self, x, axis=axis, largest=largest)

    def cumlogsumexp(self, x: Array, axis: int) -> Array:
        xp: Any = self
        composite = functools.partial(Reduction.cumlogsumexp, xp)
        if dtypes.is_complex(x.dtype):
            return composite(x, axis)
        return running(composite, xp.logaddexp, lambda dtype: -np.inf)(x, axis % x.ndim)
