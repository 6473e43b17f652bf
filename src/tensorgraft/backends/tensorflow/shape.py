"""Creation, shapes and layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.elementwise import astype, with_one_dtype
from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.backends.tensorflow.operation import (
    FLOAT8_AS_FLOAT32,
    MOST_AXES,
    TF,
    along_axes,
    broadcast_to,
    cast,
    constant,
    ints,
    shape_of,
    via_carriers,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Shape = tuple[int, ...]


def take_box(x: Array, start: Shape, stop: Shape, step: Shape) -> Array:
    """Return `x[start:stop:step]` on every axis."""
    shape = shape_of(x)
    if len(shape) > MOST_AXES:
        axes = [a for a, n in enumerate(shape) if (start[a], stop[a], step[a]) != (0, n, 1)]

        def take_axis(y: Array, axis: int) -> Array:
            y_shape = shape_of(y)
            return take_box(y, (0, start[axis], 0), (y_shape[0], stop[axis], y_shape[2]), (1, step[axis], 1))

        return along_axes(take_axis, x, axes)
    if all(s == 1 for s in step):
        return raw.Slice(input=x, begin=ints(start), size=ints([e - b for b, e in zip(start, stop, strict=True)]))
    # TensorFlow reads a stop below the start as a slice to the end of the last element: never here, start <= stop
    return raw.StridedSlice(input=x, begin=ints(start), end=ints(stop), strides=ints(step))


def _flip(x: Array, axes: Shape) -> Array:
    if len(shape_of(x)) > MOST_AXES:
        return along_axes(lambda y, axis: raw.ReverseV2(tensor=y, axis=ints((1,))), x, axes)
    return raw.ReverseV2(tensor=x, axis=ints(axes)) if axes else x


def _interior_padded(x: Array, value: Array, gaps: Sequence[int]) -> Array:
    """Return `x` with `gaps[axis]` values between its elements."""
    for axis, inner in enumerate(gaps):
        shape = shape_of(x)
        n = shape[axis]
        if not inner or n < 2:
            continue
        before, inner_count = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        padded = raw.Reshape(tensor=x, shape=ints((before, n, 1, inner_count)))
        padded = raw.PadV2(input=padded, paddings=_pairs([(0, 0), (0, 0), (0, inner), (0, 0)]), constant_values=value)
        padded = raw.Reshape(tensor=padded, shape=ints((before, n * (inner + 1), inner_count)))
        kept_count = (n - 1) * (inner + 1) + 1
        padded = raw.Slice(input=padded, begin=ints((0, 0, 0)), size=ints((before, kept_count, inner_count)))
        x = raw.Reshape(tensor=padded, shape=ints((*shape[:axis], kept_count, *shape[axis + 1 :])))
    return x


def _pairs(pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)


def pad(x: Array, value: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    x = _interior_padded(x, value, [interior for _, _, interior in config])
    shape = shape_of(x)
    if any(low < 0 or high < 0 for low, high, _ in config):
        # more may be cut off on one side than the array has, and be padded on the other
        start = [min(max(-low, 0), n) for n, (low, _, _) in zip(shape, config, strict=True)]
        stop = [max(n - max(-high, 0), b) for n, b, (_, high, _) in zip(shape, start, config, strict=True)]
        x = take_box(x, tuple(start), tuple(stop), (1,) * len(shape))
        rest = []
        for n, b, e, (low, high, _) in zip(shape, start, stop, config, strict=True):
            out = n + low + high
            before = min(max(low, 0), out) if e > b else out
            rest.append((before, out - before - (e - b)))
    else:
        rest = [(low, high) for low, high, _ in config]
    if not any(map(any, rest)):
        return x
    if len(shape) > MOST_AXES:
        padded = [a for a, sides in enumerate(rest) if any(sides)]

        def fill(y: Array, axis: int) -> Array:
            return raw.PadV2(input=y, paddings=_pairs([(0, 0), rest[axis], (0, 0)]), constant_values=value)

        return along_axes(fill, x, padded)
    return raw.PadV2(input=x, paddings=_pairs(rest), constant_values=value)


def _clamped(start: Sequence[Array], shape: Shape, sizes: Shape) -> list[Array]:
    """Return the starts of a window, int64, moved so that it fits."""
    zero = constant(0, dtypes.int64)
    return [
        raw.Minimum(x=raw.Maximum(x=astype(at, dtypes.int64), y=zero), y=constant(n - k, dtypes.int64))
        for at, n, k in zip(start, shape, sizes, strict=True)
    ]


def _dynamic_slice(x: Array, start: Sequence[Array], sizes: Shape) -> Array:
    shape = shape_of(x)
    if not shape:
        return x
    if len(shape) > MOST_AXES:
        at = dict(enumerate(start))

        def slice_axis(y: Array, axis: int) -> Array:
            y_shape = shape_of(y)
            zero = constant(0, dtypes.int64)
            return _dynamic_slice(y, [zero, at[axis], zero], (y_shape[0], sizes[axis], y_shape[2]))

        return along_axes(slice_axis, x, range(len(shape)))
    begin = raw.Pack(values=_clamped(start, shape, sizes), axis=0)
    out = raw.Slice(input=x, begin=begin, size=np.array(sizes, np.int64))
    if not isinstance(out, EagerTensor):
        out.set_shape(sizes)
    return out


def positions(shape: Shape, start: Sequence[Any], extents: Shape, step: Shape) -> Array:
    """Return int64 `extents`: positions, in the flat array of `shape`, of the box of `extents` that begins at
    `start`."""
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    at: Any = np.zeros(extents, np.int64)
    for axis, (n, by, stride) in enumerate(zip(extents, step, strides, strict=True)):
        offsets = np.arange(n, dtype=np.int64) * (by * stride)
        at = at + offsets.reshape([n if a == axis else 1 for a in range(len(extents))])
    offset: Any = 0
    for b, stride in zip(start, strides, strict=True):
        offset = offset + b * stride
    return tf.constant(at) + offset


def put_box(x: Array, update: Array, start: Sequence[Any], step: Shape) -> Array:
    """Return `x` with `update` at `start` (ints or tensors), every `step`. Written as a scatter, which XLA does in
    place; the axes at the end that are written whole are rows of it."""
    shape, extents = shape_of(x), shape_of(update)
    if 0 in extents:
        return x
    if extents == shape:
        return update
    k = len(shape)
    while k > 1 and extents[k - 1] == shape[k - 1]:
        k -= 1
    width, count = math.prod(shape[k:]), math.prod(extents[:k])
    at = positions(shape[:k], start[:k], extents[:k], step[:k])
    flat = raw.TensorScatterUpdate(
        tensor=raw.Reshape(tensor=x, shape=ints((math.prod(shape[:k]), width))),
        indices=tf.reshape(at, (count, 1)),
        updates=raw.Reshape(tensor=update, shape=ints((count, width))),
    )
    return raw.Reshape(tensor=flat, shape=ints(shape))


def _slice_update(x: Array, update: Array, start: Shape, step: Shape) -> Array:
    shape, extents = shape_of(x), shape_of(update)
    if 0 in extents:
        return x
    plain = len(shape) <= MOST_AXES and (isinstance(x, EagerTensor) and isinstance(update, EagerTensor))
    if (plain or all(s == 1 for s in step)) and shape and len(shape) <= MOST_AXES:
        end = [b + (n - 1) * s + 1 for b, n, s in zip(start, extents, step, strict=True)]
        return raw.TensorStridedSliceUpdate(input=x, begin=ints(start), end=ints(end), strides=ints(step), value=update)
    if not shape:
        return update
    return put_box(x, update, start, step)


class TensorFlowShape:
    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Array:
        dtype = np.dtype(dtype)
        if not isinstance(value, tf.Tensor):
            value = np.asarray(value)
            if value.dtype.kind == "c" and dtype.kind not in "cb":
                value = value.real
            value = tf.constant(value.astype(dtype))
        if dtype in FLOAT8_AS_FLOAT32:
            return cast(tf.fill(shape, astype(value, dtypes.float32)), dtype)
        return raw.Fill(dims=ints(shape), value=astype(value, dtype))

    def iota(self, n: int, dtype: np.dtype) -> Array:
        dtype = np.dtype(dtype)
        known = dtype if dtype in (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64) else dtypes.int64
        return cast(raw.Range(start=constant(0, known), limit=constant(n, known), delta=constant(1, known)), dtype)

    def reshape(self, x: Array, shape: Shape, /) -> Array:
        return raw.Reshape(tensor=x, shape=ints(shape))

    def permute_dims(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return raw.Transpose(x=x, perm=ints(axes))

    def broadcast_to(self, x: Array, shape: Shape, /) -> Array:
        return broadcast_to(x, tuple(shape))

    def concat(self, arrays: Sequence[Array], /, axis: int) -> Array:
        arrays = list(arrays)
        if len(arrays) == 1:
            return arrays[0]
        return raw.ConcatV2(values=arrays, axis=axis % len(shape_of(arrays[0])))

    def pad(self, x: Array, value: Any, config: Sequence[tuple[int, int, int]], /) -> Array:
        x, value = with_one_dtype(x, value)
        return via_carriers(FLOAT8_AS_FLOAT32, lambda x, value: pad(x, value, list(config)))(x, value)

    def slice(self, x: Array, start: Shape, stop: Shape, step: Shape, /) -> Array:
        return take_box(x, tuple(start), tuple(stop), tuple(step)) if start else x

    def slice_update(self, x: Array, update: Array, start: Shape, step: Shape, /) -> Array:
        put = via_carriers(FLOAT8_AS_FLOAT32, lambda x, update: _slice_update(x, update, tuple(start), tuple(step)))
        return put(x, update)

    def flip(self, x: Array, axes: tuple[int, ...], /) -> Array:
        axes = tuple(a % len(shape_of(x)) for a in axes)
        return via_carriers(FLOAT8_AS_FLOAT32, lambda x: _flip(x, axes))(x)

    def dynamic_slice(self, x: Array, start: Sequence[Array], sizes: Shape, /) -> Array:
        return _dynamic_slice(x, list(start), tuple(sizes))

    def dynamic_update_slice(self, x: Array, update: Array, start: Sequence[Array], /) -> Array:
        shape, extents = shape_of(x), shape_of(update)
        if not shape:
            return update
        at = _clamped(start, shape, extents)
        put = via_carriers(FLOAT8_AS_FLOAT32, lambda x, update: put_box(x, update, at, (1,) * len(shape)))
        return put(x, update)


__all__ = ["TF", "TensorFlowShape", "pad", "take_box"]
