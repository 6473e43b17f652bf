"""Solving, inverting, determinants and functions of (batches of) matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import wide
from tensorgraft.frontends.torch.kernels.math.factorization import (
    adjoint,
    check_errors,
    first_zero,
    lu,
    order_of,
    refuse_narrow,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


def _broadcast_batches(xp: Any, a: Array, b: Array) -> tuple[Array, Array]:
    """Return two (batches of) matrices with their batch axes broadcast."""
    sa, sb = xp.shape(a), xp.shape(b)
    batch = np.broadcast_shapes(sa[:-2], sb[:-2])
    return xp.broadcast_to(a, (*batch, *sa[-2:])), xp.broadcast_to(b, (*batch, *sb[-2:]))


def _permuted(xp: Any, x: Array, order: Array) -> Array:
    """Return the rows of each matrix, in the given order."""
    return xp.take_along_axis(x, xp.broadcast_to(xp.expand_dims(order, -1), xp.shape(x)), -2)


def _lu_solve(xp: Any, packed: Array, order: Array, b: Array, adjoint_: bool) -> Array:
    """Solve A x = b, or A^H x = b, for A = P L U."""
    packed, b = _broadcast_batches(xp, packed, b)
    order = xp.broadcast_to(order, xp.shape(packed)[:-1])
    if not xp.size(b):
        return b
    if not adjoint_:
        return xp.lu_solve(packed, order, b)
    y = xp.triangular_solve(packed, b, lower=False, adjoint=True)
    y = xp.triangular_solve(packed, y, lower=True, adjoint=True, unit_diagonal=True)
    return _permuted(xp, y, xp.inverse_permutation(order))


def _solve_left_or_right(xp: Any, packed: Array, order: Array, b: Array, left: bool, adjoint_: bool) -> Array:
    if left:
        return _lu_solve(xp, packed, order, b, adjoint_)
    return adjoint(xp, _lu_solve(xp, packed, order, adjoint(xp, b), not adjoint_))


@kernel("linalg_lu_solve")
def _linalg_lu_solve(
    xp: Any, packed: Array, pivots: Array, b: Array, left: bool = True, adjoint: bool = False
) -> Array:
    refuse_narrow(xp, packed, b)
    return _solve_left_or_right(xp, packed, order_of(xp, pivots, xp.shape(packed)[-2]), b, left, adjoint)


@kernel("_linalg_solve_ex")
def _solve_ex(
    xp: Any, a: Array, b: Array, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    refuse_narrow(xp, a, b)
    packed, pivots, order = lu(xp, a)
    info = first_zero(xp, packed)
    if check_errors:
        _check(xp, info, "torch.linalg.solve_ex", a)
    # PyTorch's definition of a batch of vectors: one axis less, and the shape of A without its last axis
    vector = xp.ndim(b) == 1 or (xp.ndim(b) == xp.ndim(a) - 1 and xp.shape(b) == xp.shape(a)[:-1])
    right = xp.expand_dims(b, -1) if vector else b
    x = _solve_left_or_right(xp, packed, order, right, left or vector, False)
    return xp.squeeze(x, -1) if vector else x, packed, pivots, info


def _check(xp: Any, info: Array, name: str, x: Array) -> None:
    check_errors(xp, info, name, is_matrix=xp.ndim(x) == 2)


@kernel("linalg_inv_ex")
def _inv_ex(xp: Any, a: Array, check_errors: bool = False) -> tuple[Array, Array]:
    packed, _, order = lu(xp, a)
    info = first_zero(xp, packed)
    if check_errors:
        _check(xp, info, "linalg.inv_ex", a)
    n = xp.shape(a)[-1]
    return _lu_solve(xp, packed, order, xp.eye(n, n, xp.dtype_of(a)), False), info


@with_operators
def _sign_of(xp: Any, pivots: Value, dtype: np.dtype) -> Value:
    odd = xp.fmod(xp.parity(pivots - 1), 2)
    return xp.astype(1 - odd * 2, dtype)


def _det_factors(xp: Any, a: Array, contiguous: bool) -> tuple[Array, Array]:
    """LU and pivots as the backward formulas of `det` expect them: of the transpose where A is real and row-major."""
    flip = contiguous and not dtypes.is_complex(xp.dtype_of(a))
    return lu(xp, xp.matrix_transpose(a) if flip else a)[:2]


@kernel("_linalg_det", contiguous=True)
def _det(xp: Any, a: Array, contiguous: bool) -> tuple[Array, Array, Array]:
    packed, pivots = _det_factors(xp, a, contiguous)
    sign = _sign_of(xp, pivots, xp.dtype_of(a))
    return xp.multiply(xp.prod(xp.diagonal(packed), axis=-1), sign), packed, pivots


@kernel("_linalg_slogdet", contiguous=True)
def _slogdet(xp: Any, a: Array, contiguous: bool) -> tuple[Array, Array, Array, Array]:
    packed, pivots = _det_factors(xp, a, contiguous)
    diagonal = xp.diagonal(packed)
    sign = xp.multiply(xp.prod(xp.sign(diagonal), axis=-1), _sign_of(xp, pivots, xp.dtype_of(a)))
    return sign, xp.sum(xp.log(xp.abs(diagonal)), axis=-1), packed, pivots


# ---- triangular and Cholesky factors ---------------------------------------------------------------------------------


@kernel("linalg_solve_triangular")
def _solve_triangular(
    xp: Any, a: Array, b: Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    refuse_narrow(xp, a)
    dtype = xp.dtype_of(a)  # in which the CPU copies `b` into the result
    b = xp.astype(xp.real(b) if dtypes.is_complex(xp.dtype_of(b)) and not dtypes.is_complex(dtype) else b, dtype)
    a, b = _broadcast_batches(xp, a, b)
    if not xp.size(b):
        return b
    return xp.triangular_solve(a, b, lower=not upper, left=left, unit_diagonal=unitriangular)


@kernel("triangular_solve")
def _triangular_solve(
    xp: Any, b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    refuse_narrow(xp, a, b)
    a, b = _broadcast_batches(xp, a, b)
    x = b
    if xp.size(b):
        x = xp.triangular_solve(a, b, lower=not upper, transpose=transpose, unit_diagonal=unitriangular)
    return x, a


@kernel("_cholesky_solve_helper")
def _cholesky_solve(xp: Any, b: Array, factor: Array, upper: bool) -> Array:
    refuse_narrow(xp, factor, b)
    factor, b = _broadcast_batches(xp, factor, b)
    if not xp.size(b):
        return b
    y = xp.triangular_solve(factor, b, lower=not upper, adjoint=upper)
    return xp.triangular_solve(factor, y, lower=not upper, adjoint=not upper)


@kernel("cholesky_inverse")
def _cholesky_inverse(xp: Any, factor: Array, upper: bool = False) -> Array:
    n = xp.shape(factor)[-1]
    return _cholesky_solve(xp, xp.eye(n, n, xp.dtype_of(factor)), factor, upper)


# ---- least squares ---------------------------------------------------------------------------------------------------


@kernel("linalg_lstsq", concrete=True, meta=False)
@with_operators
def _lstsq(
    xp: Any, a: Value, b: Value, rcond: float | None = None, driver: str | None = None
) -> tuple[Value, Value, Value, Value]:
    """Solve by singular value decomposition with any driver; the driver determines the other results."""
    refuse_narrow(xp, a, b)
    driver = driver or "gelsy"
    known = driver in ("gelsy", "gels", "gelsd", "gelss") and a.dtype == b.dtype
    if not known or a.ndim < 2 or not b.ndim or not xp.size(a):
        raise NotImplementedError("the CPU says what is wrong, or knows what to do with nothing")
    m, n = a.shape[-2:]
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    right = xp.expand_dims(b, -1) if vector else b
    if right.shape[-2] != m:
        raise NotImplementedError("the CPU says what is wrong")
    eps = float(dtypes.finfo(a.dtype).eps)
    u, s, vh = xp.svd(a)
    least = xp.max(s, axis=-1, keepdims=True) * (rcond if rcond is not None else eps * max(m, n))
    is_significant = s > least
    inverse = xp.where(is_significant, 1 / xp.where(is_significant, s, xp.ones_like(s)), xp.zeros_like(s))
    inverse = xp.expand_dims(xp.astype(inverse, a.dtype), -1)
    x = adjoint(xp, vh) @ (inverse * (adjoint(xp, u) @ right))
    rank = xp.sum(xp.astype(is_significant, dtypes.int64), axis=-1)
    none = xp.zeros((0,), dtypes.real_dtype(a.dtype))
    residuals = none
    if m > n and driver != "gelsy" and (driver == "gels" or bool(xp.to_numpy(xp.all(rank == n)))):
        residuals = xp.sum(xp.square(abs(right - a @ x)), axis=-2)
    return (
        xp.squeeze(x, -1) if vector else x,
        residuals,
        xp.zeros((0,), dtypes.int64) if driver == "gels" else rank,
        s if driver in ("gelsd", "gelss") else none,
    )


# ---- functions of matrices -------------------------------------------------------------------------------------------


@kernel("linalg_matrix_sqrth")
@with_operators
def _matrix_sqrth(xp: Any, a: Value) -> Value:
    """Return the square root of the lower triangle's Hermitian matrix; negative eigenvalues count as 0."""
    if not xp.size(a):
        return a
    values, vectors = xp.eigh(a)
    roots = xp.astype(xp.sqrt(xp.maximum(values, 0)), a.dtype)
    return (vectors * xp.expand_dims(roots, -2)) @ adjoint(xp, vectors)


