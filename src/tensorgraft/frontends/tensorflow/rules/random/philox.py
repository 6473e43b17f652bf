"""Philox-4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and what
TensorFlow's CPU kernels make of its words. On integer operations: the bits agree on every backend.

A key is 64 bits and a counter 128, as uint64 arrays (1,) and (2,); each number of the counter gives four words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

Shape = tuple[int, ...]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LEAST = 1e-7  # below which Box and Muller's logarithm is not taken


def _halves(xp: Any, x: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the low and the high word of uint64."""
    low = xp.bitwise_and(x, xp.full((), 0xFFFFFFFF, dtypes.uint64))
    high = xp.bitwise_right_shift(x, xp.full((), 32, dtypes.uint64))
    return xp.astype(low, dtypes.uint32), xp.astype(high, dtypes.uint32)


@with_operators
def joined(xp: ValueBackend, low: Value, high: Value) -> Value:
    low, high = xp.astype(low, dtypes.uint64), xp.astype(high, dtypes.uint64)
    return (high << xp.full((), 32, dtypes.uint64)) | low


@with_operators
def cipher(xp: ValueBackend, key: tuple[Value, Value], counter: tuple[Value, ...]) -> tuple[Value, ...]:
    """Four words of uint32 for each counter of four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low0, high0 = _halves(xp, xp.astype(c0, dtypes.uint64) * xp.full((), _MULTIPLIERS[0], dtypes.uint64))
        low1, high1 = _halves(xp, xp.astype(c2, dtypes.uint64) * xp.full((), _MULTIPLIERS[1], dtypes.uint64))
        c0, c1, c2, c3 = (high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0)
        k0, k1 = (k + xp.full((), w, dtypes.uint32) for k, w in zip((k0, k1), _WEYL, strict=True))
    return c0, c1, c2, c3


def skipped(xp: Backend, counter: Array, by: Array) -> tuple[Array, Array]:
    """Return the two parts of a counter, after `by` (uint64, any shape) more."""
    low, high = (xp.reshape(x, ()) for x in xp.unstack(xp.reshape(counter, (2,)), 0))
    new_low = xp.add(low, by)
    carry = xp.astype(xp.less(new_low, low), dtypes.uint64)
    return new_low, xp.add(high, carry)


def words(xp: Any, key: AnyArray, counter: AnyArray, groups: int, stride: int = 1, group_size: int = 1) -> AnyArray:
    """Return uint32 (groups, 4 * group_size): `group_size` numbers of the counter in a row, from each `stride`th on."""
    first = xp.multiply(xp.iota(groups, dtypes.uint64), xp.full((), stride, dtypes.uint64))
    at = xp.add(xp.expand_dims(first, 1), xp.iota(group_size, dtypes.uint64))
    return xp.reshape(words_at(xp, key, counter, at), (groups, 4 * group_size))


def words_at(xp: Backend, key: Array, counter: Array, at: Array) -> Array:
    """Return uint32 (..., 4): the words of the counter after `at` (uint64) more steps."""
    low, high = skipped(xp, counter, at)
    k = _halves(xp, xp.reshape(key, ()))
    return xp.stack(cipher(xp, k, (*_halves(xp, low), *_halves(xp, high))), axis=xp.ndim(at))


def key_and_counter(xp: Backend, seed: Array) -> tuple[Array, Array]:
    """Out of two integers, scrambled."""
    parts = [xp.astype(xp.reshape(s, ()), dtypes.uint64) for s in xp.unstack(seed, 0)]
    fixed = xp.full((), 0x3EC8F720, dtypes.uint32), xp.full((), 0x02461E29, dtypes.uint32)
    m0, m1, m2, m3 = cipher(xp, fixed, (*_halves(xp, parts[0]), *_halves(xp, parts[1])))
    key = xp.reshape(joined(xp, m0, m1), (1,))
    return key, xp.stack([xp.zeros((), dtypes.uint64), joined(xp, m2, m3)], axis=0)


# ---- numbers out of words --------------------------------------------------------------------------------------------

# dtype -> (the dtype of its bits, how many bits the mantissa has, the bits of 1)
_FORMS = {
    dtypes.float16: (dtypes.uint16, 10, 0x3C00),
    dtypes.bfloat16: (dtypes.uint16, 7, 0x3F80),
    dtypes.float32: (dtypes.uint32, 23, 0x3F800000),
    dtypes.float64: (dtypes.uint64, 52, 0x3FF0000000000000),
}


@with_operators
def unit(xp: ValueBackend, bits: Value, dtype: np.dtype) -> Value:
    """Return numbers of [1, 2) with these mantissas, less 1."""
    kind, digits, one_bits = _FORMS[dtype]
    wide = xp.astype(bits, dtypes.uint64)
    wide = (wide & xp.full((), (1 << digits) - 1, dtypes.uint64)) | xp.full((), one_bits, dtypes.uint64)
    shape = wide.shape
    values = xp.bitcast(xp.reshape(xp.astype(wide, kind), (math.prod(shape),)), dtype)
    return xp.reshape(values, shape) - 1


def doubled(xp: Any, w: AnyArray) -> AnyArray:
    """Pairs of words as the bits of doubles: the high ones first."""
    return joined(xp, *(xp.take_slice(w, 1, i, xp.shape(w)[1], 2) for i in (1, 0)))


def _truncated_to(xp: Any, rows: AnyArray, shape: Shape) -> AnyArray:
    flat = xp.reshape(rows, (xp.size(rows),))
    return xp.reshape(xp.take_slice(flat, 0, 0, math.prod(shape)), shape)


def _groups(shape: Shape, group_size: int) -> int:
    return -(-math.prod(shape) // group_size)


def uniform(xp: Backend, key: Array, counter: Array, shape: Shape, dtype: np.dtype) -> Array:
    if dtype == dtypes.float64:
        bits = doubled(xp, words(xp, key, counter, _groups(shape, 2)))
    else:
        bits = words(xp, key, counter, _groups(shape, 4))
    return _truncated_to(xp, unit(xp, bits, dtype), shape)


def integers(xp: Backend, key: Array, counter: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Return random integers, all of whose bits are random."""
    if dtype.itemsize == 8:
        w = words(xp, key, counter, _groups(shape, 2))
        bits = joined(xp, *(xp.take_slice(w, 1, i, 4, 2) for i in (0, 1)))
    else:
        bits = words(xp, key, counter, _groups(shape, 4))
    return xp.astype(_truncated_to(xp, bits, shape), dtype)


