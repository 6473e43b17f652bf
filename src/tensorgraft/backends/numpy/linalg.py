"""Factorisations: `numpy.linalg` where it has them, else LAPACK and BLAS through SciPy, a matrix at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.numpy import products
from tensorgraft.backends.numpy.special import scipy
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend


def _converged(factor: Callable[[Array], tuple[Array, ...]], x: Array) -> tuple[Array, ...]:
    """Factors of a batch of matrices; NaN for those that LAPACK cannot factor, or NumPy does not let it try."""
    try:
        return tuple(factor(x))
    except np.linalg.LinAlgError:
        if x.ndim > 2:
            return tuple(map(np.stack, zip(*[_converged(factor, matrix) for matrix in x], strict=True)))
        return tuple(np.full_like(part, np.nan) for part in factor(np.eye(*x.shape, dtype=x.dtype)))


def _for_each_matrix(
    fn: Callable[..., tuple[Array, ...]], out: Sequence[tuple[tuple[int, ...], Any]], *operands: Array
) -> Any:
    """Apply `fn` to every matrix of batches with equal leading axes. `out`: shapes and dtypes of the results."""
    batch = operands[0].shape[:-2]
    results = tuple(np.zeros(batch + shape, dtype) for shape, dtype in out)
    if all(x.size for x in operands):
        for at in np.ndindex(batch):
            for result, value in zip(results, fn(*(x[at] for x in operands)), strict=True):
                result[at] = value
    return results


class NumpyLinearAlgebra:
    def dot_general(
        self,
        a: Array,
        b: Array,
        /,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: np.dtype | None = None,
    ) -> Array:
        return products.dot_general(a, b, contract, batch, dtype)

    def grouped_matmul(self, a: Array, b: Array, ends: Array, dtype: np.dtype | None = None) -> Array:
        dtype = a.dtype if dtype is None else dtype
        edges = [0, *np.asarray(ends).tolist()]
        groups = [slice(start, end) for start, end in itertools.pairwise(edges)]
        if a.ndim == 2 and b.ndim == 2:
            products_of = [products.matmul(a[:, g], b[g], dtype) for g in groups]
            return np.stack(products_of) if groups else np.zeros((0, a.shape[0], b.shape[1]), dtype)
        out = np.zeros((a.shape[-2], b.shape[-1]), dtype)
        for i, g in enumerate(groups):
            if a.ndim == 2:
                out[g] = products.matmul(a[g], b[i], dtype)
            else:
                out[:, g] = products.matmul(a[i], b[:, g], dtype)
        return out

    def cholesky(self, x: Array, /) -> Array:
        return _converged(lambda x: (np.linalg.cholesky(x),), x)[0]

    def qr(self, x: Array, /, full: bool = False) -> tuple[Array, Array]:
        return tuple(np.linalg.qr(x, "complete" if full else "reduced"))  # type: ignore[return-value]

    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        return _converged(lambda x: np.linalg.svd(x, full_matrices=full), x)

    def svdvals(self, x: Array, /) -> Array:
        return _converged(lambda x: (np.linalg.svd(x, compute_uv=False),), x)[0]

    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        return _converged(lambda x: np.linalg.eigh(x, "L" if lower else "U"), x)

    def eig(self, x: Array, /) -> tuple[Array, Array]:
        dtype = dtypes.complex_dtype(x.dtype)  # NumPy returns real arrays where all eigenvalues are real
        values, vectors = _converged(np.linalg.eig, x)
        return values.astype(dtype, copy=False), vectors.astype(dtype, copy=False)

    def lu(self, x: Array, /) -> tuple[Array, Array, Array]:
        m, n = x.shape[-2:]
        k = min(m, n)
        getrf = scipy("linalg.lapack", "lu").get_lapack_funcs("getrf", dtype=x.dtype)

        def factor(a: Array) -> tuple[Array, ...]:
            lu, pivots, _ = getrf(a)  # a positive status says that U is singular, which is no error here
            order = np.arange(m)
            for i, j in enumerate(pivots):
                order[i], order[j] = order[j], order[i]
            return lu, pivots, order

        out = [((m, n), x.dtype), ((k,), np.int32), ((m,), np.int32)]
        lu, pivots, order = _for_each_matrix(factor, out, x)
        if not n:
            order[...] = np.arange(m)
        return lu, pivots, order

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
        trsm = scipy("linalg.blas", "triangular_solve").get_blas_funcs("trsm", dtype=b.dtype)
        trans = 2 if adjoint else 1 if transpose else 0

        def solve(a: Array, b: Array) -> tuple[Array]:
            return (trsm(1, a, b, side=not left, lower=lower, trans_a=trans, diag=unit_diagonal),)

        return _for_each_matrix(solve, [(b.shape[-2:], b.dtype)], a, b)[0]

    def householder_product(self, a: Array, tau: Array, /) -> Array:
        m, n = a.shape[-2:]
        reflectors = np.tril(a, -1) + np.eye(m, n, dtype=a.dtype)
        out = np.broadcast_to(np.eye(m, n, dtype=a.dtype), a.shape).copy()
        for i in reversed(range(tau.shape[-1])):
            v = reflectors[..., i, None]
            out -= tau[..., i, None, None] * v * np.matmul(v.conj().swapaxes(-1, -2), out)
        return out

    # ---- composites ------------------------------------------------------------------------------------------------

    def householder_qr(self, x: Array) -> tuple[Array, Array]:
        packed, factors = np.linalg.qr(x, "raw")
        return packed.swapaxes(-1, -2).astype(x.dtype, copy=False), factors.astype(x.dtype, copy=False)

    def eig_both(self, x: Array) -> tuple[Array, Array, Array]:
        n, dtype = x.shape[-1], dtypes.complex_dtype(x.dtype)
        linalg = scipy("linalg", "eig_both")
        out = [((n,), dtype), ((n, n), dtype), ((n, n), dtype)]
        return _for_each_matrix(lambda a: linalg.eig(a, left=True, right=True), out, x)

    def schur(self, x: Array) -> tuple[Array, Array]:
        linalg = scipy("linalg", "schur")
        return _for_each_matrix(lambda a: linalg.schur(a), [(x.shape[-2:], x.dtype)] * 2, x)

    def matmul(self, a: Array, b: Array, dtype: np.dtype | None = None) -> Array:
        return products.matmul(np.asarray(a), np.asarray(b), dtype)

    def solve(self, a: Array, b: Array) -> Array:
        try:
            return np.linalg.solve(a, b)
        except np.linalg.LinAlgError:  # the infinities of a singular matrix, as everywhere
            return Backend.solve(self, a, b)  # type: ignore[arg-type]

    def inv(self, x: Array) -> Array:
        try:
            return np.linalg.inv(x)
        except np.linalg.LinAlgError:
            return Backend.inv(self, x)  # type: ignore[arg-type]
