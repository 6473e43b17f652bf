"""Matrices: bands and diagonals, factorisations, systems of equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.mathematics.products import adjoint
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("MatrixBandPart", known=("lower", "upper"))
def matrix_band_part(xp: Backend, x: Array, lower: np.ndarray, upper: np.ndarray) -> Array:
    n, m = xp.shape(x)[-2:]
    difference = np.arange(n)[:, None] - np.arange(m)
    mask = ((difference <= int(lower)) | (int(lower) < 0)) & ((-difference <= int(upper)) | (int(upper) < 0))
    return xp.where(xp.asarray(mask), x, xp.zeros_like(x))


# ---- diagonals -------------------------------------------------------------------------------------------------------


def _offsets(k: np.ndarray) -> range:
    low, high = (int(np.ravel(k)[0]), int(np.ravel(k)[-1]))
    return range(high, low - 1, -1)


def _band_positions(n: int, m: int, k: np.ndarray, align: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows, columns, in_matrix), each of shape (diagonals of a band from the uppermost, longest diagonal): the
    row and column of each element, and whether there is one; shorter diagonals are padded according to `align`."""
    offsets = _offsets(k)
    longest = max(min(n + min(d, 0), m - max(d, 0)) for d in offsets)
    rows = np.zeros((len(offsets), longest), np.int64)
    columns, in_matrix = np.zeros_like(rows), np.zeros(rows.shape, bool)
    for i, d in enumerate(offsets):
        length = min(n + min(d, 0), m - max(d, 0))
        left = align.split("_")[0 if d > 0 else 1] == "LEFT" or (d == 0 and length == longest)
        start = 0 if left else longest - length
        steps = np.arange(length)
        rows[i, start : start + length] = steps + max(-d, 0)
        columns[i, start : start + length] = steps + max(d, 0)
        in_matrix[i, start : start + length] = True
    return rows, columns, in_matrix


@rule("MatrixDiagPartV3", "MatrixDiagPartV2", known=("k",))
def matrix_diag_part(xp: Backend, x: Array, k: np.ndarray, padding: Array, *, align: str = "LEFT_LEFT") -> Array:
    *batch, n, m = xp.shape(x)
    rows, columns, in_matrix = _band_positions(n, m, k, align)
    flat = xp.reshape(x, (*batch, n * m))
    out = xp.take(flat, xp.asarray(rows * m + columns), len(batch))
    out = xp.where(xp.asarray(in_matrix), out, padding)
    return xp.reshape(out, (*batch, rows.shape[1])) if rows.shape[0] == 1 else out


@rule("MatrixDiagPart")
def matrix_diag_part_v1(xp: Backend, x: Array) -> Array:
    return xp.diagonal(x)


