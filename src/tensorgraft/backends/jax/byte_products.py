"""Products of bytes into 32-bit integers, in the order that XLA's kernel for CPUs likes.

That kernel copies its right factor into another order first, reads the left as it lies, by rows, and knows no vectors.
So few rows go to the right if the other factor is contracted along its rows, and a vector becomes two columns. Measured
with 2048 x 2048 codes, one thread: one row takes 0.30 ms, the other way round 0.43, as a vector 0.8; 16 rows take 1.05
ms, the other way round 1.5. Of many rows, turning the product round costs more than it saves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

Array = Any

_LARGE = 1 << 16  # codes: with fewer, any order is quick
_FEWER = 32  # times fewer rows than what is contracted


@functools.lru_cache(maxsize=256)
def byte_product(i: int, j: int, wide: np.dtype) -> Callable[[Array, Array], Array]:
    """(a, b) -> the product along axis `i` of `a` and `j` of `b`. Where `jax.vmap` makes rows of a vector, the order is
    chosen for all of them."""

    @jax.custom_batching.custom_vmap
    def product(a: Array, b: Array) -> Array:
        made = _ordered(a, b, (i, j), wide)
        return _plain(a, b, i, j, wide) if made is None else made

    @product.def_vmap
    def _(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if all(batched):
            return jax.vmap(lambda a, b: _plain(a, b, i, j, wide))(a, b), True
        if batched[0]:
            return byte_product(i + 1, j, wide)(a, b), True
        return jax.numpy.moveaxis(byte_product(i, j + 1, wide)(a, b), a.ndim - 1, 0), True

    return product


def _plain(a: Array, b: Array, i: int, j: int, wide: np.dtype) -> Array:
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


def _ordered(a: Array, b: Array, axes: tuple[int, int], wide: np.dtype) -> Array | None:
    """The product along one axis of each, or None where XLA does as well when it is left alone."""
    i, j = axes
    if i not in (0, a.ndim - 1) or j not in (0, b.ndim - 1) or 0 in a.shape or 0 in b.shape:
        return None
    large, small, along, across = (a, b, i, j) if a.size > b.size else (b, a, j, i)
    extent = a.shape[i]
    few = small.size // extent
    if large.size < _LARGE or few * _FEWER > extent:
        return None
    by_rows = along == large.ndim - 1
    codes = lax.reshape(large, (large.size // extent, extent) if by_rows else (extent, large.size // extent))
    rows = lax.reshape(small, (extent, few) if across == 0 else (few, extent))
    free = 1 if across == 0 else 0
    if few == 1:
        rows = lax.pad(rows, rows.dtype.type(0), [(0, int(k == free), 0) for k in range(2)])
    if by_rows:
        out = lax.dot_general(codes, rows, (((1,), (1 - free,)), ((), ())), preferred_element_type=wide)
    else:
        out = lax.dot_general(rows, codes, (((1 - free,), (0,)), ((), ())), preferred_element_type=wide)
    out = lax.slice_in_dim(out, 0, few, axis=1 if by_rows else 0)
    if (large is a) != by_rows:
        out = lax.transpose(lax.optimization_barrier(out), (1, 0))  # without it, XLA turns the factors round again
    return lax.reshape(out, (*_without(a.shape, i), *_without(b.shape, j)))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
