"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive


class Sorting:
    @primitive
    def sort(self, operands: Sequence[Array], /, axis: int = -1, num_keys: int = 1) -> tuple[Array, ...]:
        """Operands of one shape, ordered together along `axis` by the first `num_keys` of them, lexicographically,
        ascending and stable. NaN comes last; -0.0 and 0.0 are equal."""
        raise NotImplementedError

    @primitive
    def searchsorted(self, boundaries: Array, values: Array, /, right: bool = False) -> Array:
        """Return int64 insertion positions; `boundaries` (n,) ascending, or (..., n) with the leading axes of
        `values`."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def argsort(self, x: Array, axis: int = -1, descending: bool = False) -> Array:
        """Return int64 positions in sorted order, stable also when descending (then NaN first)."""
        return self.sort_with_indices(x, axis, descending)[1]

    def sort_with_indices(self, x: Array, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
        """Return (sorted values, int64 positions); stable; NaN counts as greatest."""
        shape = self.shape(x)
        axis %= len(shape)
        n = shape[axis]
        positions = self.reshape(self.iota(n, dtypes.int64), tuple(n if a == axis else 1 for a in range(len(shape))))
        at = self.broadcast_to(positions, shape)
        if not descending:
            values, order = self.sort((x, at), axis=axis, num_keys=1)
            return values, order
        # reversed twice, an ascending stable sort is a descending stable one
        values, order = self.sort((self.flip(x, (axis,)), self.flip(at, (axis,))), axis=axis, num_keys=1)
        return self.flip(values, (axis,)), self.flip(order, (axis,))

    def kth_value(self, x: Array, k: int | Array, axis: int = -1) -> tuple[Array, Array]:
        """Return (value, int64 position) of element number `k`, from 0, of a stable sort; NaN counts as greatest.

        `axis` is kept, with one element; `k` may be an array of int64 of that shape.
        """
        values, order = self.sort_with_indices(x, axis)
        at = self._rank(x, k, axis)
        return self.take_along_axis(values, at, axis), self.take_along_axis(order, at, axis)

    def _rank(self, x: Array, k: int | Array, axis: int) -> Array:
        shape = self.shape(x)
        rows = tuple(1 if a == axis % len(shape) else n for a, n in enumerate(shape))
        return self.full(rows, k, dtypes.int64) if isinstance(k, int) else k

    def top_k(self, x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
        """Return the `k` greatest (or least) values in order, and their int64 positions."""
        values, order = self.sort_with_indices(x, axis, descending=largest)
        return self.take_slice(values, axis, 0, k), self.take_slice(order, axis, 0, k)
