"""Products and factorisations of matrices. What JAX itself says in other primitives (ormqr, cholesky_update,
symmetric_product, linear solves) has no rule here: `decomposition` finds it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("dot_general")
def dot_general(xp: Backend, a: Array, b: Array, *, dimension_numbers: Any, out: Any, **_: Any) -> Array:
    """Operands may have different dtypes, and the result a narrower one than they."""
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    out_dtype = np.dtype(out[0].dtype)
    wide, casts = _wide(xp.dtype_of(a), xp.dtype_of(b), out_dtype)
    if casts:
        a, b = xp.astype(a, wide), xp.astype(b, wide)
    product = xp.dot_general(a, b, (tuple(contract_a), tuple(contract_b)), (tuple(batch_a), tuple(batch_b)), wide)
    return product if wide == out_dtype else xp.astype(product, out_dtype)


@functools.lru_cache(maxsize=1024)
def _wide(a: np.dtype, b: np.dtype, out_dtype: np.dtype) -> tuple[np.dtype, bool]:
    """Return the dtype of a product of two dtypes that becomes the wanted one, and whether the operands are to be of
    it."""
    common = np.dtype(jnp.promote_types(a, b))
    wide = out_dtype if jnp.promote_types(common, out_dtype) == out_dtype else common
    return wide, a != b or dtypes.is_inexact(wide) != dtypes.is_inexact(common)


@rule("triangular_solve")
def triangular_solve(
    xp: Backend,
    a: Array,
    b: Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
    **_: Any,
) -> Array:
    dtype = xp.dtype_of(b)
    a, b = (xp.astype(x, dtypes.accumulator(dtype)) for x in (a, b))  # LAPACK has no 16-bit floats
    conjugate = conjugate_a and dtypes.is_complex(xp.dtype_of(a))
    if conjugate and not transpose_a:
        a, conjugate = xp.conj(a), False
    solution = xp.triangular_solve(
        a,
        b,
        lower=lower,
        left=left_side,
        transpose=transpose_a and not conjugate,
        adjoint=transpose_a and conjugate,
        unit_diagonal=unit_diagonal,
    )
    return xp.astype(solution, dtype)


# ---- factorisations --------------------------------------------------------------------------------------------------


@rule("cholesky")
def cholesky(xp: Backend, x: Array, **_: Any) -> Array:
    """JAX leaves the triangle above the diagonal unspecified; here it is zero."""
    dtype = xp.dtype_of(x)
    return xp.astype(xp.cholesky(xp.astype(x, dtypes.accumulator(dtype))), dtype)


@rule("lu")
def lu(xp: Backend, x: Array, **_: Any) -> tuple[Array, ...]:
    return xp.lu(x)


@rule("qr")
def qr(xp: Backend, x: Array, *, pivoting: bool, full_matrices: bool, **_: Any) -> tuple[Array, ...]:
    if not pivoting:
        return xp.qr(x, full=full_matrices)
    m, n = xp.shape(x)[-2:]
    packed, order, factors = xp.pivoted_householder_qr(x)
    k = min(m, n)
    reflectors = xp.take_slice(packed, -1, 0, k)
    rest = m - k if full_matrices else 0
    if rest:
        config = [(0, 0, 0)] * (xp.ndim(x) - 1) + [(0, rest, 0)]
        reflectors = xp.pad(reflectors, 0, config)
    q = xp.householder_product(reflectors, factors)
    r = xp.triu(packed)
    return q, r if full_matrices else xp.take_slice(r, -2, 0, k), order


@rule("geqrf")
def geqrf(xp: Backend, x: Array, **_: Any) -> tuple[Array, ...]:
    return xp.householder_qr(x)


@rule("geqp3")
def geqp3(xp: Backend, x: Array, pivots: Array, **_: Any) -> tuple[Array, ...]:
    """Every column is free, as in JAX's own calls; LAPACK numbers them from 1."""
    packed, order, factors = xp.pivoted_householder_qr(x)
    return packed, xp.add(xp.astype(order, xp.dtype_of(pivots)), 1), factors


@rule("householder_product")
def householder_product(xp: Backend, a: Array, factors: Array, **_: Any) -> Array:
    return xp.householder_product(a, factors)


@rule("hessenberg")
def hessenberg(xp: Backend, x: Array, **_: Any) -> tuple[Array, ...]:
    return xp.hessenberg(x)


@rule("tridiagonal")
def tridiagonal(xp: Backend, x: Array, *, lower: bool, **_: Any) -> tuple[Array, ...]:
    return xp.tridiagonal(x, lower=lower)


@rule("tridiagonal_solve")
def tridiagonal_solve(
    xp: Backend, below: Array, diagonal: Array, above: Array, b: Array, *, perturb_singular: bool = False, **_: Any
) -> Array:
    if perturb_singular:
        raise NotImplementedError(
            "tridiagonal_solve with perturb_singular=True is not supported: add a small number to the diagonal"
        )
    return xp.tridiagonal_solve(below, diagonal, above, b)


@rule("schur")
def schur(xp: Backend, x: Array, *, compute_schur_vectors: bool, sort_eig_vals: bool, **_: Any) -> list[Array]:
    if sort_eig_vals:
        raise NotImplementedError("schur with sorted eigenvalues is not supported, as in JAX on every platform")
    form, vectors = xp.schur(x)
    return [form, vectors][: 1 + compute_schur_vectors]


# ---- eigenvalues and singular values ---------------------------------------------------------------------------------


def _subset(xp: Backend, x: Array, axis: int, subset: Sequence[int] | None) -> Array:
    return x if subset is None else xp.take_slice(x, axis, subset[0], min(subset[1], xp.shape(x)[axis]))


@rule("eigh")
def eigh(
    xp: Backend, x: Array, *, lower: bool, subset_by_index: Sequence[int] | None = None, **_: Any
) -> tuple[Array, Array]:
    """Return eigenvectors and eigenvalues in ascending order, asked for or not."""
    values, vectors = xp.eigh(x, lower=lower)
    return _subset(xp, vectors, -1, subset_by_index), _subset(xp, values, -1, subset_by_index)


@rule("eig")
def eig(
    xp: Backend, x: Array, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_: Any
) -> list[Array]:
    values, left, right = xp.eig_both(x) if compute_left_eigenvectors else _with_no_left(xp.eig(x))
    return [values, *[left] * compute_left_eigenvectors, *[right] * compute_right_eigenvectors]


def _with_no_left(factors: tuple[Array, Array]) -> tuple[Array, Any, Array]:
    return factors[0], None, factors[1]


@rule("svd")
def svd(
    xp: Backend,
    x: Array,
    *,
    full_matrices: bool,
    compute_uv: bool,
    out: Any,
    subset_by_index: Sequence[int] | None = None,
    **_: Any,
) -> list[Array]:
    if not xp.size(x):  # without elements, Q is the identity, and the rest is empty
        return [_identity(xp, tuple(a.shape), np.dtype(a.dtype)) for a in out]
    if not compute_uv:
        return [_subset(xp, xp.svdvals(x), -1, subset_by_index)]
    u, s, vh = xp.svd(x, full=full_matrices)
    if full_matrices:
        return [s, u, vh]
    parts: list[tuple[Array, int]] = [(s, -1), (u, -1), (vh, -2)]
    return [_subset(xp, part, axis, subset_by_index) for part, axis in parts]


def _identity(xp: Backend, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    if len(shape) < 2 or 0 in shape:
        return xp.zeros(shape, dtype)
    return xp.broadcast_to(xp.eye(shape[-2], shape[-1], dtype), shape)
