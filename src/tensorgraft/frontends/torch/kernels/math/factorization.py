"""Factorisations of (batches of) matrices, with LAPACK's `info` as PyTorch returns it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.result_strides import column_major
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def adjoint(xp: Any, x: AnyArray) -> AnyArray:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


def refuse_narrow(xp: Any, *arrays: Array) -> None:
    """Raise the CPU's error for dtypes other than single and double precision."""
    for x in arrays:
        if dtypes.real_dtype(xp.dtype_of(x)) not in (dtypes.float32, dtypes.float64):
            raise NotImplementedError(f"linear algebra in {xp.dtype_of(x)}")


def empty_factor(xp: Any, x: Array) -> Array:
    """Return the empty array that PyTorch gives for a factor that was not asked for."""
    return xp.zeros((0,), xp.dtype_of(x))


@kernel("_linalg_check_errors")
def check_errors(xp: Any, info: Array, api_name: str, is_matrix: bool) -> tuple[()]:
    """Raises torch.linalg.LinAlgError in PyTorch's own words, as soon as the values are known."""

    def verify(values: np.ndarray) -> None:
        host = torch.from_numpy(np.array(values, np.int32))
        torch.ops.aten._linalg_check_errors(host, api_name, is_matrix=is_matrix)

    check(xp, info, verify)
    return ()


def refuse_infinite(xp: Any, x: Array, error: Exception) -> None:
    """Iterative algorithms do not converge on NaN and infinities: LAPACK says so, others return NaN."""

    def verify(finite: np.ndarray) -> None:
        if not finite:
            raise error

    check(xp, xp.all(xp.isfinite(x)), verify)


def _not_converged(xp: Any, x: Array, name: str) -> None:
    batch = "(Batch element 0): " if xp.ndim(x) > 2 else ""
    words = "The algorithm failed to converge because the input matrix contained non-finite values."
    refuse_infinite(xp, x, torch.linalg.LinAlgError(f"{name}: {batch}{words}"))


# ---- Cholesky --------------------------------------------------------------------------------------------------------


@with_operators
def _failed_minor(xp: Any, x: Value) -> Value:
    """Return the order of the first leading minor that is not positive, as int32; 0 if all are."""
    n, dtype = x.shape[-1], x.dtype
    batch = x.shape[:-2]

    def step(carry: tuple[Value, Value], k: Value) -> tuple[tuple[Value, Value], Value]:
        rest, info = carry
        at = xp.astype(xp.iota(n, dtypes.int64) == k, dtype)
        column = rest @ at
        pivot = xp.sum(column * at, axis=-1)
        real = xp.real(pivot) if dtypes.is_complex(dtype) else pivot
        fails = ~(real > 0) & (info == 0)
        info = xp.where(fails, xp.astype(k + 1, dtypes.int32), info)
        safe = xp.where(real > 0, pivot, xp.ones_like(pivot))
        row = xp.conj(column) if dtypes.is_complex(dtype) else column
        outer = xp.expand_dims(column, -1) * xp.expand_dims(row, -2)
        rest = rest - outer / xp.expand_dims(xp.expand_dims(safe, -1), -1)
        return (rest, info), info

    lower = xp.tril(x)
    strict = xp.tril(x, -1)
    hermitian = lower + adjoint(xp, strict)
    start = (hermitian, xp.zeros(batch, dtypes.int32))
    return xp.scan(step, start, xp.iota(n, dtypes.int64), length=n)[0][1]


def cholesky(xp: Any, x: Array, upper: bool) -> tuple[Array, Array]:
    """Return (factor, info). Where a matrix is not positive definite its factor is NaN."""
    refuse_narrow(xp, x)
    batch = xp.shape(x)[:-2]
    if not xp.size(x):  # without elements, any shape
        return x, xp.zeros(batch, dtypes.int32)
    x = adjoint(xp, x) if upper else x
    lower = xp.cholesky(x)
    failed = xp.any(xp.isnan(xp.diagonal(lower)))
    info = xp.cond(failed, lambda x: _failed_minor(xp, x), lambda x: xp.zeros(batch, dtypes.int32), x)
    return adjoint(xp, lower) if upper else lower, info


