"""Threefry-2x32: on NumPy's integers, in place and in blocks that stay in the cache; on Python's for few numbers.

A NumPy function takes as long for one number as for five hundred, and the cipher calls 130 of them. So few numbers are
the 64-bit digits of one Python integer: each operation of the cipher is then one on that integer, followed by a mask.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from tensorgraft.backends.numpy import special
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.random import _PARITY, _ROTATIONS

_erf_inv = special.function("erf_inv")

_BLOCK = 1 << 14  # 3 uint32 buffers of 64 KiB
_FEW = 256  # numbers that Python encrypts more quickly
_WORD = 0xFFFFFFFF


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


@functools.lru_cache(maxsize=_FEW + 1)
def _digits(n: int) -> tuple[int, int, int]:
    """Return integers of `n` 64-bit digits: of ones, of 0 ... n - 1, and of the masks of 32 bits."""
    ones = int.from_bytes(np.ones(n, "<u8").tobytes(), "little")
    return ones, int.from_bytes(np.arange(n, dtype="<u8").tobytes(), "little"), ones * _WORD


def _encrypt_few(k0: int, k1: int, x0: int, x1: int, n: int) -> tuple[int, int]:
    """Encrypt the `n` digits of two integers."""
    ones, _, mask = _digits(n)
    keys = [k * ones for k in (k0, k1, k0 ^ k1 ^ _PARITY)]
    x0, x1 = (x0 + keys[0]) & mask, (x1 + keys[1]) & mask
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 = (x0 + x1) & mask
            x1 <<= r
            x1 = ((x1 | (x1 >> 32)) & mask) ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & mask
        x1 = (x1 + keys[(group + 2) % 3] + (group + 1) * ones) & mask
    return x0, x1


def _words(digits: int, n: int) -> Array:
    return np.frombuffer(digits.to_bytes(8 * n, "little"), "<u8").astype(np.uint32)


class NumpyRandom:
    def fold_in(self, key: Array, high: Array, low: Array) -> Array:
        k0, k1 = key.tolist()
        return np.array(_encrypt_few(k0, k1, high.item(), low.item(), 1), np.uint32)

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
        if n <= _FEW:
            k0, k1 = key.tolist()
            bits = _encrypt_few(k0, k1, 0, _digits(n)[1], n)
            return _words(bits[0], n).reshape(shape), _words(bits[1], n).reshape(shape)
        x0, x1 = np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32)
        if n > 2**32:
            x0[:] = np.arange(n) >> 32
        for at in range(0, n, _BLOCK):
            _encrypt(key, x0[at : at + _BLOCK], x1[at : at + _BLOCK])
        return x0.reshape(shape), x1.reshape(shape)

    def random_uint64(self, key: Array, shape: tuple[int, ...]) -> Array:
        high, low = self.random_bits(key, shape)
        bits = high.astype(np.uint64)
        bits <<= np.uint64(32)
        bits |= low
        return bits

    def uniform(self, key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return uniform random numbers in [0, 1), as `Random.uniform` does, in fewer calls."""
        if dtype == dtypes.float64:
            return (self.random_uint64(key, shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        digits = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24}[dtype]
        numbers = (self.random_bits(key, shape)[0] >> np.uint32(32 - digits)).astype(np.float32)
        return (numbers * np.float32(2.0**-digits)).astype(dtype, copy=False)

    def normal(self, key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return standard normal numbers, as `Random.normal` does, in fewer calls."""
        wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
        z = self.uniform(key, shape, wide)
        z *= wide.type(2.0)
        z += wide.type((2.0**-53 if wide == dtypes.float64 else 2.0**-24) - 1.0)
        return (_erf_inv(z) * wide.type(math.sqrt(2.0))).astype(dtype, copy=False)

    def permutation(self, key: Array, n: int) -> Array:
        """Return a random order of 0 ... n - 1, as `Random.permutation` does, in fewer calls."""
        last_bits = (1 << max(n - 1, 0).bit_length()) - 1
        order = (self.random_uint64(key, (n,)) >> np.uint64(1)).view(np.int64)
        order &= ~last_bits
        order |= np.arange(n)
        order.sort()
        order &= last_bits
        return order
