"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tensorgraft.backends.numpy.precision import widen, widened
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sorting import Sorting


@widened
def _sorted(x: Array, axis: int) -> Array:
    return np.sort(x, axis=axis, kind="stable")


class NumpySorting:
    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        if len(operands) == 1:
            return (_sorted(operands[0], axis),)
        keys = [widen(key) for key in operands[:num_keys]]
        # lexsort sorts by the last key first
        order = np.lexsort(keys[::-1], axis=axis) if num_keys > 1 else np.argsort(keys[0], axis=axis, kind="stable")
        return tuple(np.take_along_axis(x, order, axis) for x in operands)

    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        side: Literal["left", "right"] = "right" if right else "left"
        boundaries, values = widen(boundaries), widen(values)
        if np.ndim(boundaries) == 1:
            return np.asarray(np.searchsorted(boundaries, values, side=side), np.int64)
        out = np.empty(values.shape, np.int64)
        for row in np.ndindex(values.shape[:-1]):
            out[row] = np.searchsorted(boundaries[row], values[row], side=side)
        return out

    # ---- composites ------------------------------------------------------------------------------------------------

    def sort_with_indices(self, x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
        if descending:
            n = x.shape[axis]
            order = n - 1 - np.flip(np.argsort(widen(np.flip(x, axis)), axis=axis, kind="stable"), axis)
        else:
            order = np.argsort(widen(x), axis=axis, kind="stable")
        return np.take_along_axis(x, order, axis), order

    def kth_value(self, x: Array, k: int | Array, axis: int = -1) -> tuple[Array, Array]:
        if not isinstance(k, int) or not x.shape[axis]:
            return Sorting.kth_value(self, x, k, axis)  # type: ignore[arg-type]
        wide = widen(x)
        value = np.take(np.partition(wide, k, axis), [k], axis)
        is_nan = value != value
        less = (wide < value) | (is_nan & (wide == wide))
        equal = np.where(is_nan, wide != wide, wide == value)
        rank = k - np.count_nonzero(less, axis, keepdims=True)
        at = np.argmax(np.cumsum(equal, axis) == rank + 1, axis, keepdims=True)
        return np.take_along_axis(x, at, axis), at
