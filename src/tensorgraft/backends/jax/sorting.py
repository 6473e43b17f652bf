"""Sorting and searching."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.operation import operation
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sorting import Sorting


def _searchsorted(boundaries: Array, values: Array, right: bool) -> Array:
    def search(a: Array, v: Array) -> Array:
        return jnp.searchsorted(a, v, side="right" if right else "left").astype(np.int64)

    if boundaries.ndim == 1:
        return search(boundaries, values)
    rows = math.prod(boundaries.shape[:-1])
    flat = jax.vmap(search)(boundaries.reshape(rows, boundaries.shape[-1]), values.reshape(rows, values.shape[-1]))
    return flat.reshape(values.shape)


_sorted = operation(
    lambda operands, axis, num_keys: lax.sort(operands, axis, is_stable=True, num_keys=num_keys), ("axis", "num_keys")
)


def _top_k(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    # the order of lax.top_k is total: it tells zeros and NaNs of one sign from those of the other
    keys = lax.convert_element_type(x, np.float32)
    keys = jnp.where(keys == 0, 0, jnp.where(jnp.isnan(keys), jnp.nan, keys))
    at = lax.top_k(keys, k, axis=axis)[1].astype(np.int64)
    return jnp.take_along_axis(x, at, axis, mode="promise_in_bounds"), at


_greatest = operation(_top_k, ("k", "axis"))


class JaxSorting(Sorting):
    _search = operation(_searchsorted, ("right",))

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        return self._search(boundaries, values, right=right)

    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        return _sorted(self, tuple(operands), axis=axis % len(operands[0].shape), num_keys=num_keys)

    def top_k(self, x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
        # XLA has something quicker than a sort for float32 only, and only for the largest
        if not largest or not x.shape or dtypes.accumulator(x.dtype) != np.float32:
            return super().top_k(x, k, axis, largest)
        return _greatest(self, x, k=k, axis=axis % len(x.shape))
