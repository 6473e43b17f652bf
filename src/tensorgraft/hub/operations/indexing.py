"""Gather and scatter. Indices are integer arrays, non-negative and in bounds: front ends check and wrap before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive


class Indexing:
    @primitive
    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        """`x[indices[0], indices[1], ...]`: the indices broadcast to a shape I; result I + x.shape[len(indices):]."""
        raise NotImplementedError

    @primitive
    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        """Return a new array: `x` with `updates` (broadcast to I + the rest) put at `indices`.

        `mode`: set (for equal indices one of the updates wins, unspecified which), add, multiply, min, max (all
        updates of equal indices count).
        """
        raise NotImplementedError

    @primitive
    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        """Return int64 positions of the true elements, row-major, one 1-d array an axis. The shape depends on the data:
        raises `TracedValueError` inside a trace."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        """Take elements along `axis`, which is replaced by the axes of `indices`."""
        n = self.ndim(x)
        axis %= n
        moved = self.gather(self.moveaxis(x, axis, 0), (indices,))
        k = self.ndim(indices)  # (indices..., before..., after...) -> (before..., indices..., after...)
        order = (*range(k, k + axis), *range(k), *range(k + axis, k + n - 1))
        return self.permute_dims(moved, order)

    def _grid(self, indices: Array, axis: int) -> tuple[Array, ...]:
        """Return an index array for each axis, for `indices` along `axis` and all positions along the others."""
        shape = self.shape(indices)
        axis %= len(shape)
        grid = []
        for a, n in enumerate(shape):
            positions = self.reshape(self.iota(n, dtypes.int64), tuple(n if b == a else 1 for b in range(len(shape))))
            grid.append(self.astype(indices, dtypes.int64) if a == axis else positions)
        return tuple(grid)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        """Take elements along one axis (torch.gather): `indices` has as many axes as `x`, and no axis but `axis` is
        longer than that of `x`."""
        if not self.ndim(x):
            return self.broadcast_to(x, self.shape(indices))
        return self.gather(x, self._grid(indices, axis))

    def put_along_axis(self, x: Array, indices: Array, updates: Array, axis: int, mode: str = "set") -> Array:
        """Put `updates`, of the shape of `indices`, along one axis (torch.scatter)."""
        if not self.ndim(x):
            flat = self.put_along_axis(
                self.reshape(x, (1,)),
                self.reshape(indices, (self.size(indices),)),
                self.reshape(updates, (self.size(updates),)),
                0,
                mode,
            )
            return self.reshape(flat, ())
        return self.scatter(x, self._grid(indices, axis), updates, mode=mode)

    def put_row(self, x: Array, at: Array, row: Array, axis: int) -> Array:
        """Put `row`, which has one element along `axis`, at the 0-d index `at` of that axis."""
        zero = self.full((), 0, self.dtype_of(at))
        start = [at if d == axis % self.ndim(x) else zero for d in range(self.ndim(x))]
        return self.dynamic_update_slice(x, row, start)

    def one_hot(self, indices: Array, n: int, dtype: np.dtype) -> Array:
        hot = self.equal(self.expand_dims(self.astype(indices, dtypes.int64), -1), self.iota(n, dtypes.int64))
        return self.astype(hot, dtype)
