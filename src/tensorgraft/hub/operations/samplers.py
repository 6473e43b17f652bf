"""Random numbers of keys, as `jax.random` makes them: functions of a backend, a key and static arguments.

The keys, splits and bits are those of JAX's `threefry2x32` with `jax_threefry_partitionable` (its default), so that
every backend draws what JAX draws. The mix-in `Random` has the cipher, and the numbers of the PyTorch front end.

Bits, integers, uniform numbers of [0, 1), signs and orders are equal to the bit on all backends. The rest agrees as far
as the backends' functions do.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Shape = tuple[int, ...]

# coefficients of the inverse error function: Giles, "Approximating the erfinv function", GPU Computing Gems Jade
# Edition, 2012
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}


# ---- keys ------------------------------------------------------------------------------------------------------------


def seeded(xp: Any, seed: Array) -> Array:
    """Return the key of a 0-d integer array: its two 32-bit words, the high one first."""
    wide = xp.dtype_of(seed).itemsize == 8
    low = xp.astype(xp.bitwise_and(seed, xp.full((), 0xFFFFFFFF, xp.dtype_of(seed))) if wide else seed, dtypes.uint32)
    if not wide:
        return xp.stack([xp.zeros((), dtypes.uint32), low])
    word = xp.astype(seed, dtypes.uint64)
    return xp.stack([xp.astype(xp.bitwise_right_shift(word, xp.full((), 32, dtypes.uint64)), dtypes.uint32), low])


def words(seed: int) -> np.ndarray:
    """Return the key of a Python int, taken as 64 bits."""
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def split(xp: Any, key: Array, shape: Shape) -> Array:
    """Keys (*shape, 2): encrypted counters."""
    return xp.stack(list(xp.random_bits(key, shape)), axis=len(shape))


def fold_in(xp: Any, key: Array, data: Array) -> Array:
    """Return a key of its own for every 0-d uint32 array."""
    return xp.fold_in(key, xp.zeros((), dtypes.uint32), data)


# ---- integers --------------------------------------------------------------------------------------------------------


def bits(xp: Any, key: Array, shape: Shape, width: int) -> Array:
    """Unsigned integers of 8, 16, 32 or 64 random bits."""
    if width == 64:
        return xp.random_uint64(key, shape)
    high, low = xp.random_bits(key, shape)
    word = xp.bitwise_xor(high, low)
    return word if width == 32 else xp.astype(word, UNSIGNED[width])


def rademacher(xp: Any, key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """-1 and 1: the sign of u - 1/2 for a uniform float64 u, which is the first of its bits."""
    first = xp.bitwise_right_shift(xp.random_bits(key, shape)[0], xp.full((), 31, dtypes.uint32))
    return xp.astype(xp.subtract(1, xp.multiply(xp.astype(first, dtypes.int8), 2)), dtype)


def randint(xp: Any, key: Array, low: Array, high: Array, above: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Integers of [low, high), or of [low, high] where `above`, of which twice the bits are drawn so that the
    remainder is nearly without bias. `low` and `high`: arrays of `dtype`, `above` of booleans, which broadcast to
    `shape`. Where high <= low: `low`."""
    width = 8 * dtype.itemsize
    unsigned = UNSIGNED[width]
    keys = split(xp, key, (2,))
    higher, lower = (bits(xp, xp.reshape(xp.take_slice(keys, 0, i, i + 1), (2,)), shape, width) for i in range(2))
    is_nonempty = xp.greater(high, low)
    span = xp.subtract(xp.astype(high, unsigned), xp.astype(low, unsigned))
    one_unsigned = xp.full((), 1, unsigned)
    span = xp.where(is_nonempty, span, one_unsigned)
    span = xp.where(xp.logical_and(above, is_nonempty), xp.add(span, one_unsigned), span)
    is_whole_range = xp.equal(span, xp.full((), 0, unsigned))  # all of the dtype's integers: no remainder
    safe = xp.where(is_whole_range, one_unsigned, span)

    def rest(x: Array) -> Array:
        return xp.where(is_whole_range, x, xp.fmod(*_broadcast_pair(xp, x, safe)))

    multiplier = rest(xp.full(xp.shape(safe), 2 ** (width // 2), unsigned))
    multiplier = rest(xp.multiply(multiplier, multiplier))
    offset = rest(xp.add(xp.multiply(rest(higher), multiplier), rest(lower)))
    return xp.astype(xp.add(xp.astype(low, unsigned), offset), dtype)


def _broadcast_pair(xp: Any, x: Array, y: Array) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(xp.shape(x), xp.shape(y))
    return xp.broadcast_to(x, shape), xp.broadcast_to(y, shape)


def shuffled(xp: Any, key: Array, x: Array, axis: int) -> Array:
    """Return the elements of `x` along an axis in random orders, each line in its own: sorted by 32 random bits, as
    often as ties become improbable."""
    size = xp.size(x)
    rounds = math.ceil(3 * math.log(max(1, size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = split(xp, key, (2,))
        key, row_key = (xp.reshape(xp.take_slice(keys, 0, i, i + 1), (2,)) for i in range(2))
        x = xp.sort((bits(xp, row_key, xp.shape(x), 32), x), axis=axis, num_keys=1)[1]
    return x


# ---- floating point --------------------------------------------------------------------------------------------------


def unit(xp: Any, key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Uniform in [0, 1): multiples of the spacing of the dtype's numbers at 1."""
    info = ml_dtypes.finfo(dtype)
    width = info.bits if info.nmant >= 8 else 8
    random_bits = bits(xp, key, shape, width)
    random_bits = xp.bitwise_right_shift(random_bits, xp.full((), width - info.nmant, UNSIGNED[width]))
    wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
    return xp.astype(xp.multiply(xp.astype(random_bits, wide), 2.0**-info.nmant), dtype)


def uniform(xp: Any, key: Array, low: Array, high: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Return uniform samples in [low, high), whose bounds are arrays of `dtype` that broadcast to `shape`."""
    sample = xp.add(xp.multiply(unit(xp, key, shape, dtype), xp.subtract(high, low)), low)
    return xp.maximum(low, sample)


def normal(xp: Any, key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal, by the inverse of the distribution function; complex: of variance 1, in both parts 1/2."""
    if dtypes.is_complex(dtype):
        real = dtypes.real_dtype(dtype)
        keys = split(xp, key, (2,))
        parts = [normal(xp, xp.reshape(xp.take_slice(keys, 0, i, i + 1), (2,)), shape, real) for i in range(2)]
        return xp.complex(*(xp.divide(x, math.sqrt(2.0)) for x in parts))
    least = xp.full((), float(np.nextafter(np.array(-1, dtype), np.array(0, dtype))), dtype)
    u = uniform(xp, key, least, xp.full((), 1.0, dtype), shape, dtype)
    return xp.multiply(_erf_inv(xp, u, dtype), math.sqrt(2.0))


def _erf_inv(xp: Any, x: Array, dtype: np.dtype) -> Array:
    """Return the inverse of erf on (-1, 1). In single precision it is by the polynomials that XLA takes, 50 units in
    the last place from the true value for some numbers, so that backends differ by 2; in double precision they differ
    as their functions do."""
    if dtype == dtypes.float64:
        return xp.erf_inv(x)
    x = xp.astype(x, dtypes.float32)
    w = xp.negative(xp.log1p(xp.negative(xp.multiply(x, x))))
    inner = xp.less(w, 5.0)
    w = xp.where(inner, xp.subtract(w, 2.5), xp.subtract(xp.sqrt(w), 3.0))
    out = None
    for a, b in zip(_CENTRE, _TAIL, strict=True):
        c = xp.where(inner, xp.full((), a, dtypes.float32), xp.full((), b, dtypes.float32))
        out = c if out is None else xp.add(c, xp.multiply(out, w))
    return xp.astype(xp.multiply(out, x), dtype)


def truncated_normal(xp: Any, key: Array, low: Array, high: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal, between bounds that are arrays of `dtype` and broadcast to `shape`."""
    a, b = (xp.erf(xp.divide(x, math.sqrt(2.0))) for x in (low, high))
    out = xp.multiply(_erf_inv(xp, uniform(xp, key, a, b, shape, dtype), dtype), math.sqrt(2.0))
    infinity = xp.full((), math.inf, dtype)
    return xp.minimum(
        xp.maximum(out, xp.nextafter(*_broadcast_pair(xp, low, infinity))),
        xp.nextafter(*_broadcast_pair(xp, high, xp.negative(infinity))),
    )


def exponential(xp: Any, key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Return samples of rate 1, by the inverse of the distribution function."""
    return xp.negative(xp.log1p(xp.negative(unit(xp, key, shape, dtype))))


def gumbel(xp: Any, key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Standard Gumbel, by the inverse of the distribution function."""
    tiny = xp.full((), float(ml_dtypes.finfo(dtype).tiny), dtype)
    u = uniform(xp, key, tiny, xp.full((), 1.0, dtype), shape, dtype)
    return xp.negative(xp.log(xp.negative(xp.log(u))))
