"""Arrays of random keys (dtype `key<fry>`): the words of every key, each an array of the keys' own shape."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optree

from tensorgraft.hub.backend import Backend

Array = Any


class Keys:
    """An array of keys. What only moves elements (a slice, a transpose, a loop) does so with each word."""

    def __init__(self, words: tuple[Array, ...]) -> None:
        self.words = words

    @classmethod
    def of(cls, xp: Backend, data: Array) -> Keys:
        """From the raw data, a last axis of words (`jax.random.key_data`)."""
        return cls(tuple(xp.unstack(data, axis=-1 % xp.ndim(data))))

    def data(self, xp: Backend) -> Array:
        """As `jax.random.key_data`."""
        return xp.stack(self.words, axis=xp.ndim(self.words[0]))


optree.register_pytree_node(
    Keys,
    lambda k: (k.words, None, None),
    lambda _, words: Keys(tuple(words)),
    namespace="tensorgraft.jax",
)


def is_key_dtype(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def host_data(x: Any) -> np.ndarray:
    """A JAX array on the host; of keys, their data."""
    return np.asarray(jax.random.key_data(x) if is_key_dtype(x.dtype) else x)