@rule("DiagPart")
def diag_part(xp: Backend, x: Array) -> Array:
    shape = xp.shape(x)[: xp.ndim(x) // 2]
    n = int(np.prod(shape))
    return xp.reshape(xp.diagonal(xp.reshape(x, (n, n))), shape)


@rule("MatrixDiagV3", "MatrixDiagV2", known=("k", "rows", "columns"))
def matrix_diag(
    xp: Backend,
    diagonals: Array,
    k: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    padding: Array,
    *,
    align: str = "LEFT_LEFT",
) -> Array:
    offsets = _offsets(k)
    *batch, longest = xp.shape(diagonals)
    if len(offsets) > 1:
        batch = batch[:-1]
    n, m = _extents(int(rows), int(columns), longest, offsets)
    matrix = xp.broadcast_to(padding, (*batch, n, m))
    return _with_diagonals(xp, matrix, diagonals, k, align)


def _extents(n: int, m: int, longest: int, offsets: range) -> tuple[int, int]:
    """Return the extents of a matrix with these diagonals; -1 stands for the least possible one."""
    low, high = offsets[-1], offsets[0]
    least_rows, least_columns = longest - min(high, 0), longest + max(low, 0)
    if n == m == -1:
        n = m = max(least_rows, least_columns)
    return (least_rows if n == -1 else n), (least_columns if m == -1 else m)


def _with_diagonals(xp: Backend, x: Array, diagonals: Array, k: np.ndarray, align: str) -> Array:
    *batch, n, m = xp.shape(x)
    rows, columns, in_matrix = _band_positions(n, m, k, align)
    flat = xp.reshape(diagonals, (*batch, rows.size))
    flat_index = np.flatnonzero(in_matrix)
    source = np.zeros((n, m), np.int64)
    mask = np.zeros((n, m), bool)
    source[rows.flat[flat_index], columns.flat[flat_index]] = flat_index
    mask[rows.flat[flat_index], columns.flat[flat_index]] = True
    return xp.where(xp.asarray(mask), xp.take(flat, xp.asarray(source), len(batch)), x)


@rule("MatrixDiag")
def matrix_diag_v1(xp: Backend, diagonal: Array) -> Array:
    *batch, n = xp.shape(diagonal)
    return _with_diagonals(xp, xp.zeros((*batch, n, n), xp.dtype_of(diagonal)), diagonal, np.asarray(0), "LEFT_LEFT")


@rule("Diag")
def diag(xp: Backend, x: Array) -> Array:
    shape = xp.shape(x)
    return xp.reshape(matrix_diag_v1(xp, xp.reshape(x, (xp.size(x),))), (*shape, *shape))


@rule("MatrixSetDiagV3", "MatrixSetDiagV2", known=("k",))
def matrix_set_diag(xp: Backend, x: Array, diagonals: Array, k: np.ndarray, *, align: str = "LEFT_LEFT") -> Array:
    return _with_diagonals(xp, x, diagonals, k, align)


@rule("MatrixSetDiag")
def matrix_set_diag_v1(xp: Backend, x: Array, diagonal: Array) -> Array:
    return _with_diagonals(xp, x, diagonal, np.asarray(0), "LEFT_LEFT")


# ---- factorisations and systems --------------------------------------------------------------------------------------


@rule("Cholesky")
def cholesky(xp: Backend, x: Array) -> Array:
    return xp.cholesky(x)


@rule("MatrixInverse")
def matrix_inverse(xp: Backend, x: Array, *, adjoint: bool = False) -> Array:
    return _in_single(xp, lambda v: [xp.inv(_adjoint_if(xp, v, adjoint))], x)[0]


def _in_single(xp: Backend, fn: Callable[[Array], Sequence[Array]], x: Array) -> list[Array]:
    """Return `fn(x)`. For float16 it is computed in float32 and rounded at the end, since no backend's library
    computes in float16."""
    dtype = xp.dtype_of(x)
    if dtype != dtypes.float16:
        return list(fn(x))
    return [xp.astype(y, dtype) for y in fn(xp.astype(x, dtypes.float32))]


@rule("MatrixSolve")
def matrix_solve(xp: Backend, a: Array, b: Array, *, adjoint: bool = False) -> Array:
    return xp.solve(_adjoint_if(xp, a, adjoint), b)


def _adjoint_if(xp: Backend, x: Array, condition: bool) -> Array:
    return adjoint(xp, x) if condition else x


@rule("MatrixTriangularSolve")
def matrix_triangular_solve(xp: Backend, a: Array, b: Array, *, lower: bool = True, adjoint: bool = False) -> Array:
    batch = np.broadcast_shapes(xp.shape(a)[:-2], xp.shape(b)[:-2])
    a = xp.broadcast_to(a, (*batch, *xp.shape(a)[-2:]))
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    return xp.triangular_solve(a, b, lower=lower, adjoint=adjoint)


@rule("Qr")
def qr(xp: Backend, x: Array, *, full_matrices: bool = False) -> list[Array]:
    return _in_single(xp, lambda v: xp.qr(v, full=full_matrices), x)


@rule("Svd")
def svd(xp: Backend, x: Array, *, compute_uv: bool = True, full_matrices: bool = False) -> list[Array]:
    if compute_uv:
        u, s, vh = xp.svd(x, full=full_matrices)
        return [_complex_like(xp, s, x), u, adjoint(xp, vh)]
    no_vectors = xp.zeros((), xp.dtype_of(x))
    return [_complex_like(xp, xp.svdvals(x), x), no_vectors, no_vectors]


def _complex_like(xp: Backend, values: Array, x: Array) -> Array:
    """Return real `values`, as complex numbers if `x` is complex."""
    return xp.complex(values, xp.zeros_like(values)) if dtypes.is_complex(xp.dtype_of(x)) else values


@rule("SelfAdjointEigV2")
def self_adjoint_eig(xp: Backend, x: Array, *, compute_v: bool = True) -> list[Array]:
    values, vectors = xp.eigh(x)
    return [_complex_like(xp, values, x), vectors if compute_v else xp.zeros((), xp.dtype_of(x))]


@rule("LogMatrixDeterminant")
def log_matrix_determinant(xp: Backend, x: Array) -> list[Array]:
    """Return (sign, logarithm of the modulus), both of the dtype of `x`."""
    lu, pivots, _ = xp.lu(x)
    diagonal = xp.diagonal(lu)
    odd = xp.equal(xp.fmod(xp.parity(pivots), 2), 1)
    signs = xp.prod(xp.sign(diagonal), axis=-1)
    logs = xp.sum(xp.log(xp.abs(diagonal)), axis=-1)
    return [xp.where(odd, xp.negative(signs), signs), _complex_like(xp, logs, x)]


@rule("MatrixDeterminant")
def matrix_determinant(xp: Backend, x: Array) -> Array:
    lu, pivots, _ = xp.lu(x)
    product = xp.prod(xp.diagonal(lu), axis=-1)
    return xp.where(xp.equal(xp.fmod(xp.parity(pivots), 2), 1), xp.negative(product), product)


@rule("Cross")
def cross(xp: Backend, a: Array, b: Array) -> Array:
    n = xp.ndim(a) - 1
    left, right = (xp.multiply(xp.roll(a, -s, n), xp.roll(b, s, n)) for s in (1, -1))
    return xp.subtract(left, right)
