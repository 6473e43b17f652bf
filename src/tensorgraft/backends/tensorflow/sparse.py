"""Products with sparse matrices on a CPU, by TensorFlow's kernels for compressed rows. XLA has none: programs that it
may compile have the hub's composites."""

from __future__ import annotations

from typing import Any

from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.backends.tensorflow.operation import cast, dtype_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse

_DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


class TensorFlowSparse:
    def _csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        operands = starts, columns, values, dense
        product = _product(self, operands, self.shape(dense)[0], False)
        return Sparse._csr_matmul(self, *operands) if product is None else product

    def _csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        operands = starts, columns, values, dense
        product = _product(self, operands, n, True)
        return Sparse._csr_transposed_matmul(self, *operands, n) if product is None else product


def _product(xp: Any, operands: tuple[Array, ...], width: int, transposed: bool) -> Array | None:
    starts, columns, values, dense = operands
    if type(dense) is not EagerTensor or "CPU" not in dense.device or dtype_of(dense) not in _DTYPES:
        return None
    count = xp.shape(columns)[0]
    if not count or not xp.size(dense):
        return None
    positions = raw.Pack(values=[xp.csr_rows(starts, count), cast(columns, dtypes.int64)], axis=1)
    shape = tf.constant((xp.shape(starts)[0] - 1, width), tf.int64)
    matrix = raw.SparseTensorToCSRSparseMatrix(indices=positions, values=values, dense_shape=shape)
    return raw.SparseMatrixMatMul(a=matrix, b=dense, transpose_a=transposed)
