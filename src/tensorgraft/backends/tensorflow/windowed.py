"""Convolution and windowed reductions.

TensorFlow's CPU kernels support channels last, floats, no groups and, in gradients, no dilation: plain convolutions
use them, the others are computed as matrix products.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import FUNCTIONS
from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import Fn, cast, constant, dtype_of, ints, shape_of
from tensorgraft.backends.tensorflow.products import dot_general
from tensorgraft.backends.tensorflow.shape import pad, take_box
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.windowed import window_count

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]

_MANY = 32  # pieces of an image that are worth a slice each; more are gathered


def _convolution(
    x: Array,
    w: Array,
    strides: Ints,
    padding: Pads,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int,
    batch_groups: int,
) -> Array:
    dtype = dtype_of(x)
    wide = dtypes.accumulator(dtype)
    x, w = cast(x, wide), cast(w, wide)
    config = [(0, 0, 0), (0, 0, 0), *((*p, d - 1) for p, d in zip(padding, lhs_dilation, strict=True))]
    if any(map(any, config)):
        x = pad(x, constant(0, wide), config)
    window = shape_of(w)[2:]
    out = tuple(map(window_count, shape_of(x)[2:], window, strides, rhs_dilation))
    shape = (shape_of(x)[0] // batch_groups, shape_of(w)[0], *out)
    if 0 in (*shape_of(x), *shape_of(w), *shape):
        return tf.zeros(shape, cast(constant(0, wide), dtype).dtype)
    plain = groups == batch_groups == 1 and dtypes.is_floating(wide) and max(rhs_dilation, default=1) == 1
    if plain and 1 <= len(window) <= 3:
        y = _native(x, w, strides)
    elif groups > 1 and shape_of(w)[1] == 1 and math.prod(window) <= _MANY:
        y = _depthwise(x, w, out, strides, rhs_dilation)
    else:
        y = _as_product(x, w, out, strides, rhs_dilation, groups, batch_groups)
    return cast(y, dtype)


def _native(x: Array, w: Array, strides: Ints) -> Array:
    """TensorFlow's own kernel, which has the channels at the end."""
    n = len(strides)
    if n == 1:
        with_height = _native(tf.expand_dims(x, 2), tf.expand_dims(w, 2), (1, *strides))
        return tf.squeeze(with_height, 2)
    x = raw.Transpose(x=x, perm=ints((0, *range(2, n + 2), 1)))
    w = raw.Transpose(x=w, perm=ints((*range(2, n + 2), 1, 0)))
    operation = raw.Conv2D if n == 2 else raw.Conv3D
    y = operation(input=x, filter=w, strides=[1, *strides, 1], padding="VALID")
    return raw.Transpose(x=y, perm=ints((0, n + 1, *range(1, n + 1))))


def _piece(x: Array, at: Ints, out: Ints, strides: Ints, dilation: Ints) -> Array:
    """Return the elements at position `at` of every window: (batch, channels, out...)."""
    start = tuple(i * d for i, d in zip(at, dilation, strict=True))
    stop = tuple(b + (c - 1) * s + 1 for b, c, s in zip(start, out, strides, strict=True))
    batch, channels = shape_of(x)[:2]
    return take_box(x, (0, 0, *start), (batch, channels, *stop), (1, 1, *strides))


def _depthwise(x: Array, w: Array, out: Ints, strides: Ints, dilation: Ints) -> Array:
    """Compute a convolution with one channel a group as a sum of scaled slices."""
    channels, outputs, window = shape_of(x)[1], shape_of(w)[0], shape_of(w)[2:]
    multiplier = outputs // channels
    taps = tf.reshape(w, (channels, multiplier, math.prod(window)))
    total = None
    for k, at in enumerate(itertools.product(*map(range, window))):
        piece = tf.reshape(_piece(x, at, out, strides, dilation), (shape_of(x)[0], channels, 1, math.prod(out)))
        scaled = raw.Mul(x=piece, y=tf.reshape(taps[:, :, k], (1, channels, multiplier, 1)))
        total = scaled if total is None else raw.AddV2(x=total, y=scaled)
    return tf.reshape(total, (shape_of(x)[0], outputs, *out))


def _patches(x: Array, window: Ints, out: Ints, strides: Ints, dilation: Ints) -> Array:
    """Return (batch, channels, taps, places)."""
    batch, channels, *spatial = shape_of(x)
    taps, positions = math.prod(window), math.prod(out)
    if taps <= _MANY:
        pieces = [_piece(x, at, out, strides, dilation) for at in itertools.product(*map(range, window))]
        flat = [raw.Reshape(tensor=p, shape=ints((batch, channels, 1, positions))) for p in pieces]
        return flat[0] if taps == 1 else raw.ConcatV2(values=flat, axis=2)
    grid = np.zeros((*window, *out), np.int64)
    for axis, n in enumerate(spatial):
        stride = math.prod(spatial[axis + 1 :])
        taps_at = np.arange(window[axis])[:, None] * dilation[axis] + np.arange(out[axis]) * strides[axis]
        shape = [1] * (2 * len(window))
        shape[axis], shape[len(window) + axis] = window[axis], out[axis]
        grid += taps_at.reshape(shape) * stride
        assert taps_at.max() < n
    flat_x = raw.Reshape(tensor=x, shape=ints((batch, channels, math.prod(spatial))))
    at = tf.constant(grid.reshape(taps, positions))
    return raw.GatherV2(params=flat_x, indices=at, axis=constant(2, dtypes.int32))


