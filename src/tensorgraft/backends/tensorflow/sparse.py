"""Products with sparse matrices on a CPU, by TensorFlow's kernels for compressed rows. XLA has none: programs that it
may compile have the hub's composites."""

from __future__ import annotations

from typing import Any

from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.backends.tensorflow.operation import cast, dtype_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse
from tensorgraft.hub.sparse_arrays import SparseArray, of_known_coordinates

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

    def sparse_parts(self, x: Any, /) -> SparseArray | None:
        """Return a `SparseTensor`, or `IndexedSlices` (rows of a tensor), as parts. Raises ValueError for one of
        unknown shape."""
        if isinstance(x, tf.IndexedSlices):
            shape = None if x.dense_shape is None else tf.get_static_value(x.dense_shape)
            if shape is None:
                raise ValueError("expected tf.IndexedSlices with a known dense_shape, got one without")
            return SparseArray(
                "coo", tuple(map(int, shape)), False, (raw.ExpandDims(input=x.indices, axis=1), x.values)
            )
        if not isinstance(x, tf.SparseTensor):
            return None
        if not x.shape.is_fully_defined():
            raise ValueError(f"expected a tf.SparseTensor of known shape, got one of {x.shape}")
        if type(x.indices) is EagerTensor:
            return of_known_coordinates(x.indices.numpy(), x.values, x.shape)
        if x.indices.shape[0] is None:
            raise ValueError(
                "a tf.SparseTensor in a tf.function has an unknown number of elements, which a traced module must know:"
                " let the function use it from outside, instead of taking it as an argument, or pass"
                " its values and indices in tensors of known shape"
            )
        return SparseArray("coo", tuple(x.shape), False, (x.indices, x.values))

    def sparse_array(self, layout: str, shape: tuple[int, ...], is_coalesced: bool, parts: Any) -> Any:
        if layout == "coo":
            indices, values = parts[0], parts[1]
            if indices.shape[1] == len(shape):
                return tf.SparseTensor(cast(indices, dtypes.int64), values, shape)
            if indices.shape[1] == 1:
                return tf.IndexedSlices(values, raw.Squeeze(input=indices, axis=[1]), tf.constant(shape, tf.int64))
        raise SparseArray(layout, shape, is_coalesced, parts).refused("TensorFlow", "SparseTensor and IndexedSlices")


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
