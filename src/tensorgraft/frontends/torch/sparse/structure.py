"""Structure of compressed sparse tensors (CSR, CSC, BSR, BSC): their parts, and their elements as coordinates.

A compressed tensor of shape (*batch, rows, columns, *dense) has compressed indices (*batch, n + 1), plain indices
(*batch, nnz) and values (*batch, nnz, *block, *dense). The compressed dimension is that of rows in CSR and BSR, that of
columns in CSC and BSC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.sparse.bounded import check_countable

Tensor = torch.Tensor

BY_ROW = frozenset({torch.sparse_csr, torch.sparse_bsr})
BLOCKED = frozenset({torch.sparse_bsr, torch.sparse_bsc})
LAYOUTS = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


class TensorMetadata(NamedTuple):
    """The metadata of a tensor of any layout; `blocksize`, `dense_dim` and `index_dtype` of a sparse one."""

    layout: torch.layout
    size: tuple[int, ...]
    dtype: torch.dtype
    index_dtype: torch.dtype = torch.int64
    blocksize: tuple[int, int] = (1, 1)
    dense_dim: int = 0

    @property
    def batch(self) -> tuple[int, ...]:
        return self.size[: len(self.size) - 2 - self.dense_dim]

    @property
    def matrix(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        n = len(self.batch)
        return self.size[n], self.size[n + 1]

    @property
    def dense(self) -> tuple[int, ...]:
        return self.size[len(self.size) - self.dense_dim :]


@dataclass(frozen=True)
class Elements:
    """Elements of a batch of matrices: int64 vectors (N,) of their batches (counted in row-major order), rows and
    columns, and values (N, *dense)."""

    batch: Tensor
    rows: Tensor
    columns: Tensor
    values: Tensor


def is_compressed(x: object) -> bool:
    return isinstance(x, Tensor) and x.layout in LAYOUTS


def compressed_indices(x: Tensor) -> Tensor:
    return x.crow_indices() if x.layout in BY_ROW else x.ccol_indices()


def plain_indices(x: Tensor) -> Tensor:
    return x.col_indices() if x.layout in BY_ROW else x.row_indices()


def spec_of(x: Tensor) -> TensorMetadata:
    """Return the metadata of a tensor."""
    if x.layout is torch.sparse_coo:
        return TensorMetadata(x.layout, tuple(x.size()), x.dtype, dense_dim=x.dense_dim())
    if x.layout not in LAYOUTS:
        return TensorMetadata(x.layout, tuple(x.size()), x.dtype)
    indices, values = plain_indices(x), x.values()
    block = tuple(values.shape[indices.dim() : indices.dim() + 2]) if x.layout in BLOCKED else (1, 1)
    return TensorMetadata(x.layout, tuple(x.size()), x.dtype, indices.dtype, block, x.dense_dim())  # type: ignore[arg-type]


def compressed(compressed_part: Tensor, plain_part: Tensor, values: Tensor, spec: TensorMetadata) -> Tensor:
    """Return a compressed tensor of its parts, which are not checked."""
    return torch.ops.aten._sparse_compressed_tensor_unsafe(
        compressed_part.to(spec.index_dtype),
        plain_part.to(spec.index_dtype),
        values,
        spec.size,
        dtype=values.dtype,
        layout=spec.layout,
        device=values.device,
    )


def with_values(x: Tensor, values: Tensor) -> Tensor:
    """Return a compressed tensor with the structure of `x` and other values."""
    return compressed(compressed_indices(x), plain_indices(x), values, spec_of(x))


def same_structure(x: Tensor, y: Tensor) -> bool:
    """Return True if two compressed tensors of one layout, or two coalesced ones, have the same indices in memory."""
    if x.layout is not y.layout or x.size() != y.size() or x.layout is torch.strided or x._nnz() != y._nnz():
        return False
    if x.layout is torch.sparse_coo:
        return x.is_coalesced() and y.is_coalesced() and _same_memory(x._indices(), y._indices())
    parts = [(part(x), part(y)) for part in (compressed_indices, plain_indices)]
    return all(_same_memory(a, b) for a, b in parts) and spec_of(x).blocksize == spec_of(y).blocksize


def _same_memory(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors are views alike of one storage, or in a trace copies of one."""
    capture = state.now.capture
    if capture is not None and capture.sparse is not None:
        return bool(capture.sparse.indices.identity(x) == capture.sparse.indices.identity(y))
    if x.storage_offset() != y.storage_offset() or x.shape != y.shape or x.stride() != y.stride():
        return False
    return cell_of(x) is cell_of(y)


