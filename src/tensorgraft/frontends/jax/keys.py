"""Arrays of random keys (dtype `key<fry>`): the words of every key, each an array of the keys' own shape."""

from __future__ import annotations

from typing import Any

import jax
import optree

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


class Keys:
    """An array of keys. What only moves elements (a slice, a transpose, a loop) does so with each word."""

    def __init__(self, words: tuple[Array, ...]) -> None:
        self.words = words

    @classmethod
    def of(cls, xp: Backend, data: Array) -> Keys:
        """Make keys of the raw data, whose last axis has the words (`jax.random.key_data`)."""
        return cls(tuple(xp.unstack(data, axis=-1 % xp.ndim(data))))

    def data(self, xp: Backend) -> Array:
        """Return the raw data, as `jax.random.key_data` does."""
        return xp.stack(self.words, axis=xp.ndim(self.words[0]))


def _flatten(keys: Any) -> tuple[Any, None, None]:
    return keys.words, None, None


def _unflatten(_: Any, words: Any) -> Any:
    return Keys(tuple(words))


_node: Any = Keys  # optree's types ask for a collection
optree.register_pytree_node(_node, _flatten, _unflatten, namespace="tensorgraft.jax")


def is_key_dtype(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
