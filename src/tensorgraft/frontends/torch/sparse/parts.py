"""Sparse tensors as parts, which are ordinary tensors, and a form, which is static."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tensorgraft.frontends.torch.dispatch.absent_layouts import SPARSE
from tensorgraft.frontends.torch.sparse.structure import (
    LAYOUTS,
    TensorMetadata,
    compressed,
    compressed_indices,
    plain_indices,
    spec_of,
)

Tensor = torch.Tensor


class SparseForm(NamedTuple):
    """All of a sparse tensor but its parts. Their shapes contain the number of stored values."""

    metadata: TensorMetadata
    coalesced: bool

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return 3 if self.metadata.layout in LAYOUTS else 2

    def build(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sparse tensor of these parts, which are not checked."""
        if self.metadata.layout in LAYOUTS:
            compressed_part, plain_part, values = parts
            return compressed(compressed_part, plain_part, values, self.metadata)
        indices, values = parts
        return coordinate_tensor(indices, values, self.metadata.size, self.coalesced)


def coordinate_tensor(indices: Tensor, values: Tensor, size: Sequence[int], coalesced: bool) -> Tensor:
    """Return a sparse tensor (COO) of indices (sparse dims, nonzeros) and values (nonzeros, ...), which are not
    checked."""
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.size(0),
        values.dim() - 1,
        list(size),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=coalesced,
    )


def is_sparse(x: object) -> bool:
    if not isinstance(x, Tensor):
        return False
    if x.__class__ is Tensor:
        return x.layout in SPARSE
    with torch._C.DisableTorchFunctionSubclass():  # a class is told of the program's calls alone
        return x.layout in SPARSE


def form_of(x: Tensor) -> SparseForm:
    return SparseForm(spec_of(x), x.layout is torch.sparse_coo and x.is_coalesced())


def parts_of(x: Tensor) -> tuple[Tensor, ...]:
    """Return (indices, values), or (compressed indices, plain indices, values), without history."""
    with torch.no_grad():
        if x.layout is torch.sparse_coo:
            return x._indices(), x._values()
        return compressed_indices(x), plain_indices(x), x.values()
