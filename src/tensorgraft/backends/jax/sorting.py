"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.operation import operation

Array = Any


def _searchsorted(boundaries: Array, values: Array, right: bool) -> Array:
    def search(a: Array, v: Array) -> Array:
        return jnp.searchsorted(a, v, side="right" if right else "left").astype(np.int64)

    if boundaries.ndim == 1:
        return search(boundaries, values)
    lead = boundaries.shape[:-1]
    flat = jax.vmap(search)(
        boundaries.reshape(-1, boundaries.shape[-1]), values.reshape(-1, *values.shape[len(lead) :])
    )
    return flat.reshape(values.shape)


_sorted = operation(
    lambda operands, axis, num_keys: lax.sort(operands, axis, is_stable=True, num_keys=num_keys), ("axis", "num_keys")
)


class JaxSorting:
    _search = operation(_searchsorted, ("right",))

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        return self._search(boundaries, values, right=right)

    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        return _sorted(self, tuple(operands), axis=axis % len(operands[0].shape), num_keys=num_keys)
