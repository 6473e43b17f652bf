"""Factorisations of matrices, their derivatives, functions of matrices, bands, least squares."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import computed
from tensorgraft.frontends.tensorflow.rules.mathematics.products import adjoint
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

_LARGEST_CONDITION = 1e8  # of eigenvectors: it costs half of the digits of float64


@rule("CholeskyGrad")
@with_operators
def cholesky_grad(xp: ValueBackend, factor: Value, d: Value) -> Value:
    """Return the symmetric derivative L^-H phi(L^H d) L^-1; phi is the lower triangle with half the diagonal."""
    middle = xp.tril(adjoint(xp, factor) @ xp.tril(d))
    diagonal = xp.tril(xp.triu(middle))
    middle = middle - diagonal * 0.5
    inner = xp.triangular_solve(factor, middle, lower=True, adjoint=True)
    out = adjoint(xp, xp.triangular_solve(factor, adjoint(xp, inner), lower=True, adjoint=True))
    return (out + adjoint(xp, out)) * 0.5


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


@with_operators
def _by_eigenvalues(xp: ValueBackend, x: Value, name: str, node: GraphNode) -> Value:
    """Return the function `name` of a matrix, applied to its eigenvalues. That loses as many digits as the condition of
    the eigenvectors has: if it is large (the matrix is nearly defective), TensorFlow computes the result on the host,
    and a trace gives NaN."""
    dtype = x.dtype
    values, vectors = xp.eig(xp.astype(x, dtypes.complex128 if dtypes.is_complex(dtype) else dtypes.float64))
    inverse = xp.inv(vectors)
    out = (vectors * xp.expand_dims(getattr(xp, name)(values), -2)) @ inverse
    condition = _frobenius(xp, vectors) * _frobenius(xp, inverse)
    is_well_conditioned = condition < _LARGEST_CONDITION
    out = xp.where(is_well_conditioned, out, xp.full_like(out, float("nan")))
    out = xp.astype(out if dtypes.is_complex(dtype) else xp.real(out), dtype)
    if xp.is_traced(x) or bool(xp.to_numpy(xp.all(is_well_conditioned))):
        return out
    return xp.where(is_well_conditioned, out, xp.asarray(computed(node, [xp.to_numpy(x)])[0]))


def _frobenius(xp: Any, x: AnyArray) -> AnyArray:
    return xp.sqrt(xp.sum(xp.square(xp.abs(x)), axis=(-2, -1), keepdims=True))


@rule("MatrixSolveLs")
@with_operators
def matrix_solve_ls(xp: ValueBackend, a: Value, b: Value, regularizer: Value, *, fast: bool = True) -> Value:
    """Return the regularised least squares solution, the shortest one if there are many. `fast=False` ignores the
    regulariser, and uses a singular value decomposition."""
    n, m = a.shape[-2:]
    if not fast:
        u, s, vh = xp.svd(a)
        small = xp.max(s, axis=-1, keepdims=True) * (float(dtypes.finfo(s.dtype).eps) * max(n, m))
        inverse_s = xp.where(s > small, xp.reciprocal(s), xp.zeros_like(s))
        right = adjoint(xp, u) @ b
        scaled = right * xp.astype(xp.expand_dims(inverse_s, -1), right.dtype)
        return adjoint(xp, vh) @ scaled
    conjugate = adjoint(xp, a)
    size = min(n, m)
    ridge = xp.eye(size, size, a.dtype) * xp.astype(regularizer, a.dtype)
    if n >= m:
        factor = xp.cholesky(conjugate @ a + ridge)
        return _cholesky_solve(xp, factor, conjugate @ b)
    factor = xp.cholesky(a @ conjugate + ridge)
    return conjugate @ _cholesky_solve(xp, factor, b)


def _cholesky_solve(xp: Any, factor: AnyArray, b: AnyArray) -> AnyArray:
    half = xp.triangular_solve(factor, b, lower=True)
    return xp.triangular_solve(factor, half, lower=True, adjoint=True)


# ---- bands -----------------------------------------------------------------------------------------------------------


@rule("BandedTriangularSolve")
def banded_triangular_solve(xp: Backend, bands: Array, b: Array, *, lower: bool = True, adjoint: bool = False) -> Array:
    """Solve with a triangular matrix given by its diagonals, the rows of `bands`. The main diagonal is the first row of
    a lower matrix, and the last row of an upper one."""
    *batch, k, n = xp.shape(bands)
    batch = list(np.broadcast_shapes(tuple(batch), xp.shape(b)[:-2]))
    dense = xp.zeros((*batch, n, n), xp.dtype_of(bands))
    difference = np.arange(n)[:, None] - np.arange(n)
    for i, band in enumerate(xp.unstack(bands, -2)):
        diagonal = i if lower else k - 1 - i
        mask = difference == (diagonal if lower else -diagonal)
        row = xp.expand_dims(band, -1)  # entry i of a band belongs to row i of the matrix
        dense = xp.where(xp.asarray(mask), row, dense)
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    return xp.triangular_solve(dense, b, lower=lower, adjoint=adjoint)


@rule("TridiagonalSolve")
def tridiagonal_solve(
    xp: Backend, diagonals: Array, b: Array, *, partial_pivoting: bool = True, perturb_singular: bool = False
) -> Array:
    above, diagonal, below = xp.unstack(diagonals, -2)
    return xp.tridiagonal_solve(below, diagonal, above, b)


@rule("TridiagonalMatMul")
@with_operators
def tridiagonal_matmul(xp: ValueBackend, above: Value, diagonal: Value, below: Value, x: Value) -> Value:
    n = x.shape[-2]

    def column(v: Value) -> Value:
        return xp.reshape(v, (*v.shape[:-2], n, 1))

    up = xp.roll(x, -1, x.ndim - 2)
    down = xp.roll(x, 1, x.ndim - 2)
    inner = np.arange(n)[:, None]
    high = xp.where(xp.asarray(inner < n - 1), column(above) * up, xp.zeros_like(x))
    low = xp.where(xp.asarray(inner > 0), column(below) * down, xp.zeros_like(x))
    return high + column(diagonal) * x + low


@rule("SparseMatMul")
def sparse_matmul(xp: Backend, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    a, b = (xp.astype(x, dtypes.float32) for x in (a, b))
    return xp.dot_general(a, b, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))
