"""Creation, shapes and layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from tensorgraft.backends.jax.elementwise import _astype
from tensorgraft.backends.jax.indexing import _take
from tensorgraft.backends.jax.operation import Tracer, broadcast_to, is_common, is_tracing, operation, with_one_dtype
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.shape import ShapeOps

Shape = tuple[int, ...]
_SMALL = 1 << 22  # elements that the host may write instead


def _full(value: Array, shape: Shape, dtype: np.dtype) -> Array:
    return broadcast_to(_astype(value, dtype), shape)


def _pad(x: Array, value: Array, config: tuple[tuple[int, int, int], ...]) -> Array:
    x, value = with_one_dtype(x, value)
    return lax.pad(x, value, config)


def _slice_update(x: Array, update: Array, start: Shape, step: Shape) -> Array:
    if all(s == 1 for s in step):
        return lax.dynamic_update_slice(x, update, [np.int32(s) for s in start], allow_negative_indices=False)
    # XLA writes a strided slice as a scatter, which is slow: the update spread out and selected is elementwise
    ends, mask = [], None
    for axis, (n, m, at, by) in enumerate(zip(x.shape, update.shape, start, step, strict=True)):
        ends.append((at, n - at - max((m - 1) * by + 1, 0) * (m > 0), by - 1))
        axis_mask = np.zeros(n, bool)
        axis_mask[at : at + m * by : by] = True
        if not axis_mask.all():
            wide_mask = lax.broadcast_in_dim(axis_mask, x.shape, (axis,))
            mask = wide_mask if mask is None else lax.bitwise_and(mask, wide_mask)
    spread_update = lax.pad(update, np.zeros((), x.dtype), ends)
    return spread_update if mask is None else lax.select(mask, spread_update, x)


def _of_one_dtype(start: Sequence[Array]) -> list[Array]:
    return [lax.convert_element_type(at, np.int64) for at in start]


def _dynamic_slice(x: Array, start: Sequence[Array], sizes: Shape) -> Array:
    return lax.dynamic_slice(x, _of_one_dtype(start), sizes, allow_negative_indices=False)


def _dynamic_update_slice(x: Array, update: Array, start: Sequence[Array]) -> Array:
    return lax.dynamic_update_slice(x, update, _of_one_dtype(start), allow_negative_indices=False)


def _part(x: Array, start: Array, sizes: Shape, step: Shape) -> Array:
    """Return a slice whose place is an operand."""
    spans = [(n - 1) * by + 1 if n else 0 for n, by in zip(sizes, step, strict=True)]
    part = lax.dynamic_slice(x, list(start), spans, allow_negative_indices=False)
    return part if max(step) == 1 else lax.slice(part, [0] * len(spans), spans, step)


def _start_indices(start: Shape) -> np.ndarray:
    return np.array(start, np.int32 if max(start) < 2**31 else np.int64)


def _roll(x: Array, shift: Array, axis: int) -> Array:
    n = x.shape[axis]
    return _take(x, lax.rem(lax.rem(lax.iota(np.int64, n) - shift, np.int64(n)) + n, np.int64(n)), axis)


def _put_part(x: Array, update: Array, start: Array) -> Array:
    return lax.dynamic_update_slice(x, update, list(start), allow_negative_indices=False)


_fill = operation(_full, ("shape", "dtype"))
_padded = operation(_pad, ("config",))
_joined = operation(lambda arrays, axis: lax.concatenate(arrays, axis), ("axis",))
_updated = operation(_slice_update, ("start", "step"))
_cut = operation(lambda x, start, stop, step: lax.slice(x, start, stop, step), ("start", "stop", "step"))
_cut_anywhere = operation(_part, ("sizes", "step"))
_updated_anywhere = operation(_put_part)
_rolled = operation(_roll, ("axis",))
_window = operation(_dynamic_slice, ("sizes",))
_written = operation(_dynamic_update_slice)


class JaxShape:
    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Array:
        if not isinstance(value, jax.Array):
            value = np.asarray(value)
            if value.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
                value = value.real
            value = value.astype(dtype)
            shape, dtype = tuple(shape), np.dtype(dtype)
            is_small = math.prod(shape) <= _SMALL and not value.shape and not is_tracing()
            if is_small and not is_common((shape, dtype)):
                return self._put(np.full(shape, value, dtype))  # type: ignore[attr-defined]
        return _fill(self, value, shape=tuple(shape), dtype=np.dtype(dtype))

    iota = operation(lambda n, dtype: lax.iota(dtype, n), ("n", "dtype"))
    reshape = operation(lambda x, shape: lax.reshape(x, shape), ("shape",))
    permute_dims = operation(lambda x, axes: lax.transpose(x, axes), ("axes",))
    broadcast_to = operation(broadcast_to, ("shape",))
    flip = operation(lambda x, axes: lax.rev(x, axes), ("axes",))

    def slice(self, x: Array, start: Shape, stop: Shape, step: Shape, /) -> Array:
        if not start or isinstance(x, Tracer) or is_tracing():
            return _cut(self, x, tuple(start), tuple(stop), tuple(step))
        # eagerly, one program for every place
        sizes = tuple(-(-(b - a) // by) for a, b, by in zip(start, stop, step, strict=True))
        return _cut_anywhere(self, x, _start_indices(start), sizes=sizes, step=tuple(step))

    def concat(self, arrays: Sequence[Array], /, axis: int) -> Array:
        return _joined(self, list(arrays), axis=axis % len(arrays[0].shape))

    def pad(self, x: Array, value: Any, config: Sequence[tuple[int, int, int]], /) -> Array:
        return _padded(self, x, value, config=tuple(map(tuple, config)))

    def slice_update(self, x: Array, update: Array, start: Shape, step: Shape, /) -> Array:
        eager = not (isinstance(x, Tracer) or isinstance(update, Tracer) or is_tracing())
        if eager and start and max(step) == 1:
            return _updated_anywhere(self, x, update, _start_indices(start))
        return _updated(self, x, update, start=tuple(start), step=tuple(step))

    def roll(self, x: Array, shift: int, axis: int) -> Array:
        if isinstance(x, Tracer) or is_tracing() or not x.shape[axis]:
            return ShapeOps.roll(self, x, shift, axis)  # type: ignore[arg-type]
        return _rolled(self, x, np.int64(shift % x.shape[axis]), axis=axis)

    def dynamic_slice(self, x: Array, start: Sequence[Array], sizes: Shape, /) -> Array:
        return _window(self, x, list(start), sizes=tuple(sizes))

    def dynamic_update_slice(self, x: Array, update: Array, start: Sequence[Array], /) -> Array:
        return _written(self, x, update, list(start))
