"""Products and factorisations of (batches of) matrices, in float32, float64 and, where said, complex."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.operations.factorisations import Factorisations
from tensorgraft.hub.primitive import primitive


class LinearAlgebra(Factorisations):
    @primitive
    def dot_general(
        self,
        a: Array,
        b: Array,
        /,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: np.dtype | None = None,
    ) -> Array:
        """Compute the general product: result axes are batch, free axes of `a`, free axes of `b` (lax.dot_general).

        All dtypes. `dtype` is that in which the products are accumulated and returned (the operands' if None, else
        no narrower); floating sums are accumulated in at least float32; bool means or of ands.
        """
        raise NotImplementedError

    @primitive
    def cholesky(self, x: Array, /) -> Array:
        """Lower factors of (..., n, n), from the lower triangle; upper triangle zero; all NaN where not positive
        definite."""
        raise NotImplementedError

    @primitive
    def qr(self, x: Array, /, full: bool = False) -> tuple[Array, Array]:
        """Return (q, r) of (..., m, n); `full` gives q (..., m, m)."""
        raise NotImplementedError

    @primitive
    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        """Return (u, s, vh), s descending and real."""
        raise NotImplementedError

    @primitive
    def svdvals(self, x: Array, /) -> Array:
        raise NotImplementedError

    @primitive
    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        """Return (ascending real eigenvalues, eigenvectors as columns), from one triangle."""
        raise NotImplementedError

    @primitive
    def eig(self, x: Array, /) -> tuple[Array, Array]:
        """Return (complex eigenvalues, complex eigenvectors as columns of norm 1)."""
        raise NotImplementedError

    @primitive
    def lu(self, x: Array, /) -> tuple[Array, Array, Array]:
        """Return (L and U in one matrix, int32 pivots from 0 as LAPACK's ipiv, int32 permutation p with x[p] = L U)."""
        raise NotImplementedError

    @primitive
    def triangular_solve(
        self,
        a: Array,
        b: Array,
        /,
        lower: bool,
        left: bool = True,
        transpose: bool = False,
        adjoint: bool = False,
        unit_diagonal: bool = False,
    ) -> Array:
        """Solve op(a) x = b, or x op(a) = b where not `left`; batches equal. Reads only the named triangle."""
        raise NotImplementedError

    @primitive
    def householder_product(self, a: Array, tau: Array, /) -> Array:
        """Return the first n columns of H1 H2 ... Hk from reflectors (..., m, n) and (..., k), as LAPACK's orgqr."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def matmul(self, a: Array, b: Array, dtype: np.dtype | None = None) -> Array:
        """Array API matmul: 1-d operands are vectors, leading axes broadcast."""
        sa, sb = self.shape(a), self.shape(b)
        if len(sb) <= 2 or len(sa) == 1:  # no batch on one side: one contraction
            if len(sb) > 2:
                out = self.dot_general(b, a, ((len(sb) - 2,), (0,)), dtype=dtype)
                return out
            return self.dot_general(a, b, ((len(sa) - 1,), (max(len(sb) - 2, 0),)), dtype=dtype)
        if len(sa) == 2:
            a = self.reshape(a, (1, *sa))
            sa = (1, *sa)
        batch = np.broadcast_shapes(sa[:-2], sb[:-2])
        a = self.broadcast_to(a, (*batch, *sa[-2:]))
        b = self.broadcast_to(b, (*batch, *sb[-2:]))
        n = len(batch)
        lead = tuple(range(n))
        return self.dot_general(a, b, ((n + 1,), (n,)), (lead, lead), dtype=dtype)

    def grouped_matmul(self, a: Array, b: Array, ends: Array, dtype: np.dtype | None = None) -> Array:
        """Products of groups of different sizes, as in mixtures of experts; groups end at ascending `ends` (g,).

        (m, k) x (g, k, n) -> (m, n): rows are in groups; (g, m, k) x (k, n) -> (m, n): columns are; (m, k) x (k, n) ->
        (g, m, n): the contracted axis is. Rows or columns after the last group are ignored, and give zeros.
        """
        if self.ndim(a) == 3:
            swapped = self.grouped_matmul(self.swapaxes(b, 0, 1), self.swapaxes(a, 1, 2), ends, dtype)
            return self.swapaxes(swapped, 0, 1)
        dtype = self.dtype_of(a) if dtype is None else dtype
        wide, groups, n = dtypes.accumulator(dtype), self.shape(ends)[0], self.shape(b)[-1]
        contracted = self.ndim(b) == 2
        rows = self.swapaxes(a, 0, 1) if contracted else a
        m, k = self.shape(rows)
        if not groups or not m:
            return self.zeros((groups, k, n) if contracted else (m, n), dtype)
        # Groups are cut into blocks of one size, of which each has one matrix: shapes do not depend on values, and
        # at most twice the work is done. The size is about a group's mean.
        size = 1 << max(0, math.ceil(m / groups) - 1).bit_length()
        count = min(m // size + groups, m)
        ends = self.astype(ends, dtypes.int64)
        starts = self.concat([self.zeros((1,), dtypes.int64), self.take_slice(ends, 0, 0, groups - 1)], axis=0)
        blocks = self.integer_floor_divide(self.add(self.subtract(ends, starts), size - 1), size)
        block_ends = self.cumsum(blocks, axis=0)
        first = self.subtract(block_ends, blocks)
        number = self.iota(count, dtypes.int64)
        group = self.minimum(self.searchsorted(block_ends, number, right=True), groups - 1)
        start = self.add(
            self.take(starts, group, 0), self.multiply(self.subtract(number, self.take(first, group, 0)), size)
        )
        at = self.add(self.expand_dims(start, 1), self.iota(size, dtypes.int64))
        in_group = self.expand_dims(self.less(at, self.expand_dims(self.take(ends, group, 0), 1)), 2)
        at = self.minimum(at, m - 1)

        def blocked(x: Array) -> Array:
            gathered = self.take(x, at, 0)
            return self.where(in_group, gathered, self.zeros_like(gathered))

        if contracted:
            parts = self.dot_general(blocked(rows), blocked(b), ((1,), (1,)), ((0,), (0,)), dtype=wide)
            return self.astype(self.scatter(self.zeros((groups, k, n), wide), (group,), parts, mode="add"), dtype)
        parts = self.dot_general(blocked(rows), self.take(b, group, 0), ((2,), (1,)), ((0,), (0,)), dtype=wide)
        row = self.iota(m, dtypes.int64)
        group_of = self.searchsorted(ends, row, right=True)
        grouped = self.expand_dims(self.less(group_of, groups), 1)
        group_of = self.minimum(group_of, groups - 1)
        positions = self.add(
            self.multiply(self.take(first, group_of, 0), size), self.subtract(row, self.take(starts, group_of, 0))
        )
        out = self.take(self.reshape(parts, (count * size, n)), self.minimum(positions, count * size - 1), 0)
        return self.astype(self.where(grouped, out, self.zeros_like(out)), dtype)

    def inverse_permutation(self, p: Array) -> Array:
        return self.argsort(p, axis=-1)

    def lu_solve(self, lu: Array, permutation: Array, b: Array) -> Array:
        """Solve (P^T L U) x = b; `b` (..., n, k), batches equal."""
        b = self.take_along_axis(b, self.broadcast_to(self.expand_dims(permutation, -1), self.shape(b)), -2)
        y = self.triangular_solve(lu, b, lower=True, unit_diagonal=True)
        return self.triangular_solve(lu, y, lower=False)

    def solve(self, a: Array, b: Array) -> Array:
        """Solve a x = b; `b` (..., n, k), batches equal."""
        lu, _, permutation = self.lu(a)
        return self.lu_solve(lu, permutation, b)

    def inv(self, x: Array) -> Array:
        n = self.shape(x)[-1]
        return self.solve(x, self.broadcast_to(self.eye(n, n, self.dtype_of(x)), self.shape(x)))

    def parity(self, pivots: Array) -> Array:
        """Return how many rows LAPACK's pivots really swap, as int64."""
        n = self.shape(pivots)[-1]
        moved = self.not_equal(self.astype(pivots, dtypes.int64), self.iota(n, dtypes.int64))
        return self.sum(self.astype(moved, dtypes.int64), axis=-1)