@kernel("linalg_cholesky_ex")
def _cholesky_ex(xp: Any, x: Array, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    factor, info = cholesky(xp, x, upper)
    if check_errors:
        _check(xp, info, "linalg.cholesky_ex", x)
    return factor, info


def _check(xp: Any, info: Array, name: str, x: Array) -> None:
    check_errors(xp, info, name, is_matrix=xp.ndim(x) == 2)


@kernel("cholesky")
def _cholesky(xp: Any, x: Array, upper: bool = False) -> Array:
    factor, info = cholesky(xp, x, upper)
    _check(xp, info, "cholesky", x)
    return factor


# ---- QR --------------------------------------------------------------------------------------------------------------


@kernel("linalg_qr")
def _qr(xp: Any, x: Array, mode: str = "reduced") -> tuple[Array, Array]:
    refuse_narrow(xp, x)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or"
                           " 'complete'")  # fmt: skip
    *batch, m, n = xp.shape(x)
    k = min(m, n)
    if not xp.size(x):
        rows = m if mode == "complete" else k
        q = xp.broadcast_to(xp.eye(m, rows, xp.dtype_of(x)), (*batch, m, rows))
        r = xp.zeros((*batch, rows, n), xp.dtype_of(x))
    else:
        q, r = xp.qr(x, full=mode == "complete")
    return empty_factor(xp, x) if mode == "r" else q, r


