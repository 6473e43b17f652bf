"""Gather and scatter, on rows: axes that are indexed are one, and so are those that are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import FUNCTIONS
from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.backends.tensorflow.operation import (
    FLOAT8_AS_FLOAT32,
    Shape,
    broadcast_to,
    broadcastable,
    cast,
    constant,
    dtype_of,
    ints,
    shape_of,
    via_carriers,
)
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

_OPERATIONS = {
    "set": "TensorScatterUpdate",
    "add": "TensorScatterAdd",
    "min": "TensorScatterMin",
    "max": "TensorScatterMax",
}
_OF_BOOL = {"add": "max", "multiply": "min"}  # for bool, sums are maxima and products minima


def _rows(shape: Shape, indices: Sequence[Array]) -> Array:
    """Return the rows (of the axes without index) that the indices select in the array, in their broadcast shape."""
    if len(indices) == 1:
        (at,) = indices
        return at if dtype_of(at) in (dtypes.int32, dtypes.int64) else cast(at, dtypes.int64)
    row: Any = None
    for axis, at in enumerate(indices):
        stride = math.prod(shape[axis + 1 : len(indices)])
        at = (
            raw.Mul(x=cast(at, dtypes.int64), y=constant(stride, dtypes.int64))
            if stride != 1
            else cast(at, dtypes.int64)
        )
        row = at if row is None else FUNCTIONS["add"](*broadcastable(row, at))
    return row


def gather(x: Array, indices: Sequence[Array]) -> Array:
    if not indices:
        return x
    shape, k = shape_of(x), len(indices)
    if k > 1:
        x = raw.Reshape(tensor=x, shape=ints((math.prod(shape[:k]), *shape[k:])))
    return raw.GatherV2(params=x, indices=_rows(shape, indices), axis=constant(0, dtypes.int32))


def _accumulated(x: Array, rows: Array, updates: Array, mode: str) -> Array:
    """Return `x` (n, width) with `updates` (k, width) combined into its `rows` (k,)."""
    if mode == "multiply":
        factors = raw.UnsortedSegmentProd(
            data=updates, segment_ids=rows, num_segments=constant(shape_of(x)[0], dtypes.int32)
        )
        return raw.Mul(x=x, y=factors)
    at = tf.reshape(rows, (-1, 1))
    out = getattr(raw, _OPERATIONS[mode])(tensor=x, indices=at, updates=updates)
    if mode not in ("min", "max") or not dtypes.is_floating(dtype_of(x)):
        return out
    # TensorFlow's kernels compare, and no number is less or greater than NaN
    missing = cast(raw.IsNan(x=updates), dtypes.uint8)
    is_missing = raw.TensorScatterMax(tensor=tf.zeros(shape_of(x), tf.uint8), indices=at, updates=missing)
    return raw.SelectV2(condition=cast(is_missing, dtypes.bool_), t=constant(np.nan, dtype_of(x)), e=out)


def _scatter(x: Array, indices: Sequence[Array], updates: Array, mode: str) -> Array:
    shape, k = shape_of(x), len(indices)
    rest = shape[k:]
    lead = np.broadcast_shapes(*(shape_of(i) for i in indices))
    updates = broadcast_to(updates, lead + rest)
    if 0 in shape_of(updates):
        return x
    if not indices:
        combine = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}
        return updates if mode == "set" else FUNCTIONS[combine[mode]](x, updates)
    width, count = math.prod(rest), math.prod(lead)
    out = _accumulated(
        raw.Reshape(tensor=x, shape=ints((math.prod(shape[:k]), width))),
        tf.reshape(_rows(shape, indices), (count,)),
        raw.Reshape(tensor=updates, shape=ints((count, width))),
        mode,
    )
    return raw.Reshape(tensor=out, shape=ints(shape))


class TensorFlowIndexing:
    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        return gather(x, list(indices))

    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        indices, dtype = list(indices), dtype_of(x)
        if dtype == dtypes.bool_ and mode != "set":
            narrow = (cast(a, dtypes.uint8) for a in (x, updates))
            return cast(_scatter(next(narrow), indices, next(narrow), _OF_BOOL.get(mode, mode)), dtypes.bool_)
        carriers = FLOAT8_AS_FLOAT32
        if mode in ("add", "multiply"):
            carriers = {**carriers, dtypes.float16: dtypes.float32, dtypes.bfloat16: dtypes.float32}
        return via_carriers(carriers, lambda x, updates: _scatter(x, indices, updates, mode))(x, updates)

    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        if not isinstance(x, EagerTensor):
            raise TracedValueError(
                f"the positions of true elements in a {dtype_of(x)} array of shape {shape_of(x)} are needed while"
                " a program is being traced, and their number is known only when it runs.\nUse where with three"
                " arguments, or take this step out of the compiled function."
            )
        with tf.init_scope():  # in a trace too, how many there are has to be known now
            return _true_positions(x)

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        axis %= len(shape_of(x))
        at = indices if dtype_of(indices) in (dtypes.int32, dtypes.int64) else cast(indices, dtypes.int64)
        return raw.GatherV2(params=x, indices=at, axis=constant(axis, dtypes.int32))


def _true_positions(x: EagerTensor) -> tuple[Array, ...]:
    """Return the positions of true elements, one array for each axis."""
    shape = shape_of(x)
    if not shape:
        return ()
    if dtype_of(x) != dtypes.bool_:
        x = raw.NotEqual(x=cast(x, dtypes.float32) if dtype_of(x) in FLOAT8_AS_FLOAT32 else x, y=_zero(x))
    at = tf.reshape(raw.Where(condition=tf.reshape(x, (-1,))), (-1,))
    axis_positions = []
    for n in reversed(shape):
        axis_positions.append(raw.FloorMod(x=at, y=constant(max(n, 1), dtypes.int64)))
        at = raw.FloorDiv(x=at, y=constant(max(n, 1), dtypes.int64))
    return tuple(reversed(axis_positions))


def _zero(x: Array) -> Array:
    dtype = dtype_of(x)
    return constant(0, FLOAT8_AS_FLOAT32.get(dtype, dtype))
