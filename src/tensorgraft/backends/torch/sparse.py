"""Products with sparse matrices on a CPU, by PyTorch's kernels for compressed layouts. Compiled programs call these as
one operator."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.backends.torch.operators import LIBRARY
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.sparse import Sparse

Tensor = torch.Tensor

_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _suits(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in _DTYPES and x.numel() > 0


class TorchSparse:
    def _csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        if not _suits(dense) or not columns.numel():
            return Sparse._csr_matmul(self, starts, columns, values, dense)
        return torch.ops.tensorgraft.csr_matmul.default(starts, columns, values, dense)

    def _csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        if not _suits(dense) or not columns.numel() or not n:
            return Sparse._csr_transposed_matmul(self, starts, columns, values, dense, n)
        return torch.ops.tensorgraft.csr_transposed_matmul.default(starts, columns, values, dense, n)

    def _csr_sampled_matmul(self: Any, starts: Array, columns: Array, a: Array, b: Array) -> Array:
        possible = 0 < columns.shape[0] <= a.shape[0] * b.shape[0]  # PyTorch refuses more values than elements
        if not _suits(a) or not _suits(b) or not possible:
            return Sparse._csr_sampled_matmul(self, starts, columns, a, b)
        return torch.ops.tensorgraft.csr_sampled_matmul.default(starts, columns, a, b)


def _matrix(starts: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Return a sparse tensor; values after the last start are left out. Raises ValueError for indices out of bounds, at
    which the kernels would read memory; PyTorch's own check refuses repeated columns, too."""
    first, last = int(starts[0]), int(starts[-1])
    columns, values = columns[:last], values[:last]
    least, most = (int(x) for x in torch.aminmax(columns)) if last > 0 else (0, 0)
    descends = bool((starts[1:] < starts[:-1]).any())
    if first != 0 or last > columns.numel() or descends or least < 0 or (last and most >= width):
        raise ValueError(
            f"a sparse matrix ({starts.numel() - 1}, {width}) has a start or a column out of bounds: columns are from"
            f" {least} to {most}, starts from {first} to {last}, of {columns.numel()} values"
        )
    with warning_filters.ignored("Sparse CSR tensor support is in beta"):
        return torch.sparse_csr_tensor(starts, columns, values, (starts.numel() - 1, width), check_invariants=False)


def _csr_matmul(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    return _matrix(starts, columns, values, dense.shape[0]) @ dense


def _csr_transposed_matmul(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor, n: int) -> Tensor:
    by_column = _matrix(starts, columns, values, n).to_sparse_csc()
    return _matrix(by_column.ccol_indices(), by_column.row_indices(), by_column.values(), dense.shape[0]) @ dense


def _csr_sampled_matmul(starts: Tensor, columns: Tensor, a: Tensor, b: Tensor) -> Tensor:
    out = a.new_zeros(columns.numel())
    values = torch.sparse.sampled_addmm(_matrix(starts, columns, out, b.shape[0]), a, b.t(), beta=0.0).values()
    if values.numel() == out.numel():
        return values
    out[: values.numel()] = values
    return out


LIBRARY.define("csr_matmul(Tensor starts, Tensor columns, Tensor values, Tensor dense) -> Tensor")
LIBRARY.impl("csr_matmul", _csr_matmul, "CPU")
LIBRARY.impl("csr_matmul", lambda s, c, v, dense: dense.new_empty((s.shape[0] - 1, dense.shape[1])), "Meta")
LIBRARY.define("csr_transposed_matmul(Tensor starts, Tensor columns, Tensor values, Tensor dense, int n) -> Tensor")
LIBRARY.impl("csr_transposed_matmul", _csr_transposed_matmul, "CPU")
LIBRARY.impl("csr_transposed_matmul", lambda s, c, v, dense, n: dense.new_empty((n, dense.shape[1])), "Meta")
LIBRARY.define("csr_sampled_matmul(Tensor starts, Tensor columns, Tensor a, Tensor b) -> Tensor")
LIBRARY.impl("csr_sampled_matmul", _csr_sampled_matmul, "CPU")
LIBRARY.impl("csr_sampled_matmul", lambda s, c, a, b: a.new_empty(c.shape), "Meta")
