"""Sorting and searching on integers in the order of the values, since TensorFlow's own kernels do not order NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import select
from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import cast, constant, dtype_of, ints, shape_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def ordered(x: Array) -> Array:
    """Return int32 or int64 in the order of `x`: -0.0 and 0.0 are equal, NaN is the greatest."""
    dtype = dtype_of(x)
    if dtype == dtypes.uint64:
        bits = raw.Bitcast(input=x, type=tf.int64)
        return raw.BitwiseXor(x=bits, y=constant(-(2**63), dtypes.int64))
    if dtype.kind in "biu":
        return cast(x, dtypes.int64 if dtype.itemsize > 4 or dtype == dtypes.uint32 else dtypes.int32)
    if dtype.itemsize < 4:
        x = cast(x, dtypes.float32)
    wide = dtypes.int64 if dtype.itemsize > 4 else dtypes.int32
    zero = raw.Equal(x=x, y=constant(0, dtype_of(x)))
    bits = select(zero, constant(0, wide), raw.Bitcast(input=x, type=tf.as_dtype(wide)))
    most = constant(np.iinfo(wide).max, wide)
    mirrored = raw.BitwiseXor(x=bits, y=most)  # below zero, greater bits are lesser numbers
    order = select(raw.Less(x=bits, y=constant(0, wide)), mirrored, bits)
    return select(raw.IsNan(x=x), most, order)


def _order(keys: Sequence[Array]) -> Array:
    """Return the stable lexicographic order of keys (rows, n), int32 (rows, n)."""
    order = None
    for key in reversed(keys):  # stable sorts, by the last key first
        key = ordered(key)
        if order is not None:
            key = _take_along_axis(key, order)
        n = shape_of(key)[1]
        # the greatest first, of equals the first one: of inverted bits that is the least first
        at = raw.TopKV2(input=raw.Invert(x=key), k=constant(n, dtypes.int32), sorted=True)[1]
        order = at if order is None else _take_along_axis(order, at)
    return order


def _take_along_axis(x: Array, at: Array) -> Array:
    return raw.GatherV2(params=x, indices=at, axis=constant(1, dtypes.int32), batch_dims=1)


def _as_rows(x: Array, axis: int) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """Return (the array as (rows, n), the shape with the axis last, the permutation that moved the axis there)."""
    shape = shape_of(x)
    perm = (*(a for a in range(len(shape)) if a != axis), axis)
    if perm != tuple(range(len(shape))):
        x = raw.Transpose(x=x, perm=ints(perm))
    moved = tuple(shape[a] for a in perm)
    return raw.Reshape(tensor=x, shape=ints((math.prod(moved[:-1]), moved[-1]))), moved, perm


class TensorFlowSorting:
    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        operands = tuple(operands)
        shape = shape_of(operands[0])
        axis %= len(shape)
        if 0 in shape:
            return operands
        rows = [_as_rows(x, axis) for x in operands]
        _, moved, perm = rows[0]
        order = _order([x for x, _, _ in rows[:num_keys]])
        inverse = np.argsort(perm)
        out = []
        for x, _, _ in rows:
            x = raw.Reshape(tensor=_take_along_axis(x, order), shape=ints(moved))
            out.append(x if perm == tuple(range(len(perm))) else raw.Transpose(x=x, perm=ints(inverse.tolist())))
        return tuple(out)

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        shape, boundaries_shape = shape_of(values), shape_of(boundaries)
        rows = math.prod(boundaries_shape[:-1])
        if 0 in shape:
            return tf.zeros(shape, tf.int64)
        operation = raw.UpperBound if right else raw.LowerBound
        positions = operation(
            sorted_inputs=raw.Reshape(tensor=ordered(boundaries), shape=ints((rows, boundaries_shape[-1]))),
            values=raw.Reshape(tensor=ordered(values), shape=ints((rows, math.prod(shape) // rows))),
            out_type=tf.int64,
        )
        return raw.Reshape(tensor=positions, shape=ints(shape))
