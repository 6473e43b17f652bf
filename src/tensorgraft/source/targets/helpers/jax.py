"""Functions of generated JAX files."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def integer_pow(x: jax.Array, y: jax.Array | int) -> jax.Array:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y & 1 == 1, x, 1), 0)
    return jnp.where(y < 0, inverse, x ** jnp.maximum(y, 0))


def sort_with_indices(x: jax.Array, axis: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """The values in order, and where they were."""
    order = jnp.argsort(x, axis=axis, descending=descending)
    return jnp.take_along_axis(x, order, axis=axis), order


def top_k(x: jax.Array, k: int, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    """The greatest `k` values along an axis, in order, and where they are."""
    order = jnp.argsort(x, axis=axis, descending=True)
    order = jax.lax.slice_in_dim(order, 0, k, axis=axis)
    return jnp.take_along_axis(x, order, axis=axis), order


def bottom_k(x: jax.Array, k: int, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    """The least `k` values along an axis, in order, and where they are."""
    order = jax.lax.slice_in_dim(jnp.argsort(x, axis=axis), 0, k, axis=axis)
    return jnp.take_along_axis(x, order, axis=axis), order


def put_along_axis(x: jax.Array, indices: jax.Array, updates: jax.Array, axis: int, mode: str = "set") -> jax.Array:
    """`x` with `updates` put, added, ... (`mode`) where `indices` say along an axis."""
    if x.ndim == 0:
        return put_along_axis(x[None], indices.reshape(-1), updates.reshape(-1), 0, mode)[0]
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return getattr(x.at[tuple(places)], mode)(updates)


def searchsorted(boundaries: jax.Array, values: jax.Array, side: str) -> jax.Array:
    """Where `values` belong, each row in the row of `boundaries` with its number."""
    search = lambda b, v: jnp.searchsorted(b, v, side=side)  # noqa: E731
    for _ in boundaries.shape[:-1]:
        search = jax.vmap(search)
    return search(boundaries, values).astype(int)
