"""Products with sparse matrices, by SciPy. Without SciPy they are the hub's composites."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse
from tensorgraft.hub.sparse_arrays import SparseArray, of_known_coordinates

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

    def sparse_parts(self, x: Any, /) -> SparseArray | None:
        """Return an array of SciPy as its parts, in which elements that it has twice are added. Raises TypeError for
        formats that are no layout of PyTorch."""
        if not type(x).__module__.startswith("scipy.sparse") or not hasattr(x, "format"):
            return None
        if x.format == "coo":
            return of_known_coordinates(np.stack(x.coords, 1), x.data, x.shape)
        if x.format not in ("csr", "csc", "bsr"):
            raise TypeError(f"expected a SciPy array in the format coo, csr, csc or bsr, got {x.format}: convert it")
        if not x.has_canonical_format:
            x = x.copy()
            x.sum_duplicates()
        return SparseArray(x.format, tuple(map(int, x.shape)), True, (x.indptr, x.indices, x.data))

    def sparse_array(self, layout: str, shape: tuple[int, ...], is_coalesced: bool, parts: Any) -> Any:
        sparse = _scipy()
        if sparse is None:
            raise TypeError("a function that returns a sparse array requires SciPy: pip install scipy")
        if layout == "coo" and parts[1].ndim == 1:
            return sparse.coo_array((parts[1], tuple(parts[0].T)), shape=shape)
        if layout not in ("csr", "csc", "bsr") or len(shape) != 2:
            raise SparseArray(layout, shape, is_coalesced, parts).refused(
                "SciPy", "coo arrays and csr, csc, bsr matrices"
            )
        make = getattr(sparse, f"{layout}_array")
        return make((parts[2], parts[1], parts[0]), shape=shape)