# Higham 2005, "The scaling and squaring method for the matrix exponential revisited": degree and radius of the Pade
# approximants that are exact to single and to double precision
_PADE = {dtypes.float32: (7, 3.925724783138660), dtypes.float64: (13, 5.371920351148152)}


@kernel("linalg_matrix_exp")
@with_operators
def _matrix_exp(xp: Any, a: Value) -> Value:
    a = wide(xp, a)
    if not dtypes.is_inexact(a.dtype):
        raise NotImplementedError(f"matrix_exp of {a.dtype}")
    if not xp.size(a):
        return a
    dtype, n = a.dtype, a.shape[-1]
    degree, radius = _PADE[dtypes.real_dtype(dtype)]
    norm = xp.max(xp.sum(abs(a), axis=-2), axis=-1)
    squarings = xp.maximum(xp.ceil(xp.log2(norm / radius)), 0)
    squarings = xp.where(xp.isfinite(squarings), squarings, xp.zeros_like(squarings))
    scale = xp.expand_dims(xp.expand_dims(2.0**-squarings, -1), -1)
    a = a * xp.astype(scale, dtype)
    coefficients = [
        math.factorial(2 * degree - k)
        * math.factorial(degree)
        / (math.factorial(2 * degree) * math.factorial(k) * math.factorial(degree - k))
        for k in range(degree + 1)
    ]
    square = a @ a
    power = xp.broadcast_to(xp.eye(n, n, dtype), a.shape)
    even, odd = power * coefficients[0], power * coefficients[1]
    for k in range(2, degree + 1, 2):
        power = power @ square
        even = even + power * coefficients[k]
        if k < degree:
            odd = odd + power * coefficients[k + 1]
    odd = a @ odd
    start = xp.solve(even - odd, even + odd)

    def not_done(state: tuple[Value, Value]) -> Value:
        return xp.max(state[1]) > 0

    def squared(state: tuple[Value, Value]) -> tuple[Value, Value]:
        x, left = state
        go = xp.expand_dims(xp.expand_dims(left > 0, -1), -1)
        return xp.where(go, x @ x, x), left - 1

    return xp.while_loop(not_done, squared, (start, squarings))[0]
