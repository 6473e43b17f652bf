"""Gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.operation import Tracer, operation
from tensorgraft.hub.array import NativeArray as Array

# front ends have checked and wrapped the indices
_TRUSTED: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
# for bool, sums are maxima and products minima
_OF_BOOL = {"add": "max", "multiply": "min"}


def _gather(x: Array, indices: Sequence[Array]) -> Array:
    return x.at[tuple(indices)].get(**_TRUSTED)


def _scatter(x: Array, indices: Sequence[Array], updates: Array, mode: str) -> Array:
    if x.dtype == np.bool_ and mode != "set":
        wide = _scatter(x.astype(np.uint8), indices, updates.astype(np.uint8), _OF_BOOL.get(mode, mode))
        return wide.astype(np.bool_)
    if mode == "multiply" and np.issubdtype(x.dtype, np.inexact):
        return _scatter_product(x, indices, updates)
    return getattr(x.at[tuple(indices)], mode)(updates, **_TRUSTED)


@jax.custom_jvp
def _scatter_product(x: Array, indices: Sequence[Array], updates: Array) -> Array:
    """Multiply elements by updates. JAX has no derivative where indices are repeated."""
    return jnp.asarray(x).at[tuple(indices)].multiply(updates, **_TRUSTED)


@_scatter_product.defjvp
def _scatter_product_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The tangent of a product is that of each factor times the others, without divisions by zero."""
    x, indices, updates = jnp.asarray(primals[0]), primals[1], jnp.asarray(primals[2])
    zero_x, zero_update = x == 0, updates == 0
    zeros = _scatter(zero_x.astype(np.int32), indices, zero_update.astype(np.int32), "add")
    product = _scatter_product(jnp.where(zero_x, 1, x), indices, jnp.where(zero_update, 1, updates))

    def others(factor: Array, is_zero: Array, zeros: Array, product: Array) -> Array:
        return jnp.where(zeros == is_zero, product / jnp.where(is_zero, 1, factor), 0)

    of_updates = others(updates, zero_update, _gather(zeros, indices), _gather(product, indices))
    tangent = _scatter(tangents[0] * others(x, zero_x, zeros, product), indices, tangents[2] * of_updates, "add")
    return _scatter_product(x, indices, updates), tangent


def _take(x: Array, indices: Array, axis: int) -> Array:
    return x.at[(slice(None),) * (axis % len(x.shape)) + (indices,)].get(**_TRUSTED)


def _batched(x: Array, indices: Array, axis: int) -> tuple[Any, Any, Array]:
    """Return (x and indices with their other axes as batches, dimension numbers' parts, the indices with a last axis):
    the axes that go along are known to the compiler as such, and partitioned."""
    axis %= len(x.shape)
    other_axes = tuple(d for d in range(len(x.shape)) if d != axis)
    extents = tuple(n if d == axis else indices.shape[d] for d, n in enumerate(x.shape))
    if extents != x.shape:
        x = lax.slice(x, (0,) * len(extents), extents)
    return x, (axis, other_axes), lax.expand_dims(indices, (len(x.shape),))


def _take_along(x: Array, indices: Array, axis: int) -> Array:
    x, (axis, other_axes), at = _batched(x, indices, axis)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=other_axes,
        start_indices_batching_dims=other_axes,
    )
    return lax.gather(x, at, numbers, (1,) * len(x.shape), mode="promise_in_bounds")


_COMBINED = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def _put_along(x: Array, indices: Array, updates: Array, axis: int, mode: str) -> Array:
    if x.dtype == np.bool_ and mode != "set":
        wide = _put_along(x.astype(np.uint8), indices, updates.astype(np.uint8), axis, _OF_BOOL.get(mode, mode))
        return wide.astype(np.bool_)
    _, (axis, other_axes), at = _batched(x, indices, axis)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=other_axes,
        scatter_indices_batching_dims=other_axes,
    )
    return _COMBINED[mode](x, at, updates.astype(x.dtype), numbers, mode="promise_in_bounds")


def _put_row(x: Array, at: Array, row: Array, axis: int) -> Array:
    start = [at if d == axis else at.dtype.type(0) for d in range(len(x.shape))]

    def put(x: Array, row: Array) -> Array:
        return lax.dynamic_update_slice(x, row, start, allow_negative_indices=False)

    # XLA for CPUs repeats an update, and a copy of all of `x`, for each of its readers; a branch it runs once
    return lax.cond(at >= 0, put, lambda x, _: x, x, row)


_gathered = operation(_gather)
_scattered = operation(_scatter, ("mode",))


class JaxIndexing:
    for_cpu: bool

    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        return _gathered(self, x, list(indices))

    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        return _scattered(self, x, list(indices), updates, mode=mode)

    def put_row(self, x: Array, at: Array, row: Array, axis: int) -> Array:
        if not self.for_cpu or not isinstance(at, Tracer):
            return super().put_row(x, at, row, axis)  # type: ignore[misc]
        return self._put_row(x, at, row, axis=axis % len(x.shape))

    take = operation(_take, ("axis",))
    _put_row = operation(_put_row, ("axis",))
    _along = operation(_take_along, ("axis",))
    _onto = operation(_put_along, ("axis", "mode"))

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        if not x.shape:
            return super().take_along_axis(x, indices, axis)  # type: ignore[misc]
        return self._along(x, indices, axis=axis)

    def put_along_axis(self, x: Array, indices: Array, updates: Array, axis: int, mode: str = "set") -> Array:
        # one of each row (classes): many are slower so on a CPU than with all their indices written out
        expected_shape = tuple(1 if d == axis % len(x.shape) else n for d, n in enumerate(x.shape))
        if not x.shape or indices.shape != expected_shape or mode == "multiply":
            return super().put_along_axis(x, indices, updates, axis, mode)  # type: ignore[misc]
        return self._onto(x, indices, updates, axis=axis, mode=mode)

    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        # on the host: jnp.nonzero would compile for every number of true elements
        return tuple(self.asarray(at) for at in np.nonzero(self.to_numpy(x)))  # type: ignore[attr-defined]
