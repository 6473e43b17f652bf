"""Creation and layouts. Results are views of the operands where NumPy can make one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.numpy.precision import scalar
from tensorgraft.hub.array import NativeArray as Array

Shape = tuple[int, ...]


def _clamped(start: Sequence[Array], sizes: Shape, shape: Shape) -> tuple[slice, ...]:
    """Return the slices of `sizes` from `start`, which is moved so that they lie within `shape`."""
    lows = (min(max(int(at), 0), n - size) for at, size, n in zip(start, sizes, shape, strict=True))
    return tuple(slice(low, low + size) for low, size in zip(lows, sizes, strict=True))


class NumpyShape:
    def full(self, shape: Shape, value: Any, dtype: np.dtype) -> Array:
        if hasattr(value, "dtype"):
            value = self.astype(value, dtype)  # type: ignore[attr-defined]
        elif dtype.kind in "iu":
            value = scalar(int(value), dtype)
        return np.full(shape, value, dtype)

    def iota(self, n: int, dtype: np.dtype) -> Array:
        return np.arange(n).astype(dtype)

    def reshape(self, x: Array, shape: Shape, /) -> Array:
        return np.reshape(x, shape)

    def permute_dims(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return np.transpose(x, axes)

    def broadcast_to(self, x: Array, shape: Shape, /) -> Array:
        return np.broadcast_to(x, shape)

    def concat(self, arrays: Sequence[Array], /, axis: int) -> Array:
        return np.concatenate(arrays, axis=axis)

    def pad(self, x: Array, value: Any, config: Sequence[tuple[int, int, int]], /) -> Array:
        x = np.asarray(x)
        shape = tuple(n + low + high + max(n - 1, 0) * gap for n, (low, high, gap) in zip(x.shape, config, strict=True))
        out = self.full(shape, value, x.dtype)
        source, target = [], []
        for n, size, (low, _, gap) in zip(x.shape, shape, config, strict=True):
            step = gap + 1
            first = -(min(low, 0) // step)  # the first element that low leaves: ceil(-low / step)
            last = min(n, (size - 1 - low) // step + 1)  # one past the last that the extent leaves
            kept_count = max(last - first, 0)
            source.append(slice(first, first + kept_count))
            begin = max(low + first * step, 0)
            target.append(slice(begin, begin + kept_count * step, step))
        out[tuple(target)] = x[tuple(source)]
        return out

    def slice(self, x: Array, start: Shape, stop: Shape, step: Shape, /) -> Array:
        return x[tuple(map(slice, start, stop, step))]

    def slice_update(self, x: Array, update: Array, start: Shape, step: Shape, /) -> Array:
        out = np.array(x)
        at = (slice(b, b + n * s, s) for b, n, s in zip(start, np.shape(update), step, strict=True))
        out[tuple(at)] = update
        return out

    def flip(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return np.flip(x, axes)

    def dynamic_slice(self, x: Array, start: Sequence[Array], sizes: Shape, /) -> Array:
        return x[_clamped(start, sizes, x.shape)]

    def dynamic_update_slice(self, x: Array, update: Array, start: Sequence[Array], /) -> Array:
        out = np.array(x)
        out[_clamped(start, np.shape(update), out.shape)] = update
        return out

    # ---- composites ------------------------------------------------------------------------------------------------

    def zeros(self, shape: Shape, dtype: np.dtype) -> Array:
        return np.zeros(shape, dtype)

    def zeros_like(self, x: Array) -> Array:
        return np.zeros(x.shape, x.dtype)

    def eye(self, n: int, m: int, dtype: np.dtype, k: int = 0) -> Array:
        return np.eye(n, m, k, dtype)

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        return np.stack(arrays, axis)

    def unstack(self, x: Array, axis: int = 0) -> list[Array]:
        return list(np.moveaxis(x, axis, 0))

    def roll(self, x: Array, shift: int, axis: int) -> Array:
        return np.roll(x, shift, axis)

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        return np.tile(x, tuple(repeats))

    def diagonal(self, x: Array, offset: int = 0) -> Array:
        return np.diagonal(x, offset, -2, -1)
