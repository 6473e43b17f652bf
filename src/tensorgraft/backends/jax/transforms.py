"""Derivatives and batching by JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorgraft.backends.jax.custom import bind
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.transforms import Backward, Forward, transposed


class JaxTransforms:
    def vjp(
        self, fn: Callable[..., Any], /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        results, pullback = jax.vjp(lambda *xs: tuple(fn(self, *xs)), *primals)

        def pulled_back(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            return pullback(
                tuple(c if _smooth(r) else _float0_zeros(r) for c, r in zip(cotangents, results, strict=True))
            )

        return results, pulled_back

    def jvp(
        self, fn: Callable[..., Any], primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        results, out = jax.jvp(lambda *xs: tuple(fn(self, *xs)), tuple(primals), tuple(tangents))
        return results, tuple(t if _smooth(r) else jnp.zeros_like(r) for r, t in zip(results, out, strict=True))

    def vmap(self, fn: Callable[..., Any], /, *arrays: Array) -> tuple[Array, ...]:
        return jax.vmap(lambda *xs: tuple(fn(self, *xs)))(*arrays)

    def custom_vjp(
        self, fn: Callable[..., Any], backward: Backward, forward: Forward | None = None, /, *arrays: Array
    ) -> tuple[Array, ...]:
        return bind(self, fn, backward, forward or transposed(backward), arrays)


def _smooth(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _float0_zeros(x: Array) -> np.ndarray:
    return np.zeros(x.shape, jax.dtypes.float0)
