"""Counter-based random numbers: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Everything is written on integer primitives, so that the bits agree on every backend.

A key is a uint32 array (2,), for the cipher itself also one (2, ...) of several keys. Bits, integers, uniform numbers
and permutations are equal to the bit on all backends; what passes through logarithms and the like
(normal, exponential, ...) agrees to a few units in the last place.
"""

from __future__ import annotations

import math

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Shape = tuple[int, ...]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Random:
    def threefry2x32(self, key: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
        """Encrypt two uint32 arrays of one shape with `key`; keys (2, ...) broadcast against them, to no more than
        their shape."""
        u32 = dtypes.uint32
        k0, k1 = (self.reshape(self.take_slice(key, 0, i, i + 1), self.shape(key)[1:]) for i in range(2))
        k2 = self.bitwise_xor(self.bitwise_xor(k0, k1), self.full((), _PARITY, u32))
        keys = (k0, k1, k2)
        x0, x1 = self.add(x0, k0), self.add(x1, k1)
        for group in range(5):
            for r in _ROTATIONS[group % 2]:
                x0 = self.add(x0, x1)
                left = self.bitwise_left_shift(x1, self.full((), r, u32))
                right = self.bitwise_right_shift(x1, self.full((), 32 - r, u32))
                x1 = self.bitwise_xor(self.bitwise_or(left, right), x0)
            x0 = self.add(x0, keys[(group + 1) % 3])
            x1 = self.add(self.add(x1, keys[(group + 2) % 3]), self.full((), group + 1, u32))
        return x0, x1

    def fold_in(self, key: Array, high: Array, low: Array) -> Array:
        """Return a key of its own for every 64-bit number (two 0-d uint32 arrays)."""
        x0, x1 = self.threefry2x32(key, self.reshape(high, (1,)), self.reshape(low, (1,)))
        return self.concat([x0, x1], axis=0)

    def random_bits(self, key: Array, shape: Shape) -> tuple[Array, Array]:
        """Return two independent uint32 arrays of `shape`: element i is the cipher of the 64-bit counter i."""
        n = math.prod(shape)
        at = self.iota(n, dtypes.int64)
        high = self.astype(self.bitwise_right_shift(at, self.full((), 32, dtypes.int64)), dtypes.uint32)
        low = self.astype(self.bitwise_and(at, self.full((), 0xFFFFFFFF, dtypes.int64)), dtypes.uint32)
        x0, x1 = self.threefry2x32(key, high, low)
        return self.reshape(x0, shape), self.reshape(x1, shape)

    def random_uint64(self, key: Array, shape: Shape) -> Array:
        high, low = (self.astype(x, dtypes.uint64) for x in self.random_bits(key, shape))
        return self.bitwise_or(self.bitwise_left_shift(high, self.full((), 32, dtypes.uint64)), low)

    def uniform(self, key: Array, shape: Shape, dtype: np.dtype) -> Array:
        """Return uniform random numbers in [0, 1), on the grid of `dtype`'s own precision (2^-24 for float32, 2^-53 for
        float64)."""
        digits = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}[dtype]
        wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
        if dtype == dtypes.float64:
            bits = self.bitwise_right_shift(self.random_uint64(key, shape), self.full((), 64 - digits, dtypes.uint64))
        else:
            bits = self.bitwise_right_shift(self.random_bits(key, shape)[0], self.full((), 32 - digits, dtypes.uint32))
        return self.astype(self.multiply(self.astype(bits, wide), 2.0**-digits), dtype)

    def normal(self, key: Array, shape: Shape, dtype: np.dtype) -> Array:
        """Standard normal numbers, by the inverse of the distribution function."""
        wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
        cell = 2.0**-53 if wide == dtypes.float64 else 2.0**-24
        # the middle of each cell of (-1, 1): exact, so never -1 or 1
        z = self.erf_inv(self.add(self.multiply(self.uniform(key, shape, wide), 2.0), cell - 1.0))
        return self.astype(self.multiply(z, math.sqrt(2.0)), dtype)

    def randint(self, key: Array, shape: Shape, low: int, high: int, dtype: np.dtype) -> Array:
        """Integers in [low, high), by the remainder of 64 random bits (bias below (high - low) / 2^64)."""
        span = high - low
        bits = self.random_uint64(key, shape)
        at = bits if span >= 2**64 else self.fmod(bits, self.full((), span, dtypes.uint64))
        return self.astype(self.add(self.astype(at, dtypes.int64), self.full((), low, dtypes.int64)), dtype)

    def permutation(self, key: Array, n: int) -> Array:
        """Return a random order of 0 ... n - 1 as int64, by sorting 63 random bits each.

        Each number takes the place of the last of its bits: one array of integers is sorted much faster than rows.
        """
        words = self.astype(self.bitwise_right_shift(self.random_uint64(key, (n,)), 1), dtypes.int64)
        last_bits = (1 << max(n - 1, 0).bit_length()) - 1
        keys = self.bitwise_or(self.bitwise_and(words, ~last_bits), self.iota(n, dtypes.int64))
        return self.bitwise_and(self.sort((keys,), axis=0)[0], last_bits)

    def exponential(self, key: Array, shape: Shape, dtype: np.dtype) -> Array:
        """Above 0, by the inverse of the distribution function."""
        wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
        sample = self.negative(self.log1p(self.negative(self.uniform(key, shape, wide))))
        least = 2.0**-54 if wide == dtypes.float64 else 2.0**-25  # the middle of the first cell
        return self.astype(self.maximum(sample, self.full((), least, wide)), dtype)
