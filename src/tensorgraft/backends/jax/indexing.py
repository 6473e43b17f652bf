"""Gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.jax.operation import operation

Array = Any
# front ends have checked and wrapped the indices
_TRUSTED: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
# of bool, sums are maxima and products minima
_OF_BOOL = {"add": "max", "multiply": "min"}


def _gather(x: Array, indices: Sequence[Array]) -> Array:
    return x.at[tuple(indices)].get(**_TRUSTED)


def _scatter(x: Array, indices: Sequence[Array], updates: Array, mode: str) -> Array:
    if x.dtype == np.bool_ and mode != "set":
        wide = _scatter(x.astype(np.uint8), indices, updates.astype(np.uint8), _OF_BOOL.get(mode, mode))
        return wide.astype(np.bool_)
    return getattr(x.at[tuple(indices)], mode)(updates, **_TRUSTED)


def _take(x: Array, indices: Array, axis: int) -> Array:
    return x.at[(slice(None),) * (axis % len(x.shape)) + (indices,)].get(**_TRUSTED)


_gathered = operation(_gather)
_scattered = operation(_scatter, ("mode",))


class JaxIndexing:
    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        return _gathered(self, x, list(indices))

    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        return _scattered(self, x, list(indices), updates, mode=mode)

    take = operation(_take, ("axis",))

    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        # on the host: jnp.nonzero would be compiled anew for every number of true elements
        return tuple(self.asarray(at) for at in np.nonzero(self.to_numpy(x)))  # type: ignore[attr-defined]
