"""Creation, shapes and layouts. Shapes are tuples of Python ints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive, shape_query

Shape = tuple[int, ...]


class ShapeOps:
    @primitive
    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Array:
        """`value`: a Python scalar, or a 0-d array that is converted to `dtype`."""
        raise NotImplementedError

    @primitive
    def iota(self, n: int, dtype: np.dtype) -> Array:
        """0, 1, ..., n - 1."""
        raise NotImplementedError

    @primitive
    def reshape(self, x: Array, shape: Shape, /) -> Array:
        """Row-major; every extent given (no -1)."""
        raise NotImplementedError

    @primitive
    def permute_dims(self, x: Array, axes: tuple[int, ...], /) -> Array:
        raise NotImplementedError

    @primitive
    def broadcast_to(self, x: Array, shape: Shape, /) -> Array:
        raise NotImplementedError

    @primitive
    def concat(self, arrays: Sequence[Array], /, axis: int) -> Array:
        raise NotImplementedError

    @primitive
    def pad(self, x: Array, value: Any, config: Sequence[tuple[int, int, int]], /) -> Array:
        """Per axis (low, high, interior); negative low and high cut off, after the interior padding (StableHLO pad)."""
        raise NotImplementedError

    @primitive
    def slice(self, x: Array, start: Shape, stop: Shape, step: Shape, /) -> Array:
        """Return `x[start:stop:step]` on every axis, 0 <= start <= stop <= extent, step >= 1."""
        raise NotImplementedError

    @primitive
    def slice_update(self, x: Array, update: Array, start: Shape, step: Shape, /) -> Array:
        """Return a new array: `x` with `update` at `start`, every `step`; `update` fits and has the dtype of `x`."""
        raise NotImplementedError

    @primitive
    def flip(self, x: Array, axes: tuple[int, ...], /) -> Array:
        raise NotImplementedError

    @primitive
    def dynamic_slice(self, x: Array, start: Sequence[Array], sizes: Shape, /) -> Array:
        """`start`: one 0-d integer array an axis, clamped so that the window fits (lax.dynamic_slice)."""
        raise NotImplementedError

    @primitive
    def dynamic_update_slice(self, x: Array, update: Array, start: Sequence[Array], /) -> Array:
        raise NotImplementedError

    @primitive
    def copy(self, x: Array, /) -> Array:
        """Return an array with the same values in new memory."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    @shape_query
    def size(self, x: Array) -> int:
        return math.prod(self.shape(x))

    @shape_query
    def ndim(self, x: Array) -> int:
        return len(self.shape(x))

    def zeros(self, shape: Shape, dtype: np.dtype) -> Array:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Shape, dtype: np.dtype) -> Array:
        return self.full(shape, 1, dtype)

    def zeros_like(self, x: Array) -> Array:
        return self.full(self.shape(x), 0, self.dtype_of(x))

    def ones_like(self, x: Array) -> Array:
        return self.full(self.shape(x), 1, self.dtype_of(x))

    def full_like(self, x: Array, value: Any) -> Array:
        return self.full(self.shape(x), value, self.dtype_of(x))

    def eye(self, n: int, m: int, dtype: np.dtype, k: int = 0) -> Array:
        rows = self.expand_dims(self.iota(n, dtypes.int64), 1)
        return self.astype(self.equal(self.add(rows, k), self.iota(m, dtypes.int64)), dtype)

    def expand_dims(self, x: Array, axis: int) -> Array:
        shape = self.shape(x)
        axis += (len(shape) + 1) * (axis < 0)
        return self.reshape(x, (*shape[:axis], 1, *shape[axis:]))

    def squeeze(self, x: Array, axes: int | tuple[int, ...]) -> Array:
        shape = self.shape(x)
        drop = {a % len(shape) for a in ((axes,) if isinstance(axes, int) else axes)}
        return self.reshape(x, tuple(n for a, n in enumerate(shape) if a not in drop))

    def moveaxis(self, x: Array, source: int, target: int) -> Array:
        n = self.ndim(x)
        axes = [a for a in range(n) if a != source % n]
        axes.insert(target % n, source % n)
        return self.permute_dims(x, tuple(axes))

    def swapaxes(self, x: Array, a: int, b: int) -> Array:
        axes = list(range(self.ndim(x)))
        axes[a], axes[b] = axes[b], axes[a]
        return self.permute_dims(x, tuple(axes))

    def matrix_transpose(self, x: Array) -> Array:
        return self.swapaxes(x, -1, -2)

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        n = self.ndim(arrays[0]) + 1
        return self.concat([self.expand_dims(x, axis % n) for x in arrays], axis=axis % n)

    def take_slice(self, x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
        """Return `x[start:stop:step]` along one axis; bounds beyond its end are its end."""
        shape = self.shape(x)
        axis %= len(shape)
        start, stop = min(start, shape[axis]), min(stop, shape[axis])
        lo, hi, by = [0] * len(shape), list(shape), [1] * len(shape)
        lo[axis], hi[axis], by[axis] = start, max(start, stop), step
        return self.slice(x, tuple(lo), tuple(hi), tuple(by))

    def split(self, x: Array, sizes: Sequence[int], axis: int = 0) -> list[Array]:
        """Pieces of the given sizes along `axis`."""
        pieces, at = [], 0
        for n in sizes:
            pieces.append(self.take_slice(x, axis, at, at + n))
            at += n
        return pieces

    def unstack(self, x: Array, axis: int = 0) -> list[Array]:
        n = self.shape(x)[axis]
        return [self.squeeze(piece, axis) for piece in self.split(x, [1] * n, axis)]

    def roll(self, x: Array, shift: int, axis: int) -> Array:
        n = self.shape(x)[axis]
        at = -shift % n if n else 0
        if not at:
            return x
        return self.concat([self.take_slice(x, axis, at, n), self.take_slice(x, axis, 0, at)], axis=axis)

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        """Repeat `x` along its axes; `repeats` has one entry for each axis."""
        shape = self.shape(x)
        repeated = self.reshape(x, tuple(n for s in shape for n in (1, s)))
        repeated = self.broadcast_to(repeated, tuple(n for r, s in zip(repeats, shape, strict=True) for n in (r, s)))
        return self.reshape(repeated, tuple(r * s for r, s in zip(repeats, shape, strict=True)))

    def repeat(self, x: Array, times: int, axis: int) -> Array:
        """Repeat each element along an axis `times` times; repetitions are adjacent."""
        shape = self.shape(x)
        axis %= len(shape)
        before, after_axis = shape[: axis + 1], shape[axis + 1 :]
        y = self.broadcast_to(self.reshape(x, (*before, 1, *after_axis)), (*before, times, *after_axis))
        return self.reshape(y, (*shape[:axis], times * shape[axis], *after_axis))

    def triangle_mask(self, n: int, m: int, k: Any = 0) -> Array:
        """Return bool (n, m): true on and below diagonal `k`, an int or an integer array without axes."""
        rows = self.expand_dims(self.iota(n, dtypes.int64), 1)
        return self.greater_equal(self.add(rows, k), self.iota(m, dtypes.int64))

    def tril(self, x: Array, k: Any = 0) -> Array:
        n, m = self.shape(x)[-2:]
        return self.where(self.triangle_mask(n, m, k), x, self.zeros_like(x))

    def triu(self, x: Array, k: Any = 0) -> Array:
        n, m = self.shape(x)[-2:]
        below = self.triangle_mask(n, m, self.subtract(k, 1) if self.is_array(k) else k - 1)
        return self.where(below, self.zeros_like(x), x)

    def diagonal(self, x: Array, offset: int = 0) -> Array:
        """Return the diagonals of the last two axes, as a last axis."""
        *batch, n, m = self.shape(x)
        row, column = max(-offset, 0), max(offset, 0)
        length = max(min(n - row, m - column), 0)
        flat = self.reshape(x, (*batch, n * m))
        start = row * m + column
        if not length:
            return self.take_slice(flat, -1, 0, 0)
        return self.take_slice(flat, -1, start, start + (length - 1) * (m + 1) + 1, m + 1)
