"""Compressed sparse matrices (`tf.raw_ops.SparseMatrix*`), and batches of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.arrays.indexing import gather_nd
from tensorgraft.frontends.tensorflow.rules.arrays.segments import segment_total
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.hosted import on_the_host
from tensorgraft.frontends.tensorflow.values import lifted
from tensorgraft.frontends.tensorflow.variants import CompressedMatrix
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("DenseToCSRSparseMatrix", folds=False)
def of_dense(xp: Backend, x: Array, positions: Array) -> CompressedMatrix:
    return CompressedMatrix(tuple(xp.shape(x)), positions, gather_nd(xp, x, positions))


@rule("SparseTensorToCSRSparseMatrix", known=("shape",), folds=False)
def of_sparse(xp: Backend, positions: Array, values: Array, shape: np.ndarray) -> CompressedMatrix:
    return CompressedMatrix(ints(shape), positions, values)


@rule("CSRSparseMatrixToDense", either=EVERY, folds=False)
def to_dense(xp: Backend, x: CompressedMatrix) -> Array:
    return x.dense(xp)


@rule("CSRSparseMatrixToSparseTensor", either=EVERY, folds=False)
def to_sparse(xp: Backend, x: CompressedMatrix) -> list[Any]:
    return [x.positions, x.values, np.asarray(x.shape, np.int64)]


@rule("CSRSparseMatrixComponents", either=EVERY, folds=False)
def components(xp: Backend, x: CompressedMatrix, index: Any) -> list[Any]:
    """Return (where rows begin, columns, values) of the matrix, or of number `index` of a batch."""
    batch, part, rows, columns = x.batched(xp)
    values = lifted(xp, x.values)
    if batch > 1:
        in_matrix = np.flatnonzero(xp.to_numpy(part) == int(on_the_host(xp, index)))
        rows, columns, values = (xp.take(v, xp.asarray(in_matrix), 0) for v in (rows, columns, values))
    steps = xp.asarray(np.arange(x.shape[-2] + 1))
    return [xp.astype(xp.searchsorted(rows, steps), dtypes.int32), xp.astype(columns, dtypes.int32), values]


@rule("SparseMatrixNNZ", either=EVERY, folds=False)
def entry_counts(xp: Backend, x: CompressedMatrix) -> Any:
    """Return how many entries a matrix has, or each of a batch."""
    batch, part, *_ = x.batched(xp)
    if len(x.shape) == 2:
        return np.asarray(xp.shape(part)[0], np.int32)
    return xp.scatter(xp.zeros((batch,), dtypes.int32), (part,), xp.ones(xp.shape(part), dtypes.int32), mode="add")


@rule("SparseMatrixTranspose", either=EVERY, folds=False)
def transpose(xp: Backend, x: CompressedMatrix, *, conjugate: bool = False) -> CompressedMatrix:
    return x.transposed(xp, conjugate)


@rule("SparseMatrixMatMul", either=EVERY, folds=False)
def product(
    xp: Backend, a: CompressedMatrix, b: Any, *, transpose_a: bool = False, transpose_b: bool = False,
    adjoint_a: bool = False, adjoint_b: bool = False, transpose_output: bool = False, conjugate_output: bool = False,
) -> Array:  # fmt: skip
    """Multiply a sparse matrix by a dense one."""
    if transpose_a or adjoint_a:
        a = a.transposed(xp, adjoint_a)
    b = lifted(xp, b)
    if transpose_b or adjoint_b:
        b = xp.matrix_transpose(b)
        b = xp.conj(b) if adjoint_b and dtypes.is_complex(xp.dtype_of(b)) else b
    batch, part, rows, columns = a.batched(xp)
    n, m = a.shape[-2:]
    flat = xp.reshape(b, (batch * m, xp.shape(b)[-1]))
    gathered = xp.take(flat, xp.add(xp.multiply(part, m), columns), 0)
    parts = xp.multiply(xp.expand_dims(lifted(xp, a.values), 1), gathered)
    out = segment_total(xp, parts, xp.add(xp.multiply(part, n), rows), batch * n)
    out = xp.reshape(out, (*a.shape[:-1], xp.shape(b)[-1]))
    if conjugate_output and dtypes.is_complex(xp.dtype_of(out)):
        out = xp.conj(out)
    return xp.matrix_transpose(out) if transpose_output else out


@rule("SparseMatrixSparseMatMul", either=EVERY, folds=False)
def sparse_product(
    xp: Backend, a: CompressedMatrix, b: CompressedMatrix, *, transpose_a: bool = False, transpose_b: bool = False,
    adjoint_a: bool = False, adjoint_b: bool = False,
) -> CompressedMatrix:  # fmt: skip
    """Multiply two sparse matrices. Positions are computed on the host; entries that become 0 are kept."""
    if transpose_a or adjoint_a:
        a = a.transposed(xp, adjoint_a)
    if transpose_b or adjoint_b:
        b = b.transposed(xp, adjoint_b)
    left, right = (np.stack([xp.to_numpy(v) for v in x.batched(xp)[1:]]) for x in (a, b))
    m, width = b.shape[-2:]
    multiplied = left[0] * m + left[2]  # for each entry of a: the row of b that it is multiplied by
    rows = right[0] * m + right[1]
    start, stop = np.searchsorted(rows, multiplied), np.searchsorted(rows, multiplied, side="right")
    first = np.repeat(np.arange(multiplied.size), stop - start)
    second = np.concatenate([np.arange(s, e) for s, e in zip(start, stop, strict=True)] or [np.zeros(0, np.int64)])
    second = second.astype(np.int64)
    where = np.stack([left[0][first], left[1][first], right[2][second]], axis=1)
    positions, at = np.unique(where, axis=0, return_inverse=True)
    factors = [xp.take(lifted(xp, x.values), xp.asarray(i), 0) for x, i in ((a, first), (b, second))]
    values = segment_total(xp, xp.multiply(*factors), xp.asarray(np.ravel(at)), len(positions))
    return CompressedMatrix((*a.shape[:-1], width), xp.asarray(positions[:, 3 - len(a.shape) :]), values)


def _tensorflow_matrix(xp: Backend, x: CompressedMatrix) -> tf.Tensor:
    positions, values = (tf.constant(on_the_host(xp, v)) for v in x.arrays())
    return tf.raw_ops.SparseTensorToCSRSparseMatrix(indices=positions, values=values, dense_shape=list(x.shape))


@rule("SparseMatrixOrderingAMD", either=EVERY, folds=False)
def ordering(xp: Backend, x: CompressedMatrix) -> np.ndarray:
    """Order by TensorFlow, on the host: a heuristic, any result of which is as good."""
    with tf.init_scope():
        return tf.raw_ops.SparseMatrixOrderingAMD(input=_tensorflow_matrix(xp, x)).numpy()


@rule("SparseMatrixSparseCholesky", either=EVERY, folds=False)
def cholesky(xp: Backend, x: CompressedMatrix, order: Any, *, node: Any) -> CompressedMatrix:
    """Factorise by TensorFlow, on the host, which finds out where the factor has entries."""
    dtype = xp.dtype_of(lifted(xp, x.values))
    with tf.init_scope():
        order = tf.constant(on_the_host(xp, order))
        factor = tf.raw_ops.SparseMatrixSparseCholesky(
            input=_tensorflow_matrix(xp, x), permutation=order, type=tf.as_dtype(dtype)
        )
        positions, values, _ = tf.raw_ops.CSRSparseMatrixToSparseTensor(sparse_matrix=factor, type=tf.as_dtype(dtype))
        return CompressedMatrix(x.shape, xp.asarray(positions.numpy()), xp.asarray(values.numpy()))
