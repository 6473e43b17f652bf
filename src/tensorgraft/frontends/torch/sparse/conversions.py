"""Results in the layout, dtypes and block size that are expected of them."""

from __future__ import annotations

import math

import torch

from tensorgraft.frontends.torch.sparse.bounded import check_countable
from tensorgraft.frontends.torch.sparse.structure import (
    Elements,
    TensorMetadata,
    elements,
    from_elements,
    is_compressed,
    keys_of,
    spec_of,
    with_values,
)

Tensor = torch.Tensor


def as_specified(result: Tensor | Elements, spec: TensorMetadata) -> Tensor:
    """Return a tensor with the metadata `spec` of a tensor or of elements, of which no two may be in one place if
    `spec` is sparse."""
    if isinstance(result, Elements):
        return _of_elements(result, spec)
    if spec_of(result) == spec:
        return result
    if is_compressed(result) and spec_of(result)._replace(dtype=spec.dtype) == spec:
        return with_values(result, result.values().to(spec.dtype))
    if spec.layout is torch.strided:
        return (result if result.layout is torch.strided else result.to_dense()).to(spec.dtype)
    return _of_elements(elements(result.to_sparse() if result.layout is torch.strided else result), spec)


def _of_elements(found: Elements, spec: TensorMetadata) -> Tensor:
    found = Elements(found.batch, found.rows, found.columns, found.values.to(spec.dtype))
    if spec.layout is torch.strided:
        return dense(found, spec)
    if spec.layout is torch.sparse_coo:
        indices = [*_unravelled(found.batch, spec.batch), found.rows, found.columns]
        return torch.sparse_coo_tensor(torch.stack(indices), found.values, spec.size, check_invariants=False)
    return from_elements(found, spec)


def _unravelled(numbers: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    return list(torch.unravel_index(numbers, shape)) if shape else []


def dense(found: Elements, spec: TensorMetadata) -> Tensor:
    """Return the sum of elements in each place of a strided tensor."""
    height, width = spec.matrix
    flat = found.values.new_zeros((math.prod(spec.batch) * height * width, *spec.dense))
    return flat.index_add(0, keys_of(found, spec._replace(layout=torch.sparse_csr)), found.values).reshape(spec.size)


def collected(found: Elements, spec: TensorMetadata, reduce: str = "sum") -> Elements:
    """Return elements in the order of rows, with the sum or product ("sum", "prod") of those in one place."""
    all_keys = keys_of(found, spec._replace(layout=torch.sparse_csr))
    check_countable(all_keys)
    keys, group = torch.unique(all_keys, return_inverse=True)
    values, shape = found.values, (keys.numel(), *found.values.shape[1:])
    if reduce == "sum":
        total = values.new_zeros(shape).index_add(0, group, values)
    else:
        total = values.new_ones(shape).scatter_reduce(0, group, values, reduce)
    height, width = spec.matrix
    line = torch.div(keys, width, rounding_mode="floor")
    return Elements(torch.div(line, height, rounding_mode="floor"), line % height, keys % width, total)


def elements_of(x: Tensor) -> Elements:
    """Return the elements of a tensor of any layout: of a strided one, those that are not zero."""
    if x.layout is torch.strided:
        x = x.to_sparse()
    return elements(x if is_compressed(x) else x.coalesce())