def _geqrf_meta(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return column_major(x.new_empty(x.shape)), x.new_empty((*x.shape[:-2], min(x.shape[-2:])))


@kernel("geqrf", meta=_geqrf_meta)
def _geqrf(xp: Any, x: Array) -> tuple[Array, Array]:
    refuse_narrow(xp, x)
    if not xp.size(x):
        *batch, m, n = xp.shape(x)
        return x, xp.zeros((*batch, min(m, n)), xp.dtype_of(x))
    return xp.householder_qr(x)


@kernel("linalg_householder_product")
def _householder_product(xp: Any, a: Array, tau: Array) -> Array:
    refuse_narrow(xp, a)
    return xp.householder_product(a, tau) if xp.size(a) else a


@kernel("ormqr")
def _ormqr(xp: Any, a: Array, tau: Array, x: Array, left: bool = True, transpose: bool = False) -> Array:
    refuse_narrow(xp, a)
    *batch, m, k = xp.shape(a)
    if not xp.size(x):
        return x
    square = xp.pad(a, 0, [*((0, 0, 0),) * (len(batch) + 1), (0, m - k, 0)])  # reflectors for all columns of Q
    q = xp.householder_product(square, tau)
    q = adjoint(xp, q) if transpose else q
    return xp.matmul(q, x) if left else xp.matmul(x, q)


# ---- LU --------------------------------------------------------------------------------------------------------------


def first_zero(xp: Any, lu: Array) -> Array:
    """LAPACK's info, int32: the first zero on the diagonal of U, counted from 1."""
    zero = xp.equal(xp.diagonal(lu), 0)
    if not xp.shape(zero)[-1]:
        return xp.zeros(xp.shape(lu)[:-2], dtypes.int32)
    first = xp.add(xp.argmax(xp.astype(zero, dtypes.uint8), axis=-1), 1)
    return xp.astype(xp.where(xp.any(zero, axis=-1), first, xp.zeros_like(first)), dtypes.int32)


def lu(xp: Any, x: Array) -> tuple[Array, Array, Array]:
    """Return (LU, pivots from 1, permutation)."""
    refuse_narrow(xp, x)
    *batch, m, n = xp.shape(x)
    if not xp.size(x):
        order = xp.broadcast_to(xp.iota(m, dtypes.int32), (*batch, m))
        default_pivots = xp.add(xp.iota(min(m, n), dtypes.int32), 1)
        return x, xp.broadcast_to(default_pivots, (*batch, min(m, n))), order
    packed, pivots, order = xp.lu(x)
    return packed, xp.add(pivots, 1), order


def _refuse_no_pivot(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError("LU without pivoting: the CPU has none either")


@kernel("linalg_lu_factor_ex")
def _lu_factor(xp: Any, x: Array, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    _refuse_no_pivot(pivot)
    packed, pivots, _ = lu(xp, x)
    info = first_zero(xp, packed)
    if check_errors:
        _check(xp, info, "torch.linalg.lu_factor_ex", x)
    return packed, pivots, info


def permutation_matrix(xp: Any, order: Array, dtype: np.dtype) -> Array:
    """P with A = P L U, from the order p with A[p] = L U."""
    return xp.matrix_transpose(xp.one_hot(order, xp.shape(order)[-1], dtype))


def _triangles(xp: Any, packed: Array) -> tuple[Array, Array]:
    m, n = xp.shape(packed)[-2:]
    k = min(m, n)
    lower = xp.tril(xp.take_slice(packed, -1, 0, k), -1)
    return xp.add(lower, xp.eye(m, k, xp.dtype_of(packed))), xp.triu(xp.take_slice(packed, -2, 0, k))


@kernel("linalg_lu")
def _lu(xp: Any, x: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    _refuse_no_pivot(pivot)
    packed, _, order = lu(xp, x)
    return permutation_matrix(xp, order, xp.dtype_of(x)), *_triangles(xp, packed)


def order_of(xp: Any, pivots: Array, m: int) -> Array:
    """Return, as int64 (..., m), the permutation of LAPACK's pivots (from 1), which swap rows one after the other."""
    batch, k = xp.shape(pivots)[:-1], xp.shape(pivots)[-1]
    start = xp.broadcast_to(xp.iota(m, dtypes.int64), (*batch, m))
    if not k or not xp.size(start):
        return start
    pivots = xp.moveaxis(xp.subtract(xp.astype(pivots, dtypes.int64), 1), -1, 0)

    def swap(order: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        i, j = at
        j = xp.expand_dims(j, -1)
        i = xp.broadcast_to(i, xp.shape(j))
        first, second = (xp.take_along_axis(order, where, -1) for where in (i, j))
        order = xp.put_along_axis(order, i, second, -1)
        return xp.put_along_axis(order, j, first, -1), i

    return xp.scan(swap, start, (xp.iota(k, dtypes.int64), pivots), length=k)[0]


@kernel("lu_unpack")
def _lu_unpack(
    xp: Any, packed: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    none = empty_factor(xp, packed)
    lower, upper = _triangles(xp, packed) if unpack_data else (none, none)
    if not unpack_pivots:
        return none, lower, upper
    *batch, m, _ = xp.shape(packed)
    order = order_of(xp, pivots if xp.size(pivots) else xp.zeros((*batch, 0), dtypes.int64), m)
    return permutation_matrix(xp, order, xp.dtype_of(packed)), lower, upper


# ---- spectra ---------------------------------------------------------------------------------------------------------


@kernel("_linalg_svd")
def _svd(
    xp: Any, x: Array, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[Array, Array, Array]:
    refuse_narrow(xp, x)
    *batch, m, n = xp.shape(x)
    dtype, none = xp.dtype_of(x), empty_factor(xp, x)
    if not xp.size(x):

        def basis(rows: int, columns: int) -> Array:
            return xp.broadcast_to(xp.eye(rows, columns, dtype), (*batch, rows, columns))

        s = xp.zeros((*batch, min(m, n)), dtypes.real_dtype(dtype))
        if not compute_uv:
            return none, s, none
        return (basis(m, m), s, basis(n, n)) if full_matrices else (basis(m, min(m, n)), s, basis(min(m, n), n))
    if driver is not None:  # the forms with out= come here, whose meta functions let it pass
        raise RuntimeError(
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend."
        )
    _not_converged(xp, x, "linalg.svd")
    return xp.svd(x, full=full_matrices) if compute_uv else (none, xp.svdvals(x), none)


@kernel("linalg_polar")
@with_operators
def _polar(xp: Any, x: Value) -> tuple[Value, Value]:
    """U and H of x = U H: orthonormal columns, and a positive semidefinite matrix."""
    refuse_narrow(xp, x)
    n = x.shape[-1]
    if not xp.size(x):
        return x, xp.zeros((*x.shape[:-2], n, n), x.dtype)
    _not_converged(xp, x, "linalg.svd")
    u, s, vh = xp.svd(x)
    return u @ vh, adjoint(xp, vh) @ (xp.astype(xp.expand_dims(s, -1), x.dtype) * vh)


@kernel("_linalg_eigh")
def _eigh(xp: Any, x: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    refuse_narrow(xp, x)
    if not xp.size(x):
        return xp.zeros(xp.shape(x)[:-1], dtypes.real_dtype(xp.dtype_of(x))), x if compute_v else empty_factor(xp, x)
    _not_converged(xp, x, "linalg.eigh")
    values, vectors = xp.eigh(x, lower=UPLO.upper() == "L")
    return values, vectors if compute_v else empty_factor(xp, x)


@kernel("linalg_eig")
def _eig(xp: Any, x: Array) -> tuple[Array, Array]:
    refuse_narrow(xp, x)
    if not xp.size(x):
        empty = xp.astype(x, dtypes.complex_dtype(xp.dtype_of(x)))
        return xp.zeros(xp.shape(x)[:-1], xp.dtype_of(empty)), empty
    refuse_infinite(xp, x, RuntimeError("torch.linalg.eig: input tensor should not contain infs or NaNs."))
    return xp.eig(x)


@kernel("_linalg_eigvals")
def _eigvals(xp: Any, x: Array) -> Array:
    return _eig(xp, x)[0]
