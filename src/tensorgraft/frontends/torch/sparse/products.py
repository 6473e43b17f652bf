"""Products of compressed sparse tensors: kernels on their parts."""

from __future__ import annotations

import math

import torch

from tensorgraft.frontends.torch.sparse.coo_kernels import matmul
from tensorgraft.frontends.torch.sparse.operators import csr_matmul, csr_transposed_matmul
from tensorgraft.frontends.torch.sparse.structure import (
    BLOCKED,
    blocks,
    compressed_indices,
    elements,
    plain_indices,
    with_values,
)

Tensor = torch.Tensor


def times_dense(rows: Tensor, columns: Tensor, values: Tensor, height: int, x: Tensor) -> Tensor:
    """Return the product (height, m) of a matrix with `values` (nnz,) at rows and columns and a dense one (n, m)."""
    zeros = x.new_zeros((height, x.size(1)))
    return zeros.index_add(0, rows, values.unsqueeze(1) * x.index_select(0, columns))


def blocks_times_dense(rows: Tensor, columns: Tensor, values: Tensor, height: int, x: Tensor) -> Tensor:
    """Return the product (height, m) of a matrix with blocks `values` (nnz, p, q) at rows and columns of blocks and a
    dense one (n, m)."""
    _, p, q = values.shape
    products = values @ x.reshape(-1, q, x.size(1)).index_select(0, columns)
    zeros = x.new_zeros((height // p, p, x.size(1)))
    return zeros.index_add(0, rows, products).reshape(height, x.size(1))


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, of which at least one is sparse: strided, or COO if both are sparse."""
    if a.layout is torch.strided:
        return matrix_product(b.transpose(0, 1), a.transpose(0, 1)).transpose(0, 1)
    if b.layout is torch.strided:
        if a.layout in (torch.sparse_csr, torch.sparse_csc) and a.dtype is b.dtype and a.dtype is not torch.bool:
            parts = compressed_indices(a), plain_indices(a), a.values()
            by_row = a.layout is torch.sparse_csr
            return csr_matmul(*parts, b) if by_row else csr_transposed_matmul(*parts, b, a.size(0))
        found = blocks(a) if a.layout in BLOCKED else elements(a)
        multiply = blocks_times_dense if a.layout in BLOCKED else times_dense
        return multiply(found.rows, found.columns, found.values, a.size(0), b)
    return matmul(a.to_sparse(), b.to_sparse())


def mm(a: Tensor, b: Tensor) -> Tensor:
    return matrix_product(a, b)


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = matrix_product(a, b)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    if x.layout is torch.strided:
        product = product if product.layout is torch.strided else product.to_dense()
        return product + (x if beta == 1 else x * beta)
    if product.layout is torch.strided:
        return product + x.to_dense() * beta
    x = x.to_sparse().coalesce()  # CSC is not in the order of rows
    return product + (x if beta == 1 else x * beta)


def addmv(x: Tensor, a: Tensor, v: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = matrix_product(a, v.unsqueeze(1)).squeeze(1)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta)


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of a batch of compressed matrices and dense ones, which PyTorch computes on CUDA only."""
    if x.layout is torch.strided:
        return bmm(y.transpose(1, 2), x.transpose(1, 2)).transpose(1, 2)
    if y.layout is not torch.strided or x.dim() != 3 or y.dim() != 3 or x.dense_dim():
        raise RuntimeError(f"bmm: a batch of sparse and one of dense matrices expected, got {_kind(x)} and {_kind(y)}")
    if x.size(0) != y.size(0) or x.size(2) != y.size(1):
        raise RuntimeError(f"bmm: sizes {list(x.size())} and {list(y.size())} do not fit")
    if x.dtype != y.dtype:
        raise RuntimeError(f"expected scalar type {x.dtype} but found {y.dtype}")
    n, height, width = x.size()
    at = elements(x)
    flat = y.reshape(n * width, y.size(2))
    product = times_dense(at.batch * height + at.rows, at.batch * width + at.columns, at.values, n * height, flat)
    return product.reshape(n, height, y.size(2))


def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return `beta * x + alpha * bmm(a, b)`; `x` broadcasts, and is not read if `beta` is 0."""
    if not x.dtype == a.dtype == b.dtype:
        raise RuntimeError(f"Input dtypes must be the same, got: input {x.dtype}, batch1: {a.dtype}, batch2: {b.dtype}")
    if x.layout is not torch.strided:
        raise RuntimeError(f"baddbmm: expected a strided input, got {_kind(x)}")
    product = bmm(a, b)
    x = x.expand(product.size())
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta)


def _kind(x: Tensor) -> str:
    return f"{list(x.size())} ({x.layout})"


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """Solve a triangular system with a CSR or BSR matrix as a dense one; NaN if that has no elements. The second result
    is empty."""
    if b.layout is not torch.strided:
        raise RuntimeError(f"triangular_solve: expected a strided right-hand side, got {_kind(b)}")
    if not a._nnz():
        return torch.full_like(b, math.nan), b.new_empty(0)
    dense = a.to_dense()
    dense, upper = (dense.transpose(0, 1), not upper) if transpose else (dense, upper)
    return torch.linalg.solve_triangular(dense, b, upper=upper, unitriangular=unitriangular), b.new_empty(0)


def linear_backward(
    x: Tensor, grad: Tensor, weight: Tensor, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a linear layer of which the input or the weight is sparse."""
    count = math.prod(x.shape[:-1])
    columns = grad.reshape(count, 1 if weight.dim() == 1 else weight.size(0))
    rows = x if x.layout is not torch.strided else x.reshape(count, x.size(-1))
    matrix = weight.unsqueeze(0) if weight.dim() == 1 else weight
    of_x = torch.mm(columns, matrix.conj()).reshape(x.size()) if output_mask[0] else None
    of_weight = torch.mm(rows.t().conj(), columns).t().reshape(weight.shape) if output_mask[1] else None
    return of_x, of_weight, columns.sum(0) if output_mask[2] else None


# ---- products with a reduction other than the sum --------------------------------------------------------------------


def mm_reduce(a: Tensor, x: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Return the reduction ("sum", "mean", "amax", "amin") of each row's products, and for extremes which element of
    `a` gives them, the number of elements where a row has none."""
    at = elements(a)
    products = at.values.unsqueeze(1) * x.index_select(0, at.columns)
    zeros = products.new_zeros((a.size(0), x.size(1)))
    if reduce == "sum":
        return zeros.index_add(0, at.rows, products), at.rows.new_empty(0)
    rows = at.rows.unsqueeze(1).expand_as(products)
    result = zeros.scatter_reduce(0, rows, products, reduce, include_self=False)
    if reduce == "mean":
        return result, at.rows.new_empty(0)
    count = at.rows.numel()
    numbers = torch.arange(count, device=x.device).unsqueeze(1).expand_as(products)
    candidates = torch.where(products == result.index_select(0, at.rows), numbers, count)
    none = torch.full_like(zeros, count, dtype=torch.int64)
    return result, none.scatter_reduce(0, rows, candidates, "amin")


def mm_reduce_backward(
    a: Tensor, grad: Tensor, x: Tensor, reduce: str, arg: Tensor, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `mm_reduce` for the values of `a` and for `x`."""
    at = elements(a)
    at_row = grad.index_select(0, at.rows)
    if reduce == "mean":
        counts = torch.zeros(a.size(0), dtype=grad.dtype, device=grad.device)
        at_row = at_row / counts.index_add(0, at.rows, torch.ones_like(at.values)).index_select(0, at.rows).unsqueeze(1)
    elif reduce != "sum":
        numbers = torch.arange(at.rows.numel(), device=grad.device).unsqueeze(1)
        at_row = torch.where(arg.index_select(0, at.rows) == numbers, at_row, 0)
    of_values = of_x = None
    if output_mask[0]:
        of_values = with_values(a, (at_row * x.index_select(0, at.columns)).sum(1))
    if output_mask[1]:
        of_x = torch.zeros_like(x).index_add(0, at.columns, at_row * at.values.unsqueeze(1))
    return of_values, of_x
