"""`lax.rng_bit_generator`: Philox-4x32 and Threefry-2x32 with 64-bit counters, bit for bit as XLA (keys `rbg` and
`unsafe_rbg` are made of it). Which counter belongs to which element is xla/hlo/builder/lib/prng.cc's choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule, without_rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

_THREEFRY = 1  # jax.lax.RandomAlgorithm; the default of a CPU is Philox
# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@rule("rng_bit_generator")
def rng_bit_generator(
    xp: Backend, key: Array, *, shape: Sequence[int], dtype: Any, algorithm: Any, **_: Any
) -> tuple[Array, Array]:
    """Return (the key with its counter moved on, bits). `key`: uint32 (4,) or uint64 (2,), of a key and a counter."""
    key_dtype, shape, dtype = xp.dtype_of(key), tuple(shape), np.dtype(dtype)
    words = xp.bitcast(key, dtypes.uint64)
    secret, counter = (xp.reshape(xp.take_slice(words, 0, i, i + 1), ()) for i in range(2))
    width = 2 if dtype.itemsize == 8 else 1  # words of 32 bits an element
    if int(algorithm) == _THREEFRY:
        bits, used = _threefry(xp, secret, counter, shape, width)
    else:
        bits, used = _philox(xp, secret, counter, shape, width)
    new_key = xp.stack([secret, xp.add(counter, xp.full((), used, dtypes.uint64))], axis=0)
    return xp.bitcast(new_key, key_dtype), xp.astype(bits, dtype)


def _halves(xp: Backend, x: Array) -> tuple[Array, Array]:
    """Return the low and the high words of uint64."""
    high = xp.bitwise_right_shift(x, xp.full((), 32, dtypes.uint64))
    return xp.astype(x, dtypes.uint32), xp.astype(high, dtypes.uint32)


@with_operators
def _joined_words(xp: ValueBackend, low: Value, high: Value) -> Value:
    low, high = (xp.astype(x, dtypes.uint64) for x in (low, high))
    return (high << xp.full((), 32, dtypes.uint64)) | low


def _threefry(xp: Backend, key: Array, counter: Array, shape: tuple[int, ...], width: int) -> tuple[Array, int]:
    """Generate random bits with Threefry: a counter gives two words, for one element of 64 bits, or for two neighbours
    along the first even axis (else along the longest)."""
    axis = next((a for a, n in enumerate(shape) if n % 2 == 0), None)
    if axis is None:
        axis = max(range(len(shape)), key=shape.__getitem__, default=0)
    extents = shape or (1,)
    half = extents if width == 2 else tuple(-(-n // 2) if a == axis else n for a, n in enumerate(extents))
    n = math.prod(half)
    at = xp.reshape(xp.add(xp.iota(n, dtypes.uint64), counter), half)
    first, second = xp.threefry2x32(xp.stack(_halves(xp, key), axis=0), *_halves(xp, at))
    if width == 2:
        return xp.reshape(_joined_words(xp, first, second), shape), n
    words = xp.stack([first, second], axis=axis + 1)
    wide = xp.reshape(words, tuple(2 * n if a == axis else n for a, n in enumerate(half)))
    return xp.reshape(xp.take_slice(wide, axis, 0, extents[axis]), shape), n


def _philox(xp: Backend, key: Array, counter: Array, shape: tuple[int, ...], width: int) -> tuple[Array, int]:
    """Generate random bits with Philox: a counter gives four words, in order. The high half of the counter is the
    key."""
    size = math.prod(shape)
    n = -(-size * width // 4)
    low = xp.add(xp.iota(n, dtypes.uint64), counter)
    carry_bit = xp.astype(xp.less(low, counter), dtypes.uint64)
    words = _philox4x32((*_halves(xp, low), *_halves(xp, xp.add(carry_bit, key))), _halves(xp, key), xp)
    if width == 2:
        words = (_joined_words(xp, words[0], words[1]), _joined_words(xp, words[2], words[3]))
    flat = xp.reshape(xp.stack(words, axis=1), (n * len(words),))
    return xp.reshape(xp.take_slice(flat, 0, 0, size), shape), n


def _philox4x32(counter: Sequence[Array], key: Sequence[Array], xp: Backend) -> tuple[Array, ...]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        (low0, high0), (low1, high1) = (
            _halves(xp, xp.multiply(xp.astype(c, dtypes.uint64), xp.full((), by, dtypes.uint64)))
            for c, by in zip((c0, c2), _MULTIPLIERS, strict=True)
        )
        c0, c1 = xp.bitwise_xor(xp.bitwise_xor(high1, c1), k0), low1
        c2, c3 = xp.bitwise_xor(xp.bitwise_xor(high0, c3), k1), low0
        k0, k1 = (xp.add(k, xp.full((), by, dtypes.uint32)) for k, by in zip((k0, k1), _WEYL, strict=True))
    return c0, c1, c2, c3


without_rule(
    "its numbers are the compiler's own, different on every device and in every version: use jax.random", "rng_uniform"
)
