"""Indices of compressed sparse tensors: row pointers of coordinates, and back."""

from __future__ import annotations

import math
from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


@kernel("_convert_indices_from_coo_to_csr")
def _convert_indices_from_coo_to_csr(xp: Any, rows: Array, size: int, out_int32: bool = False) -> Array:
    """Return the number of elements in the rows before each of `size` + 1; `rows` (nnz,) ascends."""
    before = xp.searchsorted(rows, xp.iota(size + 1, xp.dtype_of(rows)))
    return xp.astype(before, dtypes.int32 if out_int32 else dtypes.int64)


@kernel("_convert_indices_from_csr_to_coo")
def _convert_indices_from_csr_to_coo(
    xp: Any, crow_indices: Array, col_indices: Array, out_int32: bool = False, transpose: bool = False
) -> Array:
    """Return coordinates (batch dims + 2, N) of row pointers (*batch, rows + 1) and columns (*batch, nnz)."""
    *batch, count = xp.shape(col_indices)
    dtype = xp.dtype_of(crow_indices)
    shape = (*batch, count)
    positions = xp.broadcast_to(xp.iota(count, dtype), shape)
    rows = xp.subtract(xp.searchsorted(crow_indices, positions, right=True), 1)
    coordinates = [xp.astype(rows, dtype), xp.astype(col_indices, dtype)]
    if transpose:
        coordinates.reverse()
    numbers = [xp.reshape(xp.iota(n, dtype), (n, *(1,) * (len(shape) - 1 - i))) for i, n in enumerate(batch)]
    flat = (math.prod(shape),)
    lines = [xp.reshape(xp.broadcast_to(x, shape), flat) for x in (*numbers, *coordinates)]
    return xp.astype(xp.stack(lines, 0), dtypes.int32 if out_int32 else dtypes.int64)
