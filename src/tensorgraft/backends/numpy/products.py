"""Matrix products of every dtype: BLAS wherever it is exact enough, integers by way of floats included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorgraft.backends.numpy.precision import widen
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def _magnitude(x: Array) -> int:
    """Return the greatest absolute value of an integer array."""
    return max(int(x.max()), -int(x.min())) if x.size else 0


def _integer_product(a: Array, b: Array, dtype: np.dtype) -> Array:
    """Integer matmul, wrapping round. NumPy's own has no BLAS; a float product is exact while every partial sum
    stays below 2 ** (bits of the significand)."""
    bound = a.shape[-1] * _magnitude(a) * _magnitude(b)
    for wide, digits in ((np.float32, 24), (np.float64, 53)):
        if bound < 2**digits:
            return np.matmul(a.astype(wide), b.astype(wide)).astype(np.int64).astype(dtype)
    return np.matmul(a.astype(dtype), b.astype(dtype))


def matmul(a: Array, b: Array, dtype: np.dtype | None = None) -> Array:
    """Return (..., m, k) x (..., k, n), accumulated in and returned as `dtype` (the operands' if None)."""
    dtype = a.dtype if dtype is None else dtype
    if a.dtype.kind == "b" and dtype.kind == "b":  # a sum of non-negative terms is zero only where all are
        return np.matmul(a.astype(np.float32), b.astype(np.float32)) != 0
    if dtype.kind in "iu":
        if a.dtype.kind == "b":
            a, b = a.astype(np.int8), b.astype(np.int8)
        return _integer_product(a, b, dtype)
    wide = dtypes.accumulator(dtype)
    a, b = (widen(x).astype(wide, copy=False) for x in (a, b))
    return np.matmul(a, b).astype(dtype, copy=False)


def _grouped(x: Array, groups: Sequence[Sequence[int]]) -> Array:
    """Return `x` with its axes permuted to the concatenated groups, and each group one axis."""
    order = [axis for group in groups for axis in group]
    sizes = [math.prod([x.shape[axis] for axis in group]) for group in groups]
    return x.transpose(order).reshape(sizes)


def dot_general(
    a: Array,
    b: Array,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
    dtype: np.dtype | None,
) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    free_a, free_b = (
        [axis for axis in range(x.ndim) if axis not in contract[i] and axis not in batch[i]]
        for i, x in enumerate((a, b))
    )
    shape = [a.shape[i] for i in (*batch[0], *free_a)] + [b.shape[i] for i in free_b]
    if batch[0]:
        left = _grouped(a, (batch[0], free_a, contract[0]))
        right = _grouped(b, (batch[1], contract[1], free_b))
    else:
        left, right = _grouped(a, (free_a, contract[0])), _grouped(b, (contract[1], free_b))
    return matmul(left, right, dtype).reshape(shape)
