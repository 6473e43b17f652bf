"""Matrix products of every dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import astype
from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import TF, cast, constant, dtype_of, ints, shape_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Axes = tuple[Sequence[int], Sequence[int]]

# Sums of products of integers are the same modulo a power of two, whatever wider dtype they are computed in.
_CARRIERS = dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16), dtypes.int32)
_SIGNED = {dtypes.uint32: dtypes.int32, dtypes.uint64: dtypes.int64}


def _matrices(
    x: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int], flags: bool
) -> tuple[Array, bool]:
    """Return `x` as (batch, rows, columns), or (rows, columns) without a batch, and True if it was left transposed,
    which costs nothing (only where `flags` allows it)."""
    shape = shape_of(x)

    def size(axes: Sequence[int]) -> int:
        return math.prod(shape[a] for a in axes)

    straight, transposed_order = (*batch, *rows, *columns), (*batch, *columns, *rows)
    order = tuple(range(len(shape)))
    transposed = straight != order and transposed_order == order and flags
    if not transposed and straight != order:
        x = raw.Transpose(x=x, perm=ints(straight))
    pair = (size(columns), size(rows)) if transposed else (size(rows), size(columns))
    target = (size(batch), *pair) if batch else pair
    return (x if shape_of(x) == target else raw.Reshape(tensor=x, shape=ints(target))), transposed


def dot_general(a: Array, b: Array, contract: Axes, batch: Axes, dtype: np.dtype | None) -> Array:
    source = dtype_of(a)
    result = source if dtype is None else np.dtype(dtype)
    if source == dtypes.bool_:
        wide = dtypes.float32 if result == dtypes.bool_ else result  # a sum of ands is an or: it cannot cancel
        out = dot_general(cast(a, wide), cast(b, wide), contract, batch, None)
        return raw.Greater(x=out, y=constant(0, wide)) if result == dtypes.bool_ else out
    wide = dtypes.accumulator(result)
    if source == dtypes.int8 and wide == dtypes.int32 and dtype_of(b) == dtypes.int8:
        return _of_bytes(a, b, contract, batch)
    a, b = astype(a, wide), astype(b, wide)
    if wide in _CARRIERS:
        a, b = cast(a, _CARRIERS[wide]), cast(b, _CARRIERS[wide])
    elif wide in _SIGNED:
        a, b = (raw.Bitcast(input=x, type=TF[_SIGNED[wide]]) for x in (a, b))
    out = _product(a, b, contract, batch)
    if wide in _SIGNED:
        return raw.Bitcast(input=out, type=TF[wide])
    return cast(out, result)


def _of_bytes(a: Array, b: Array, contract: Axes, batch: Axes) -> Array:
    """Compute the exact int32 product of int8 arrays. XLA has a kernel for it. TensorFlow's own is slow, and float32 is
    exact for sums so short that they stay below 2^24."""
    if not tf.executing_eagerly():
        return _compiled_bytes(a, b, contract, batch)
    axis = max(zip(contract[0], contract[1], strict=True), key=lambda pair: shape_of(a)[pair[0]], default=None)
    sums = math.prod(shape_of(a)[i] for i in contract[0])
    if axis is None or sums <= _EXACT:
        return cast(_product(cast(a, dtypes.float32), cast(b, dtypes.float32), contract, batch), dtypes.int32)
    n = shape_of(a)[axis[0]]
    middle = n // 2
    if middle == 0 or sums // n * middle < 1:
        return _product(cast(a, dtypes.int32), cast(b, dtypes.int32), contract, batch)
    left, right = (tf.split(x, [middle, n - middle], axis=i) for x, i in zip((a, b), axis, strict=True))
    first, second = (_of_bytes(x, y, contract, batch) for x, y in zip(left, right, strict=True))
    return raw.AddV2(x=first, y=second)


_EXACT = (1 << 24) // (128 * 128)


def _compiled_bytes(a: Array, b: Array, contract: Axes, batch: Axes) -> Array:
    """XLA makes a loop of a product of a matrix and a vector. Along the matrix's rows that is quick, unless what
    computes the vector becomes a part of it: a maximum keeps that out. Along columns it is 30 times slower than the
    product of two matrices, so the vector gets a second row, of zeros. Of few rows and many, those of the many are to
    be on the left; again it is a maximum for which XLA does not turn the product round again."""
    sa, sb = shape_of(a), shape_of(b)
    free = [[i for i in range(len(s)) if i not in axes] for s, axes in ((sa, contract[0]), (sb, contract[1]))]
    rows, columns = (math.prod(s[i] for i in free_axes) for s, free_axes in zip((sa, sb), free, strict=True))
    if batch[0] or not contract[0] or rows * columns < _LARGE:
        return _product(a, b, contract, batch, dtypes.int32)
    if 1 not in (rows, columns):
        k = math.prod(sa[i] for i in contract[0])
        if rows > columns or rows * _FEWER > k or tuple(contract[1]) != tuple(range(len(free[1]), len(sb))):
            return _product(a, b, contract, batch, dtypes.int32)
        out = _product(b, a, (contract[1], contract[0]), batch, dtypes.int32)
        lowest = tf.fill(shape_of(out), tf.constant(-(1 << 31), tf.int32))
        out = raw.Max(input=raw.Pack(values=[out, lowest], axis=0), axis=ints((0,)), keep_dims=False)
        n = len(free[1])
        return raw.Transpose(x=out, perm=ints((*range(n, n + len(free[0])), *range(n))))
    vector, matrix, axes = (a, b, contract[1]) if rows == 1 else (b, a, contract[0])
    ndim = len(shape_of(matrix))
    by_rows = tuple(axes) == tuple(range(ndim - len(axes), ndim))
    two = raw.Pack(values=[vector, tf.fill(shape_of(vector), tf.constant(-128 if by_rows else 0, tf.int8))], axis=0)
    if by_rows:
        widest = raw.Max(input=two, axis=ints((0,)), keep_dims=False)
        return _product(*((widest, b) if rows == 1 else (a, widest)), contract, batch, dtypes.int32)
    if rows == 1:
        return _product(two, b, (tuple(i + 1 for i in contract[0]), contract[1]), batch, dtypes.int32)[0]
    out = _product(a, two, (contract[0], tuple(i + 1 for i in contract[1])), batch, dtypes.int32)
    return raw.GatherV2(params=out, indices=constant(0, dtypes.int32), axis=constant(len(free[0]), dtypes.int32))


_LARGE = 64  # numbers of a product
_FEWER = 32  # the factor by which rows have to be fewer than contracted elements


def _product(a: Array, b: Array, contract: Axes, batch: Axes, result: np.dtype | None = None) -> Array:
    sa, sb = shape_of(a), shape_of(b)
    free_a = [i for i in range(len(sa)) if i not in contract[0] and i not in batch[0]]
    free_b = [i for i in range(len(sb)) if i not in contract[1] and i not in batch[1]]
    shape = (*(sa[i] for i in batch[0]), *(sa[i] for i in free_a), *(sb[i] for i in free_b))
    if 0 in sa or 0 in sb:
        return tf.zeros(shape, a.dtype if result is None else TF[result])
    flags = not batch[0] or not dtypes.is_complex(dtype_of(a))  # a batch's are adjoints, not transpositions
    left, turned_a = _matrices(a, batch[0], free_a, contract[0], flags)
    right, turned_b = _matrices(b, batch[1], contract[1], free_b, flags)
    if result is not None:
        out = raw.BatchMatMulV3(x=left, y=right, Tout=TF[result], adj_x=turned_a, adj_y=turned_b)
    elif batch[0]:
        out = raw.BatchMatMulV2(x=left, y=right, adj_x=turned_a, adj_y=turned_b)
    else:
        out = raw.MatMul(a=left, b=right, transpose_a=turned_a, transpose_b=turned_b)
    return out if shape_of(out) == shape else raw.Reshape(tensor=out, shape=ints(shape))
