"""Kernels on dense matrices that the Array API standard lacks."""

from __future__ import annotations

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.array import new_array
from tensorgraft.frontends.array_api.core.calls import arrays_of, converted
from tensorgraft.hub import dtypes


def triangular_solve(
    a: Array, b: Array, lower: bool, transpose: bool = False, adjoint: bool = False, unit_diagonal: bool = False
) -> Array:
    """Solve op(a) x = b for (batches of) triangular matrices (..., n, n) and (..., n, k); one triangle is read."""
    backend, dtype = arrays_of("triangular_solve", a, b, kinds="fc")
    with backend.scope():
        x = backend.triangular_solve(
            converted(backend, a, dtype),
            converted(backend, b, dtype),
            lower=lower,
            transpose=transpose,
            adjoint=adjoint,
            unit_diagonal=unit_diagonal,
        )
        return new_array(x, backend)


def lu_solve(a: Array, b: Array, transpose: bool = False) -> Array:
    """Solve a x = b, or a^T x = b, by the factors of a (n, n); b is (n, k)."""
    backend, dtype = arrays_of("lu_solve", a, b, kinds="fc")
    with backend.scope():
        right = converted(backend, b, dtype)
        lu, _, permutation = backend.lu(converted(backend, a, dtype))
        if not transpose:
            return new_array(backend.lu_solve(lu, permutation, right), backend)
        y = backend.triangular_solve(lu, right, lower=False, transpose=True)
        y = backend.triangular_solve(lu, y, lower=True, transpose=True, unit_diagonal=True)
        inverse = backend.expand_dims(backend.inverse_permutation(permutation), -1)
        return new_array(backend.take_along_axis(y, backend.broadcast_to(inverse, b.shape), -2), backend)


def adjoint(x: Array) -> Array:
    return xp.conj(x.mT) if dtypes.is_complex(x.dtype) else x.mT


def inner(x: Array, y: Array) -> Array:
    """Return (k,): the inner products of the columns of two matrices (n, k), the first conjugated."""
    return xp.sum((xp.conj(x) if dtypes.is_complex(x.dtype) else x) * y, axis=0)


def norms(x: Array) -> Array:
    """Return (k,), real: the Euclidean norms of the columns."""
    return xp.sqrt(xp.sum(xp.real(x) ** 2 + xp.imag(x) ** 2, axis=0) if dtypes.is_complex(x.dtype)
                   else xp.sum(x * x, axis=0))  # fmt: skip


def tridiagonal_solve(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    """Solve T x = b, for b (n, k), by parallel cyclic reduction (Hockney 1965): log2(n) steps on whole arrays.

    There is no pivoting: right for diagonally dominant and for positive definite matrices. `lower` and `upper` are
    (n - 1,).
    """
    n = diagonal.shape[0]
    a, d, c, x = _padded(lower, diagonal, upper, b)
    a, d, c = (xp.expand_dims(v, axis=1) for v in (a, d, c))
    s = 1
    while s < n:  # rows are coupled with those s above and below
        before, upper_factor = -a / _shifted(d, s, 1), -c / _shifted(d, -s, 1)
        d = d + before * _shifted(c, s) + upper_factor * _shifted(a, -s)
        x = x + before * _shifted(x, s) + upper_factor * _shifted(x, -s)
        a, c = before * _shifted(a, s), upper_factor * _shifted(c, -s)
        s *= 2
    return x / d


def pivoted_tridiagonal_solve(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    """Solve as `tridiagonal_solve`, by elimination row after row with pivoting (LAPACK's gtsv)."""
    below, d, above, right = _padded(lower, diagonal, upper, b)
    backend, _ = arrays_of("tridiagonal_solve", below, d, above, right, kinds="fc")
    with backend.scope():
        values = [v._value() for v in (below, d, above, right)]
        return new_array(backend.tridiagonal_solve(*values), backend)


def _padded(lower: Array, diagonal: Array, upper: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """Return the three diagonals, the outer ones padded with a zero to (n,), and b, all in one dtype."""
    dtype = xp.result_type(lower, diagonal, upper, b)
    edge = xp.zeros(1, dtype=dtype, device=b.device)
    below = xp.concat([edge, xp.astype(lower, dtype)])
    above = xp.concat([xp.astype(upper, dtype), edge])
    return below, xp.astype(diagonal, dtype), above, xp.astype(b, dtype)


def _shifted(x: Array, by: int, fill: float = 0) -> Array:
    """Return the rows of `x` moved down by `by` (up if it is negative); `fill` is put in the rows left free."""
    n, k = x.shape
    rows = xp.full((min(abs(by), n), k), fill, dtype=x.dtype, device=x.device)
    return xp.concat([rows, x[: n - by, :]], axis=0) if by > 0 else xp.concat([x[-by:, :], rows], axis=0)
