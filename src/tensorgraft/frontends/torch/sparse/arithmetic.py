"""Elementwise operations, masks and reductions of compressed sparse tensors: kernels on their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.sparse.bounded import check_countable
from tensorgraft.frontends.torch.sparse.conversions import collected, elements_of
from tensorgraft.frontends.torch.sparse.coo_kernels import matches
from tensorgraft.frontends.torch.sparse.operators import csr_sampled_matmul
from tensorgraft.frontends.torch.sparse.structure import (
    Elements,
    TensorMetadata,
    compressed_indices,
    elements,
    is_compressed,
    keys_of,
    plain_indices,
    same_structure,
    spec_of,
    with_values,
)

Tensor = torch.Tensor


def add(x: Tensor, y: Tensor, *, alpha: float = 1) -> Tensor | Elements:
    """Return the sum of a strided and a compressed tensor (strided), or of two compressed ones (elements)."""
    if x.layout is torch.strided:
        return torch.add(x, y.to_dense(), alpha=alpha)
    if y.layout is torch.strided:  # PyTorch multiplies the sparse tensor by alpha, although it is not the second one
        return torch.add(y, x.to_dense(), alpha=alpha)
    dtype = torch.result_type(x, y)
    if same_structure(x, y):
        return with_values(x, torch.add(x.values().to(dtype), y.values().to(dtype), alpha=alpha))
    first, second = elements_of(x), elements_of(y)
    added = second.values.to(dtype) if alpha == 1 else second.values.to(dtype) * alpha
    both = Elements(
        torch.cat([first.batch, second.batch]),
        torch.cat([first.rows, second.rows]),
        torch.cat([first.columns, second.columns]),
        torch.cat([first.values.to(dtype), added]),
    )
    return collected(both, spec_of(x))


def mul(x: Tensor, y: Tensor) -> Tensor | Elements:
    """Return the product with a number, a strided tensor that broadcasts to the other, or another sparse tensor."""
    if x.layout is torch.strided:
        x, y = y, x
    if y.layout is torch.strided and not y.dim():
        return with_values(x, x.values() * y)
    if same_structure(x, y):
        return with_values(x, x.values() * y.values())
    spec = spec_of(x)
    is_ordered = y.layout in (x.layout, torch.strided) or (y.layout is torch.sparse_coo and y.is_coalesced())
    if not is_ordered and x._nnz():
        x, y = y, x.to_dense()  # PyTorch's product has the elements of the operand that is not in order
    found = elements_of(x)
    if y.layout is torch.strided:
        others = y.expand(x.size()).reshape(math.prod(spec.batch), *spec.matrix, *spec.dense)
        factors = others[found.batch, found.rows, found.columns]
        return Elements(found.batch, found.rows, found.columns, found.values * factors)
    other = elements_of(y)
    keys, order = torch.sort(_keys(other, spec))
    at, is_found = matches(keys, _keys(found, spec))
    check_countable(keys)
    common = is_found.nonzero().squeeze(1)
    values = found.values[common] * other.values[order[at[common]]]
    return Elements(found.batch[common], found.rows[common], found.columns[common], values)


def _keys(found: Elements, spec: TensorMetadata) -> Tensor:
    return keys_of(found, spec._replace(layout=torch.sparse_csr))


def sparse_mask(x: Tensor, mask: Tensor) -> Tensor | Elements:
    """Return the values of `x` at the elements of `mask`: with its structure for a strided and a COO tensor, 0 where
    that has no element; with the common elements for a compressed one."""
    if is_compressed(x):
        return mul(x, with_values(mask, torch.ones_like(mask.values())))
    at, spec = elements(mask), spec_of(mask)
    if x.layout is torch.sparse_coo:
        x = x.to_dense()
    values = x.reshape(math.prod(spec.batch), *spec.matrix, *spec.dense)[at.batch, at.rows, at.columns]
    return with_values(mask, values.reshape(mask.values().shape))


def sampled_addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return `beta * x + alpha * (a @ b)` at the elements of `x`."""
    if x.dim() == 2 and x.layout in (torch.sparse_csr, torch.sparse_csc):
        rows, columns = (a, b.transpose(0, 1)) if x.layout is torch.sparse_csr else (b.transpose(0, 1), a)
        values = csr_sampled_matmul(compressed_indices(x), plain_indices(x), rows, columns) * alpha
        return with_values(x, values if beta == 0 else values + x.values() * beta)
    at, spec = elements(x), spec_of(x)
    (height, width), count = spec.matrix, math.prod(spec.batch)
    left = a.reshape(count, height, a.size(-1))[at.batch, at.rows]
    right = b.transpose(-2, -1).reshape(count, width, b.size(-2))[at.batch, at.columns]
    values = ((left * right).sum(1) * alpha).reshape(x.values().shape)
    return with_values(x, values if beta == 0 else values + x.values() * beta)


# ---- reductions ------------------------------------------------------------------------------------------------------


def reduced(reduce: str, x: Tensor, dim: Sequence[int], keepdim: bool = False, dtype: Any = None) -> Elements:
    """Return the sums or products ("sum", "prod") of the specified elements along dimensions of a CSR matrix."""
    found = elements(x)
    dims = {d % x.dim() for d in dim}
    nothing = torch.zeros_like(found.rows)
    rows, columns = nothing if 0 in dims else found.rows, nothing if 1 in dims else found.columns
    values = found.values if dtype is None else found.values.to(dtype)
    if dtype is None and not values.is_floating_point() and not values.is_complex():
        values = values.long()
    return collected(Elements(found.batch, rows, columns, values), spec_of(x), reduce)