def box_muller(xp: Any, w: AnyArray, dtype: np.dtype) -> AnyArray:
    """Words or doubles (n, 2 m), in pairs, to as many normal numbers."""
    units = unit(xp, w, dtype)
    n, m = xp.shape(units)
    u, v = (xp.take_slice(units, 1, i, m, 2) for i in (0, 1))
    u = xp.maximum(u, xp.full((), _LEAST, dtype))
    angle = xp.multiply(v, 2 * math.pi)
    radius = xp.sqrt(xp.multiply(xp.log(u), -2.0))
    pairs = [xp.multiply(xp.sin(angle), radius), xp.multiply(xp.cos(angle), radius)]
    return xp.reshape(xp.stack(pairs, axis=2), (n, m))


def normal(xp: Backend, key: Array, counter: Array, shape: Shape, dtype: np.dtype) -> Array:
    if dtype == dtypes.float64:
        rows = box_muller(xp, doubled(xp, words(xp, key, counter, _groups(shape, 2))), dtype)
    else:
        rows = box_muller(xp, words(xp, key, counter, _groups(shape, 4)), dtypes.float32)
    return xp.astype(_truncated_to(xp, rows, shape), dtype)


@with_operators
def truncated_normal(xp: ValueBackend, key: Value, counter: Value, shape: Shape, dtype: np.dtype) -> Value:
    """Between -2 and 2: of each group's candidates the first that lie there. TensorFlow reserves 256 words for each
    number; of 32 candidates, of which one in 22 falls out, fewer than four are left once in 1e35 times."""
    wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
    size = 2 if dtype == dtypes.float64 else 4
    w = words(xp, key, counter, _groups(shape, size), stride=64 * size, group_size=8 if size == 4 else 16)
    candidates = box_muller(xp, doubled(xp, w) if size == 2 else w, wide)
    is_accepted = abs(candidates) < 2.0
    rank = xp.cumsum(xp.astype(is_accepted, dtypes.int32), axis=1)
    accepted = []
    for k in range(1, size + 1):
        at = xp.argmax(xp.astype(is_accepted & (rank == k), dtypes.int32), axis=1)
        accepted.append(xp.take_along_axis(candidates, xp.expand_dims(at, 1), 1))
    return xp.astype(_truncated_to(xp, xp.concat(accepted, axis=1), shape), dtype)
