"""Threefry-2x32 on NumPy's integers, in place and in blocks that stay in the cache."""

from __future__ import annotations

import math

import numpy as np

from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.random import _PARITY, _ROTATIONS

_BLOCK = 1 << 14  # 3 uint32 buffers of 64 KiB


def _encrypt(key: Array, x0: Array, x1: Array) -> None:
    """Apply the cipher in place. `key` is a uint32 array (2, ...), the others contiguous uint32 arrays of one shape."""
    k0, k1 = np.asarray(key, np.uint32)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    left = np.empty_like(x0)
    x0 += k0
    x1 += k1
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 += x1
            np.left_shift(x1, np.uint32(r), out=left)
            x1 >>= np.uint32(32 - r)
            x1 |= left
            x1 ^= x0
        x0 += keys[(group + 1) % 3]
        x1 += keys[(group + 2) % 3]
        x1 += np.uint32(group + 1)


class NumpyRandom:
    def threefry2x32(self, key: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
        x0, x1 = (np.array(x, order="C") for x in (x0, x1))
        if np.ndim(key) > 1:
            _encrypt(key, x0, x1)
            return x0, x1
        flat0, flat1 = x0.reshape(-1), x1.reshape(-1)
        for at in range(0, x0.size, _BLOCK):
            _encrypt(key, flat0[at : at + _BLOCK], flat1[at : at + _BLOCK])
        return x0, x1

    def random_bits(self, key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        n = math.prod(shape)
        x0, x1 = np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32)
        if n > 2**32:
            x0[:] = np.arange(n) >> 32
        for at in range(0, n, _BLOCK):
            _encrypt(key, x0[at : at + _BLOCK], x1[at : at + _BLOCK])
        return x0.reshape(shape), x1.reshape(shape)
