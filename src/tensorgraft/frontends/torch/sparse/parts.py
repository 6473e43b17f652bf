"""Sparse tensors as parts, which are ordinary tensors, and a form, which is static."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.dispatch.absent_layouts import SPARSE
from tensorgraft.frontends.torch.sparse.structure import (
    BY_ROW,
    LAYOUTS,
    TensorMetadata,
    compressed,
    compressed_indices,
    elements,
    plain_indices,
    spec_of,
)
from tensorgraft.hub.sparse_arrays import SparseArray

Tensor = torch.Tensor


class SparseForm(NamedTuple):
    """All of a sparse tensor but its parts. Their shapes contain the number of stored values."""

    metadata: TensorMetadata
    coalesced: bool

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the parts, which are those of the tensor's methods."""
        if self.metadata.layout not in LAYOUTS:
            return "indices", "values"
        by_row = self.metadata.layout in BY_ROW
        return ("crow_indices", "col_indices", "values") if by_row else ("ccol_indices", "row_indices", "values")

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return len(self.part_names)

    def build(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sparse tensor of these parts, which are not checked."""
        if self.metadata.layout in LAYOUTS:
            compressed_part, plain_part, values = parts
            return compressed(compressed_part, plain_part, values, self.metadata)
        indices, values = parts
        return coordinate_tensor(indices, values, self.metadata.size, self.coalesced)

    def differentiable(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sparse tensor of these parts, which are not checked, with the history of its values."""
        if self.metadata.layout not in LAYOUTS:
            return self.build(parts)
        make: Any = torch.sparse_compressed_tensor
        return make(*parts, self.metadata.size, layout=self.metadata.layout, check_invariants=False)


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


# ---- for other frameworks --------------------------------------------------------------------------------------------


def named_parts(name: str, x: Tensor) -> dict[str, Tensor]:
    """Return the parts of a sparse parameter or buffer by their names in a state, `name.values`; another tensor by its
    own."""
    if not is_sparse(x):
        return {name: x}
    return {f"{name}.{part}": t for part, t in zip(form_of(x).part_names, parts_of(x), strict=True)}


def named_gradient(name: str, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the values of a sparse parameter, `name.values`, from one of any layout for the whole;
    that of another parameter by its own name."""
    if not is_sparse(x):
        return {name: gradient}
    *_, (values_name, values) = named_parts(name, x.detach()).items()
    places, form = elements(x.detach()), form_of(x).metadata
    matrices = gradient.to_dense().reshape(-1, *form.matrix, *form.dense)
    return {values_name: matrices[places.batch, places.rows, places.columns].reshape(values.shape)}


def of_sparse_array(x: SparseArray) -> Tensor:
    """Return the sparse tensor of parts that are tensors."""
    layout = _LAYOUTS_BY_NAME[x.layout]
    parts = list(x.parts)
    if layout is torch.sparse_coo:
        parts[0] = parts[0].t().long()
        form = SparseForm(TensorMetadata(layout, tuple(x.shape), parts[1].dtype), x.is_coalesced)
    else:
        form = SparseForm(TensorMetadata(layout, tuple(x.shape), parts[2].dtype), True)
    return form.differentiable(parts)


def sparse_array_of(x: Tensor) -> SparseArray:
    """Return a sparse tensor as parts that are tensors, with the history of its values. Raises RuntimeError for
    a tensor with history that is not coalesced."""
    *indices, values = parts_of(x)
    if x.requires_grad:
        if x.layout is torch.sparse_coo and not x.is_coalesced():
            raise RuntimeError(
                f"a sparse tensor of shape {tuple(x.shape)} that is not coalesced cannot be returned with its history:"
                " return its indices and values, or x.detach()"
            )
        values = x.values()
    name = next(name for name, layout in _LAYOUTS_BY_NAME.items() if layout is x.layout)
    if name == "coo":
        return SparseArray(name, tuple(x.shape), x.is_coalesced(), (indices[0].t().contiguous(), values))
    return SparseArray(name, tuple(x.shape), True, (*indices, values))


_LAYOUTS_BY_NAME = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
