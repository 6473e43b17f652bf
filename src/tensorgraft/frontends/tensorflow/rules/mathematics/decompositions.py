"""Factorisations of matrices, their derivatives, functions of matrices, bands, least squares."""

from __future__ import annotations

import numpy as np

from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import computed
from tensorgraft.frontends.tensorflow.rules.mathematics.products import adjoint
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_WORST_CONDITION = 1e8  # of eigenvectors: half of the digits of float64


@rule("CholeskyGrad")
def cholesky_grad(xp: Backend, factor: Array, d: Array) -> Array:
    """The symmetric derivative: L^-H phi(L^H d) L^-1, phi: the lower triangle with half the diagonal."""
    middle = xp.tril(xp.matmul(adjoint(xp, factor), xp.tril(d)))
    diagonal = xp.tril(xp.triu(middle))
    middle = xp.subtract(middle, xp.multiply(diagonal, 0.5))
    inner = xp.triangular_solve(factor, middle, lower=True, adjoint=True)
    out = adjoint(xp, xp.triangular_solve(factor, adjoint(xp, inner), lower=True, adjoint=True))
    return xp.multiply(xp.add(out, adjoint(xp, out)), 0.5)


@rule("Lu")
def lu(xp: Backend, x: Array, *, output_idx_type: np.dtype = dtypes.int32) -> list[Array]:
    packed, _, order = xp.lu(x)
    return [packed, xp.astype(order, output_idx_type)]


@rule("Eig")
def eig(xp: Backend, x: Array, *, compute_v: bool = True, Tout: np.dtype = dtypes.complex64) -> list[Array]:
    values, vectors = xp.eig(x)
    return [xp.astype(values, Tout), xp.astype(vectors, Tout) if compute_v else xp.zeros((), Tout)]


@rule("SelfAdjointEig")
def self_adjoint_eig_v1(xp: Backend, x: Array) -> Array:
    values, vectors = xp.eigh(x)
    return xp.concat([xp.expand_dims(values, -2), vectors], axis=-2)


@rule("MatrixSquareRoot")
def matrix_square_root(xp: Backend, x: Array, *, node: GraphNode) -> Array:
    return _by_eigenvalues(xp, x, "sqrt", node)


@rule("MatrixLogarithm")
def matrix_logarithm(xp: Backend, x: Array, *, node: GraphNode) -> Array:
    return _by_eigenvalues(xp, x, "log", node)


def _by_eigenvalues(xp: Backend, x: Array, name: str, node: GraphNode) -> Array:
    """A matrix that has not enough eigenvectors, or nearly so (their condition is what digits are lost by), is
    TensorFlow's, on the host; NaN where it is being traced."""
    dtype = xp.dtype_of(x)
    values, vectors = xp.eig(xp.astype(x, dtypes.complex128 if dtypes.is_complex(dtype) else dtypes.float64))
    inverse = xp.inv(vectors)
    out = xp.matmul(xp.multiply(vectors, xp.expand_dims(getattr(xp, name)(values), -2)), inverse)
    condition = xp.multiply(_frobenius(xp, vectors), _frobenius(xp, inverse))
    good = xp.less(condition, _WORST_CONDITION)
    out = xp.where(good, out, xp.full_like(out, float("nan")))
    out = xp.astype(out if dtypes.is_complex(dtype) else xp.real(out), dtype)
    if xp.is_traced(x) or bool(xp.to_numpy(xp.all(good))):
        return out
    return xp.where(good, out, xp.asarray(computed(node, [xp.to_numpy(x)])[0]))


def _frobenius(xp: Backend, x: Array) -> Array:
    return xp.sqrt(xp.sum(xp.square(xp.abs(x)), axis=(-2, -1), keepdims=True))


@rule("MatrixSolveLs")
def matrix_solve_ls(xp: Backend, a: Array, b: Array, regularizer: Array, *, fast: bool = True) -> Array:
    """Least squares, or of all solutions the shortest; regularised."""
    n, m = xp.shape(a)[-2:]
    if not fast:
        u, s, vh = xp.svd(a)
        small = xp.multiply(xp.max(s, axis=-1, keepdims=True), float(dtypes.finfo(xp.dtype_of(s)).eps) * max(n, m))
        kept = xp.where(xp.greater(s, small), xp.reciprocal(s), xp.zeros_like(s))
        right = xp.matmul(adjoint(xp, u), b)
        scaled = xp.multiply(right, xp.astype(xp.expand_dims(kept, -1), xp.dtype_of(right)))
        return xp.matmul(adjoint(xp, vh), scaled)
    conjugate = adjoint(xp, a)
    size = min(n, m)
    ridge = xp.multiply(xp.eye(size, size, xp.dtype_of(a)), xp.astype(regularizer, xp.dtype_of(a)))
    if n >= m:
        factor = xp.cholesky(xp.add(xp.matmul(conjugate, a), ridge))
        return _solved(xp, factor, xp.matmul(conjugate, b))
    factor = xp.cholesky(xp.add(xp.matmul(a, conjugate), ridge))
    return xp.matmul(conjugate, _solved(xp, factor, b))


def _solved(xp: Backend, factor: Array, b: Array) -> Array:
    half = xp.triangular_solve(factor, b, lower=True)
    return xp.triangular_solve(factor, half, lower=True, adjoint=True)


# ---- bands -----------------------------------------------------------------------------------------------------------


@rule("BandedTriangularSolve")
def banded_triangular_solve(xp: Backend, bands: Array, b: Array, *, lower: bool = True, adjoint: bool = False) -> Array:
    """Rows of `bands` are diagonals: the main one first below, last above."""
    *batch, k, n = xp.shape(bands)
    batch = list(np.broadcast_shapes(tuple(batch), xp.shape(b)[:-2]))
    whole = xp.zeros((*batch, n, n), xp.dtype_of(bands))
    gap = np.arange(n)[:, None] - np.arange(n)
    for i, band in enumerate(xp.unstack(bands, -2)):
        away = i if lower else k - 1 - i
        mask = gap == (away if lower else -away)
        row = xp.expand_dims(band, -1)  # an entry stands in the row of its matrix
        whole = xp.where(xp.asarray(mask), row, whole)
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    return xp.triangular_solve(whole, b, lower=lower, adjoint=adjoint)


@rule("TridiagonalSolve")
def tridiagonal_solve(
    xp: Backend, diagonals: Array, b: Array, *, partial_pivoting: bool = True, perturb_singular: bool = False
) -> Array:
    above, diagonal, below = xp.unstack(diagonals, -2)
    return xp.tridiagonal_solve(below, diagonal, above, b)


@rule("TridiagonalMatMul")
def tridiagonal_matmul(xp: Backend, above: Array, diagonal: Array, below: Array, x: Array) -> Array:
    n = xp.shape(x)[-2]

    def column(v: Array) -> Array:
        return xp.reshape(v, (*xp.shape(v)[:-2], n, 1))

    up = xp.roll(x, -1, xp.ndim(x) - 2)
    down = xp.roll(x, 1, xp.ndim(x) - 2)
    inner = np.arange(n)[:, None]
    high = xp.where(xp.asarray(inner < n - 1), xp.multiply(column(above), up), xp.zeros_like(x))
    low = xp.where(xp.asarray(inner > 0), xp.multiply(column(below), down), xp.zeros_like(x))
    return xp.add(xp.add(high, xp.multiply(column(diagonal), x)), low)


@rule("SparseMatMul")
def sparse_matmul(xp: Backend, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    a, b = (xp.astype(x, dtypes.float32) for x in (a, b))
    return xp.dot_general(a, b, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))
