"""Products and factorisations of (batches of) matrices, in float32, float64 and, where said, complex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.primitive import primitive

Array = Any


class LinearAlgebra:
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
        """The general product: result axes are batch, free axes of `a`, free axes of `b` (lax.dot_general).

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
        """(q, r) of (..., m, n); `full` gives q (..., m, m)."""
        raise NotImplementedError

    @primitive
    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        """(u, s, vh), s descending and real."""
        raise NotImplementedError

    @primitive
    def svdvals(self, x: Array, /) -> Array:
        raise NotImplementedError

    @primitive
    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        """(ascending real eigenvalues, eigenvectors as columns), from one triangle."""
        raise NotImplementedError

    @primitive
    def eig(self, x: Array, /) -> tuple[Array, Array]:
        """(complex eigenvalues, complex eigenvectors as columns of norm 1)."""
        raise NotImplementedError

    @primitive
    def lu(self, x: Array, /) -> tuple[Array, Array, Array]:
        """(L and U in one matrix, int32 pivots from 0 as LAPACK's ipiv, int32 permutation p with x[p] = L U)."""
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
        """x with op(a) x = b, or x op(a) = b where not `left`; batches equal. Reads only the named triangle."""
        raise NotImplementedError

    @primitive
    def householder_product(self, a: Array, tau: Array, /) -> Array:
        """The first n columns of H1 H2 ... Hk from reflectors (..., m, n) and (..., k), as LAPACK's orgqr."""
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

    def inverse_permutation(self, p: Array) -> Array:
        return self.argsort(p, axis=-1)

    def lu_solve(self, lu: Array, permutation: Array, b: Array) -> Array:
        """x with (P^T L U) x = b; `b` (..., n, k), batches equal."""
        b = self.take_along_axis(b, self.broadcast_to(self.expand_dims(permutation, -1), self.shape(b)), -2)
        y = self.triangular_solve(lu, b, lower=True, unit_diagonal=True)
        return self.triangular_solve(lu, y, lower=False)

    def solve(self, a: Array, b: Array) -> Array:
        """x with a x = b; `b` (..., n, k), batches equal."""
        lu, _, permutation = self.lu(a)
        return self.lu_solve(lu, permutation, b)

    def inv(self, x: Array) -> Array:
        n = self.shape(x)[-1]
        return self.solve(x, self.broadcast_to(self.eye(n, n, self.dtype_of(x)), self.shape(x)))

    def parity(self, pivots: Array) -> Array:
        """int64: how many rows LAPACK's pivots really swap."""
        n = self.shape(pivots)[-1]
        moved = self.not_equal(self.astype(pivots, dtypes.int64), self.iota(n, dtypes.int64))
        return self.sum(self.astype(moved, dtypes.int64), axis=-1)
