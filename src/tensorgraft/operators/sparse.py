"""The operator of a sparse matrix of PyTorch, JAX, TensorFlow or SciPy, of whose parts nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tensorgraft import array_api as xp
from tensorgraft.arrays import framework_of
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.extensions.sparse import csr_matmul, csr_transposed_matmul
from tensorgraft.hub import dtypes
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.structures import Structure, vector


class CompressedRows(NamedTuple):
    """A matrix of compressed rows (m, n), or the transpose of one."""

    starts: Array
    columns: Array
    values: Array
    shape: tuple[int, int]
    is_transposed: bool = False


class SparseLinearOperator(LinearOperator):
    """The operator of a sparse matrix (m, n): `MatrixLinearOperator` makes it. Its parts are arrays, in the values of
    which it is differentiated."""

    _fields = ("starts", "columns", "values", "_shape", "_is_transposed", "_given")
    _static = ("_shape", "_is_transposed", "_given")

    def __init__(self, rows: CompressedRows, tags: Iterable[str] = ()) -> None:
        self.starts, self.columns, self.values, self._shape, self._is_transposed = rows
        if not dtypes.is_inexact(self.values.dtype):
            raise TypeError(
                f"MatrixLinearOperator: expected floating-point or complex numbers, got {self.values.dtype}: convert"
                " them before"
            )
        self._given = tags_.closed(tags, self.values.dtype, self.shape, "MatrixLinearOperator")

    @property
    def _in(self) -> Structure:
        return vector(self._shape[0 if self._is_transposed else 1], self.values.dtype)

    @property
    def _out(self) -> Structure:
        return vector(self._shape[1 if self._is_transposed else 0], self.values.dtype)

    @property
    def device(self) -> Device:
        return self.values.device

    @property
    def tags(self) -> tags_.Tags:
        return self._given

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mv", x)
        return xp.squeeze(self._times(xp.expand_dims(v, axis=1)), axis=1)

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("MatrixLinearOperator.mm", x, columns=True)
        return self._times(v)

    def mm_flat(self, x: Array, /) -> Array:
        return self.mm(x)

    def _times(self, x: Array) -> Array:
        parts = self.starts, self.columns, self.values
        return csr_transposed_matmul(*parts, x, self._shape[1]) if self._is_transposed else csr_matmul(*parts, x)

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else self._transpose_with(self.values)

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        return self._transpose_with(xp.conj(self.values) if dtypes.is_complex(self.dtype) else self.values)

    def _transpose_with(self, values: Array) -> SparseLinearOperator:
        rows = CompressedRows(self.starts, self.columns, values, self._shape, not self._is_transposed)
        return SparseLinearOperator(rows, tags_.of_transpose(self.tags))


# ---- matrices of other libraries -------------------------------------------------------------------------------------


def rows_of(x: Any) -> CompressedRows | None:
    """Return the rows of a sparse matrix of another library; None for anything else. Raises TypeError for sparse
    arrays that are no matrices or whose rows are not in order."""
    package, kind = type(x).__module__, type(x).__name__
    if package.startswith("scipy.sparse") and hasattr(x, "format"):
        x = x if x.format in ("csr", "csc") else x.tocsr()
        return _rows(x.indptr, x.indices, x.data, x.shape, x.format == "csc")
    if package.startswith("jax.experimental.sparse") and kind in ("BCSR", "BCOO"):
        if x.n_batch or x.n_dense or len(x.shape) != 2:
            raise TypeError(f"MatrixLinearOperator: expected a {kind} without batch and dense dimensions, got {x}")
        return _rows(x.indptr, x.indices, x.data, x.shape) if kind == "BCSR" else _of_jax_coordinates(x)
    if framework_of(x) == "torch" and kind in ("Tensor", "Parameter"):
        return _of_torch(x)
    if package.startswith("tensorflow") and kind == "SparseTensor":
        indices, shape = xp.asarray(x.indices), tuple(map(int, x.dense_shape))
        return _of_coordinates(indices[:, 0], indices[:, 1], xp.asarray(x.values), shape)
    return None


def _rows(starts: Any, columns: Any, values: Any, shape: Any, transposed: bool = False) -> CompressedRows:
    """Return a matrix of these parts; `transposed`: of compressed columns."""
    m, n = map(int, shape)
    device = None if framework_of(values) not in ("numpy", None) else "numpy"
    arrays = [xp.asarray(part, device=device) for part in (starts, columns, values)]
    return CompressedRows(arrays[0], arrays[1], arrays[2], (n, m) if transposed else (m, n), transposed)


def _of_torch(x: Any) -> CompressedRows | None:
    import torch

    x = x.detach()
    if x.layout in (torch.sparse_csr, torch.sparse_csc) and x.ndim == 2:
        if x.layout is torch.sparse_csr:
            return _rows(x.crow_indices(), x.col_indices(), x.values(), x.shape)
        return _rows(x.ccol_indices(), x.row_indices(), x.values(), x.shape, transposed=True)
    if x.layout is torch.sparse_coo and x.sparse_dim() == x.ndim == 2:
        x = x.coalesce()
        rows, columns = x.indices()
        return _of_coordinates(xp.asarray(rows), xp.asarray(columns), xp.asarray(x.values()), tuple(x.shape))
    if x.layout is torch.strided:
        return None
    raise TypeError(f"MatrixLinearOperator: expected a matrix, got a tensor of shape {tuple(x.shape)} and {x.layout}")


def _of_jax_coordinates(x: Any) -> CompressedRows:
    indices = xp.asarray(x.indices)
    rows, columns, values = indices[:, 0], indices[:, 1], xp.asarray(x.data)
    if not x.indices_sorted:
        order = xp.argsort(rows, stable=True)
        rows, columns, values = (xp.take(part, order, axis=0) for part in (rows, columns, values))
    return _of_coordinates(rows, columns, values, x.shape)


def _of_coordinates(rows: Array, columns: Array, values: Array, shape: Any) -> CompressedRows:
    """Return a matrix of coordinates whose rows are in order; those after the last row are no elements."""
    boundaries = xp.arange(shape[0] + 1, dtype=rows.dtype, device=rows.device)
    return CompressedRows(xp.searchsorted(rows, boundaries), columns, values, tuple(shape))


def of_matrix(matrix: Any, tags: Iterable[str]) -> SparseLinearOperator | None:
    """Return the operator of a sparse matrix of another library; None for anything else."""
    rows = None if isinstance(matrix, Array) else rows_of(matrix)
    return None if rows is None else SparseLinearOperator(rows, tags)