def resized(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return a compressed tensor of the same parts and another size."""
    return compressed(compressed_indices(x), plain_indices(x), x.values(), spec_of(x)._replace(size=size))


def expanded_indices(indices: Tensor, count: int) -> Tensor:
    """Return the positions in the compressed dimension of `count` elements per batch, for compressed indices (*batch,
    n + 1)."""
    positions = torch.arange(count, dtype=indices.dtype, device=indices.device)
    positions = positions.expand(*indices.shape[:-1], count).contiguous()
    return torch.searchsorted(indices.contiguous(), positions, right=True) - 1


def blocks(x: Tensor) -> Elements:
    """Return the blocks of a compressed tensor; values are (N, *block, *dense), rows and columns those of blocks."""
    plain = plain_indices(x)
    *batch, count = plain.shape
    number = math.prod(batch)
    major = expanded_indices(compressed_indices(x), count).reshape(-1)
    minor = plain.reshape(-1).long()
    batches = torch.arange(number, device=x.device).repeat_interleave(count, output_size=number * count)
    values = x.values()
    values = values.reshape(number * count, *values.shape[len(batch) + 1 :])
    rows, columns = (major, minor) if x.layout in BY_ROW else (minor, major)
    return Elements(batches, rows, columns, values)


def elements(x: Tensor) -> Elements:
    """Return the specified elements of a sparse tensor; those of blocks one by one."""
    if x.layout is torch.sparse_coo:
        indices = x._indices()
        batch = torch.zeros_like(indices[0])
        for row, n in zip(indices[:-2], x.size(), strict=False):
            batch = batch * n + row
        return Elements(batch, indices[-2], indices[-1], x._values())
    found = blocks(x)
    if x.layout not in BLOCKED:
        return found
    height, width = spec_of(x).blocksize
    shape = (found.rows.numel(), height, width)
    down, across = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    rows = (found.rows[:, None, None] * height + down[:, None]).expand(shape)
    columns = (found.columns[:, None, None] * width + across).expand(shape)
    batch = found.batch[:, None, None].expand(shape)
    values = found.values.reshape(math.prod(shape), *found.values.shape[3:])
    return Elements(batch.reshape(-1), rows.reshape(-1), columns.reshape(-1), values)


def keys_of(found: Elements, spec: TensorMetadata) -> Tensor:
    """Return one int64 for each element, in the order of the layout."""
    height, width = spec.matrix
    if spec.layout in BY_ROW or spec.layout is torch.sparse_coo:
        return (found.batch * height + found.rows) * width + found.columns
    return (found.batch * width + found.columns) * height + found.rows


def from_elements(found: Elements, spec: TensorMetadata) -> Tensor:
    """Return a compressed tensor of elements, of which no two are in one place.

    Raises RuntimeError if the batches have different numbers of elements.
    """
    if spec.layout in BLOCKED:
        return _from_blocks(*_collected(found, spec), spec)
    order = torch.argsort(keys_of(found, spec), stable=True)
    sorted_elements = Elements(found.batch[order], found.rows[order], found.columns[order], found.values[order])
    return _from_blocks(sorted_elements, spec.matrix, spec)


def _collected(found: Elements, spec: TensorMetadata) -> tuple[Elements, tuple[int, int]]:
    """Return the blocks that contain elements, in the order of the layout, and how many blocks a matrix has."""
    (height, width), (rows, columns) = spec.blocksize, spec.matrix
    shape = rows // height, columns // width
    row, column = _quotient(found.rows, height), _quotient(found.columns, width)
    grid = spec._replace(size=(*spec.batch, *shape, *spec.dense))
    all_keys = keys_of(Elements(found.batch, row, column, found.values), grid)
    check_countable(all_keys)
    keys, block = torch.unique(all_keys, return_inverse=True)
    values = found.values.new_zeros((keys.numel(), height, width, *spec.dense))
    values = values.index_put((block, found.rows - row * height, found.columns - column * width), found.values)
    by_row = spec.layout in BY_ROW
    major_count, minor_count = shape if by_row else shape[::-1]
    minor, rest = keys % minor_count, _quotient(keys, minor_count)
    major, batch = rest % major_count, _quotient(rest, major_count)
    row, column = (major, minor) if by_row else (minor, major)
    return Elements(batch, row, column, values), shape


def _quotient(x: Tensor, n: int) -> Tensor:
    return torch.div(x, n, rounding_mode="floor")


def _from_blocks(found: Elements, grid: tuple[int, int], spec: TensorMetadata) -> Tensor:
    """Return a compressed tensor of blocks in the order of the layout; `grid` is their number in each dimension."""
    by_row = spec.layout in BY_ROW
    count = grid[0] if by_row else grid[1]
    major, minor = (found.rows, found.columns) if by_row else (found.columns, found.rows)
    number = math.prod(spec.batch)
    line = found.batch * count + major
    ends = torch.searchsorted(line, torch.arange(number * count, device=line.device), right=True)
    ends = ends.reshape(number, count)
    starts = torch.cat([ends.new_zeros((1,)), ends[:, -1]])[:number, None] if count else ends.new_zeros((number, 1))
    offsets = torch.cat([starts, ends], 1) - starts
    if number > 1 and bool((offsets[:, -1] != offsets[0, -1]).any()):
        raise RuntimeError("Expect the same number of specified elements per batch.")
    per_batch = minor.numel() // number if number else 0
    return compressed(
        offsets.reshape(*spec.batch, count + 1),
        minor.reshape(*spec.batch, per_batch),
        found.values.reshape(*spec.batch, per_batch, *found.values.shape[1:]),
        spec,
    )
