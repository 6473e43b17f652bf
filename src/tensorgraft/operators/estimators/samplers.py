"""Random test matrices, whose columns w have E[w w*] = I.

They are drawn in single precision, whatever the operator's: what estimators need of them, independence and symmetry,
does not depend on the digits.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.operators.estimators.programs import _wrapped, program, squares

NAMES = ("rademacher", "normal", "sphere")


@program
def draw(key: Array, *, sampler: str, n: int, counts: tuple[int, ...], dtype: np.dtype) -> tuple[Array, ...]:
    """Matrices (n, count), of the `dtype`, from a key.

    "rademacher": entries 1 or -1, of complex ones (+-1 +- i) / sqrt(2). "normal": standard normal, of complex ones with
    E|w|^2 = 1. "sphere": columns uniform on the sphere of radius sqrt(n).
    """
    backend, k = key._cell.backend, sum(counts)
    narrow = dtype if dtype.itemsize < 4 else dtypes.float32
    count = 2 * n * k if dtypes.is_complex(dtype) else n * k
    with backend.scope():
        value = key._value()
        samples = _signs(backend, value, count) if sampler == "rademacher" else _normal(backend, value, count)
        x = xp.astype(_wrapped(samples, backend), narrow if not dtypes.is_complex(dtype) else dtypes.float32)
    if dtypes.is_complex(dtype):
        parts = xp.astype(xp.reshape(x, (2, n, k)), dtypes.real_dtype(dtype)) * math.sqrt(0.5)
        w = xp.astype(parts[0, ...], dtype) + xp.astype(parts[1, ...], dtype) * 1j
    else:
        w = xp.astype(xp.reshape(x, (n, k)), dtype)
    if sampler == "sphere":
        w = w * (math.sqrt(n) / xp.sqrt(squares(w)))
    if len(counts) == 1:
        return (w,)
    ends = list(itertools.accumulate(counts))
    return tuple(w[:, end - count : end] for end, count in zip(ends, counts, strict=True))


def _words(backend: Backend, key: Any, count: int) -> Any:
    """Return at least `count` random uint32."""
    return backend.concat(list(backend.random_bits(key, (-(-count // 2),))), axis=0)


def _signs(backend: Backend, key: Any, count: int) -> Any:
    """1 and -1, one bit of randomness each."""
    words = _words(backend, key, -(-count // 32))
    (m,) = backend.shape(words)
    bit_positions = backend.astype(backend.iota(32, dtypes.int64), dtypes.uint32)
    bits = backend.bitwise_right_shift(
        backend.broadcast_to(backend.expand_dims(words, 1), (m, 32)), backend.broadcast_to(bit_positions, (m, 32))
    )
    bits = backend.bitwise_and(bits, backend.full((), 1, dtypes.uint32))
    flat = backend.slice(backend.reshape(bits, (32 * m,)), (0,), (count,), (1,))
    return backend.subtract(backend.multiply(backend.astype(flat, dtypes.float32), 2.0), 1.0)


def _normal(backend: Backend, key: Any, count: int) -> Any:
    """Standard normal numbers in float32, by the inverse of the distribution function in the middles of 2^24 cells."""
    words = backend.slice(_words(backend, key, count), (0,), (count,), (1,))
    cells = backend.astype(backend.bitwise_right_shift(words, backend.full((), 8, dtypes.uint32)), dtypes.float32)
    z = backend.erf_inv(backend.add(backend.multiply(cells, 2.0**-23), 2.0**-24 - 1.0))
    return backend.multiply(z, math.sqrt(2.0))
