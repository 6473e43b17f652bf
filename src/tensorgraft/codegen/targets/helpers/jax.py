"""Functions of generated JAX files."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tensorgraft.hub.operations.neural import taps


def integer_pow(x: jax.Array, y: jax.Array | int) -> jax.Array:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y & 1 == 1, x, 1), 0)
    return jnp.where(y < 0, inverse, x ** jnp.maximum(y, 0))


def sort_with_indices(x: jax.Array, axis: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """The values in order, and where they were."""
    order = jnp.argsort(x, axis=axis, descending=descending)
    return jnp.take_along_axis(x, order, axis=axis), order


def put_along_axis(x: jax.Array, indices: jax.Array, updates: jax.Array, axis: int, mode: str = "set") -> jax.Array:
    """`x` with `updates` put, added, ... (`mode`) where `indices` say along an axis."""
    if x.ndim == 0:
        return put_along_axis(x[None], indices.reshape(-1), updates.reshape(-1), 0, mode)[0]
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return getattr(x.at[tuple(places)], mode)(updates)


def searchsorted(boundaries: jax.Array, values: jax.Array, side: str) -> jax.Array:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    search = lambda b, v: jnp.searchsorted(b, v, side=side)  # noqa: E731
    for _ in boundaries.shape[:-1]:
        search = jax.vmap(search)
    return search(boundaries, values).astype(int)


def dropout(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Zeros at random, the rest divided by 1 - rate."""
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def padded_embedding(weight, indices, padding):
    """Rows of weight; that of `padding` is not trained."""
    rows = weight[indices]
    return jnp.where((indices == padding)[..., None], jax.lax.stop_gradient(rows), rows)


def resize(x: jax.Array, size: tuple[int, ...], method: str = "nearest", corners: bool = False) -> jax.Array:
    """The last axes of x at another size: by the nearest places, or "linear" or "cubic" (Keys 1981) between them."""
    for axis, m in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        n = x.shape[axis]
        if method == "nearest":
            x = jnp.take(x, np.arange(m) * n // m, axis=axis)
        elif n != m:
            weights = jnp.asarray(taps(n, m, method, corners), x.dtype)
            x = jnp.moveaxis(jnp.tensordot(x, weights, axes=(axis, 1)), -1, axis)
    return x
