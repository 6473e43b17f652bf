"""Products with sparse matrices, by SciPy. Without SciPy they are the hub's composites."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse

_BLOCK = 1 << 18  # numbers gathered at a time
_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128", "int32", "int64")))


@functools.cache
def _scipy() -> Any:
    try:
        import scipy.sparse
    except ImportError:  # SciPy is an optional dependency
        return None
    return scipy.sparse


def _matrix(starts: Array, columns: Array, values: Array, width: int) -> Any:
    """Return SciPy's matrix (m, width) over the arrays; None where SciPy computes in another dtype. Raises ValueError
    for indices out of bounds, which SciPy would read memory at."""
    sparse = _scipy()
    if sparse is None or values.dtype not in _DTYPES:
        return None
    matrix = sparse.csr_array((values, columns, starts), shape=(len(starts) - 1, width))
    matrix.check_format()
    return matrix


class NumpySparse:
    def _csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        matrix = _matrix(starts, columns, values, dense.shape[0])
        return Sparse._csr_matmul(self, starts, columns, values, dense) if matrix is None else matrix @ dense

    def _csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        matrix = _matrix(starts, columns, values, n)
        if matrix is None:
            return Sparse._csr_transposed_matmul(self, starts, columns, values, dense, n)
        return matrix.T @ dense

    def _csr_sampled_matmul(self: Any, starts: Array, columns: Array, a: Array, b: Array) -> Array:
        count, k = int(starts[-1]), a.shape[1]
        rows, out = self.csr_rows(starts, count), np.zeros(len(columns), a.dtype)
        step = max(1, _BLOCK // max(k, 1))
        for first in range(0, count, step):
            part = slice(first, min(first + step, count))
            np.einsum("ij,ij->i", a[rows[part]], b[columns[part]], out=out[part])
        return out