def _as_product(x: Array, w: Array, out: Ints, strides: Ints, dilation: Ints, groups: int, batch_groups: int) -> Array:
    """Compute a convolution as one product of patches and weights, with groups as its batch."""
    window, outputs, channels = shape_of(w)[2:], shape_of(w)[0], shape_of(w)[1]
    taps, positions, batch = math.prod(window), math.prod(out), shape_of(x)[0] // batch_groups
    patches = _patches(x, window, out, strides, dilation)
    count = groups * batch_groups
    weights = tf.reshape(w, (count, outputs // count, channels, taps))
    if batch_groups > 1:
        patches, shared = tf.reshape(patches, (count, batch, channels, taps, positions)), 0
    else:
        patches, shared = tf.reshape(patches, (batch, count, channels, taps, positions)), 1
    # (groups, outputs of a group, batch, places)
    y = dot_general(weights, patches, ((2, 3), (2, 3)), ((0,), (shared,)), None)
    return tf.reshape(raw.Transpose(x=y, perm=ints((2, 0, 1, 3))), (batch, outputs, *out))


# ---- windowed reductions ---------------------------------------------------------------------------------------------

_COMBINE = {"sum": FUNCTIONS["add"], "max": FUNCTIONS["maximum"], "min": FUNCTIONS["minimum"]}
_IDENTITY = {"sum": lambda dtype: 0, "max": dtypes.lowest, "min": dtypes.highest}


def _strided_axis(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    shape = shape_of(x)
    begin, end, steps = [0] * len(shape), list(shape), [1] * len(shape)
    begin[axis], end[axis], steps[axis] = start, stop, step
    return take_box(x, tuple(begin), tuple(end), tuple(steps))


def _reduce_axis(x: Array, axis: int, combine: Fn, window: int, stride: int, dilation: int) -> Array:
    """Compute a windowed reduction along one axis, on which at least one window fits."""
    n = shape_of(x)[axis]
    out = (n - dilation * (window - 1) - 1) // stride + 1
    if window <= 4 or (stride > 1 and window <= 2 * stride):
        total = None
        for k in range(window):
            piece = _strided_axis(x, axis, k * dilation, k * dilation + (out - 1) * stride + 1, stride)
            total = piece if total is None else combine(total, piece)
        return total
    # windows of powers of two out of two of half the length each, then one of `window` out of those
    total, covered, length, power = None, 0, 1, x
    rest = window
    while True:
        if rest & 1:
            size = n - dilation * (window - 1)
            piece = _strided_axis(power, axis, covered * dilation, covered * dilation + size)
            total = piece if total is None else combine(total, piece)
            covered += length
        rest >>= 1
        if not rest:
            break
        length_now = shape_of(power)[axis]
        power = combine(
            _strided_axis(power, axis, 0, length_now - length * dilation),
            _strided_axis(power, axis, length * dilation, length_now),
        )
        length *= 2
    return total if stride == 1 else _strided_axis(total, axis, 0, (out - 1) * stride + 1, stride)


def _reduce_window(x: Array, kind: str, window: Ints, strides: Ints, padding: Pads, dilation: Ints) -> Array:
    dtype = dtype_of(x)
    if dtype == dtypes.bool_:
        kind = "max" if kind == "sum" else kind
        wide = _reduce_window(cast(x, dtypes.uint8), kind, window, strides, padding, dilation)
        return cast(wide, dtype)
    carrier = dtypes.accumulator(dtype) if kind == "sum" or dtype in dtypes.FLOAT8 else dtype
    initial = _IDENTITY[kind](carrier)
    wide = cast(x, carrier)
    if any(map(any, padding)):
        wide = pad(wide, constant(initial, carrier), [(*p, 0) for p in padding])
    out = tuple(map(window_count, shape_of(wide), window, strides, dilation))
    if 0 in out:
        return tf.fill(out, cast(constant(initial, carrier), dtype))
    for axis, (k, s, d) in enumerate(zip(window, strides, dilation, strict=True)):
        if k > 1 or s > 1:
            wide = _reduce_axis(wide, axis, _COMBINE[kind], k, s, d)
    return cast(wide, dtype)


class TensorFlowWindowed:
    def convolution(
        self,
        x: Array,
        w: Array,
        /,
        strides: Ints,
        padding: Any,
        lhs_dilation: Ints,
        rhs_dilation: Ints,
        groups: int = 1,
        batch_groups: int = 1,
    ) -> Array:
        pads = tuple(map(tuple, padding))
        return _convolution(x, w, tuple(strides), pads, tuple(lhs_dilation), tuple(rhs_dilation), groups, batch_groups)

    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Any, window_dilation: Ints
    ) -> Array:
        return _reduce_window(
            x, kind, tuple(window), tuple(strides), tuple(map(tuple, padding)), tuple(window_dilation)
        )
