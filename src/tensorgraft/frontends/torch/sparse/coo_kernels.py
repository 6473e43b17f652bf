"""Kernels for sparse tensors (COO) of the device, composed of ordinary operators on their indices and values.

There is a kernel where PyTorch's own for the CPU reads memory; its other kernels are composed of operators themselves
(`coo`). Indices of the sparse dimensions are flattened to one key for each element wherever they are compared.
Elements in one place are summed by `index_add`. The nonzeros of a sum of tensors that are not coalesced are
concatenated, as they are on CUDA.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.sparse.bounded import check_countable, coalesced_parts, masked, within_size
from tensorgraft.frontends.torch.sparse.operators import csr_matmul
from tensorgraft.frontends.torch.sparse.parts import coordinate_tensor
from tensorgraft.frontends.torch.sparse.structure import same_structure

Tensor = torch.Tensor
# {operator: kernel}; a kernel that returns None leaves the call to PyTorch's
KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS[name] = fn
        return fn

    return register


def coo(indices: Tensor, values: Tensor, size: Sequence[int], coalesced: bool = False) -> Tensor:
    """Return a sparse tensor of indices (sparse dims, nonzeros) and values (nonzeros, ...)."""
    # PyTorch marks one element as coalesced
    return coordinate_tensor(indices, values, size, coalesced or values.size(0) < 2)


def keys_of(indices: Tensor, size: Sequence[int]) -> Tensor:
    """Return one int64 for each column of `indices`, in lexicographic order."""
    keys = indices.new_zeros(indices.size(1))
    for row, n in zip(indices, size, strict=True):
        keys = keys * n + row
    return keys


def _indices_of(keys: Tensor, size: Sequence[int]) -> Tensor:
    if not size:
        return keys.new_empty((0, keys.numel()))
    rows = []
    for n in reversed(size[1:]):
        rows.append(keys % n)
        keys = torch.div(keys, n, rounding_mode="floor")
    return torch.stack([keys, *rows[::-1]])  # a key beyond the size stays beyond it (`bounded`)


def _sparse_size(x: Tensor) -> torch.Size:
    return x.size()[: x.sparse_dim()]


def _keys(x: Tensor) -> Tensor:
    return keys_of(x._indices(), _sparse_size(x))


def matches(table: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each wanted key in a table of ascending keys, and a mask of those that exist."""
    if not table.numel():
        return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
    at = torch.searchsorted(table, keys).clamp(max=table.numel() - 1)
    return at, table[at] == keys


def _values_at(x: Tensor, keys: Tensor) -> Tensor:
    """Return the values of a coalesced tensor at keys, 0 where it has none."""
    table = _keys(x)
    if not table.numel():
        return x._values().new_zeros((keys.numel(), *x.size()[x.sparse_dim() :]))
    at, is_found = matches(table, keys)
    values = x._values()[at]
    return torch.where(column(is_found, values), values, torch.zeros_like(values))


def column(of: Tensor, values: Tensor) -> Tensor:
    """Return a vector for the nonzeros, to broadcast with their values."""
    return of.reshape(-1, *(1,) * (values.dim() - 1))


def _runs(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of positions one after the other: of which run each position is, and the position."""
    check_countable(lengths)
    run = torch.repeat_interleave(torch.arange(starts.numel(), device=starts.device), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    return run, torch.arange(run.numel(), device=starts.device) - first[run] + starts[run]


def _summed(base: Tensor, at: Tensor, values: Tensor) -> Tensor:
    if base.dtype is torch.bool:
        return base.to(torch.uint8).index_add(0, at, values.to(torch.uint8)) != 0
    return base.index_add(0, at, values)


def write(out: Tensor, result: Tensor) -> Tensor:
    """Give `out` the result, as PyTorch does for `out=` and in place. Raises RuntimeError for another kind of dtype."""
    if not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {out.dtype}")
    if not out.is_sparse:
        return out.resize_(result.size()).copy_(result)
    out.sparse_resize_and_clear_(result.size(), result.sparse_dim(), result.dense_dim())
    return out.copy_(result)


@kernel("_coalesce")
def _coalesce(x: Tensor) -> Tensor:
    size = _sparse_size(x)
    parts = coalesced_parts(x, all_keys := _keys(x), size, _indices_of)
    if parts is not None:
        indices, values = parts
        return coo(indices, values, x.size(), coalesced=True)
    keys, group = torch.unique(all_keys, return_inverse=True)
    values = _summed(x._values().new_zeros((keys.numel(), *x._values().shape[1:])), group, x._values())
    return coo(_indices_of(keys, size), values, x.size(), coalesced=True)


# ---- elementwise -----------------------------------------------------------------------------------------------------


@kernel("add.out")
def add_out(x: Tensor, y: Tensor, *, alpha: float = 1, out: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    added = y._values().to(dtype)
    if alpha != 1:
        added = added * alpha
    if not x.is_sparse:
        dense_size = y.size()[y.sparse_dim() :]
        rows = x.to(dtype).reshape(math.prod(_sparse_size(y)), *dense_size)
        return write(out, _summed(rows, *within_size(y, _keys(y), added)).reshape(x.size()))
    if same_structure(x, y):
        return write(out, coo(x._indices(), x._values().to(dtype) + added, x.size(), coalesced=True))
    indices = torch.cat([x._indices(), y._indices()], 1)
    total = coo(indices, torch.cat([x._values().to(dtype), added]), x.size())
    return write(out, total.coalesce() if x.is_coalesced() and y.is_coalesced() else total)


@kernel("mul.out")
def mul_out(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor | None:
    if not (x.is_sparse and y.is_sparse and x.dim() and y.dim()):
        return None
    if same_structure(x, y):
        return write(out, coo(x._indices(), x._values() * y._values(), x.size(), coalesced=True))
    if x.is_coalesced() and not y.is_coalesced():
        x, y = y, x
    y = y.coalesce()
    at, is_found = matches(_keys(y), _keys(x))
    check_countable(is_found)
    common = is_found.nonzero().squeeze(1)
    values = x._values()[common] * y._values()[at[common]]
    return write(out, coo(x._indices()[:, common], values, x.size(), x.is_coalesced()))


@kernel("sparse_mask")
def sparse_mask(x: Tensor, mask: Tensor) -> Tensor | None:
    if (values := masked(x, mask, _keys)) is not None:
        return coo(mask._indices(), values, x.size(), coalesced=True)
    if not x.is_sparse or x is mask or x.size() != mask.size() or x.sparse_dim() != mask.sparse_dim():
        return None
    return coo(mask._indices().clone(), _values_at(x.coalesce(), _keys(mask)), x.size(), mask.is_coalesced())


@kernel("_sparse_mask_projection")
def _sparse_mask_projection(x: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """Return the values of `x` where the mask has an element, 0 elsewhere; `accumulate_matches`: times how many it
    has."""
    ones_each = torch.ones(mask._indices().shape[1], dtype=torch.int64, device=x.device)
    counts = _values_at(coo(mask._indices(), ones_each, _sparse_size(mask)).coalesce(), _keys(x))
    if not accumulate_matches:
        counts = counts.clamp(max=1)
    values = x._values() * column(counts, x._values()).to(x.dtype)
    return coo(x._indices().clone(), values, x.size(), x.is_coalesced())


# ---- products --------------------------------------------------------------------------------------------------------


def _product(rows: Tensor, columns: Tensor, values: Tensor, height: int, dense: Tensor) -> Tensor:
    """Return the matrix (height, m) that nonzeros in rows and columns make of one (n, m)."""
    zeros = dense.new_zeros((height, dense.size(1)))
    return zeros.index_add(0, rows, values.unsqueeze(1) * dense.index_select(0, columns))


@kernel("hspmm")
def hspmm(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of a sparse and a dense matrix as a sparse tensor of the rows that are not empty."""
    check_countable(x._indices())
    rows, group = torch.unique(x._indices()[0], return_inverse=True)
    product = _product(group, x._indices()[1], x._values(), rows.numel(), y)
    return coo(rows.unsqueeze(0), product, (x.size(0), y.size(1)))


@kernel("sspaddmm.out")
def sspaddmm_out(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Tensor:
    """Return `beta * x + alpha * (a @ b)` as the elements of `x`, followed by the rows of the product."""
    product = hspmm(a, b)
    rows, values = product._indices()[0], product._values()
    columns = torch.arange(b.size(1), device=rows.device).repeat(rows.numel())
    indices = torch.stack([rows.repeat_interleave(b.size(1)), columns])
    total = values.reshape(-1) * alpha
    if x._nnz():  # `smm` has an empty one of another size
        indices, total = torch.cat([x._indices(), indices], 1), torch.cat([x._values() * beta, total])
    return write(out, coo(indices, total, (a.size(0), b.size(1))))


@kernel("addmm")
def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):  # as the CPU's kernel converts them
        beta, alpha = int(beta), int(alpha)
    rows, columns = mat1._indices()
    if mat1.is_coalesced() and mat2.dtype is not torch.bool:  # rows are in order
        starts = torch.searchsorted(rows.contiguous(), torch.arange(mat1.size(0) + 1, device=rows.device))
        product = csr_matmul(starts, columns, mat1._values(), mat2)
    else:
        product = _product(rows, columns, mat1._values(), mat1.size(0), mat2)
    if alpha != 1:
        product = product * alpha
    x = x.expand(product.size())
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


@kernel("bmm")
def bmm(x: Tensor, y: Tensor) -> Tensor:
    n, height, width = x.size()
    batch, rows, columns = x._indices()
    product = _product(
        batch * height + rows, batch * width + columns, x._values(), n * height, y.reshape(n * width, y.size(2))
    )
    return product.reshape(n, height, y.size(2))


@kernel("_sparse_sparse_matmul")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    y = y.coalesce()
    (rows, inner), (inner_of_y, columns) = x._indices(), y._indices()
    starts = torch.searchsorted(inner_of_y, inner)
    left, right = _runs(starts, torch.searchsorted(inner_of_y, inner, right=True) - starts)
    indices = torch.stack([rows[left], columns[right]])
    return coo(indices, x._values()[left] * y._values()[right], (x.size(0), y.size(1))).coalesce()


# ---- reductions and indexing -----------------------------------------------------------------------------------------


def _lines(x: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return the number of each nonzero's line along a sparse dimension, and how many lines there are."""
    other_dims = [d for d in range(x.sparse_dim()) if d != dim]
    keys = keys_of(x._indices()[other_dims], [x.size(d) for d in other_dims])
    check_countable(keys)
    lines, group = torch.unique(keys, return_inverse=True)
    return group, lines.numel()


def _softmax(x: Tensor, dim: int, half_to_float: bool, log: bool) -> Tensor:
    """Compute a softmax over the nonzeros alone: absent elements are minus infinity."""
    x, dim = x.coalesce(), dim % x.dim()
    v = x._values()
    if dim >= x.sparse_dim():
        values = (torch.log_softmax if log else torch.softmax)(v, dim - x.sparse_dim() + 1)
    else:
        group, n = _lines(x, dim)
        at = column(group, v).expand(v.size())
        greatest = v.new_full((n, *v.shape[1:]), -math.inf).scatter_reduce(0, at, v, "amax")
        shifted = v - greatest[group]
        total = greatest.new_zeros(greatest.size()).index_add(0, group, shifted.exp())[group]
        values = shifted - total.log() if log else shifted.exp() / total
    return coo(x._indices().clone(), values, x.size(), coalesced=True)


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, x: Tensor, log: bool) -> Tensor:
    y, dim = output._values(), dim % output.dim()
    g = _values_at(grad.coalesce(), _keys(output))
    weighted = g if log else g * y
    if dim >= output.sparse_dim():
        total = weighted.sum(dim - output.sparse_dim() + 1, keepdim=True)
    else:
        group, n = _lines(output, dim)
        total = y.new_zeros((n, *y.shape[1:])).index_add(0, group, weighted)[group]
    values = g - y.exp() * total if log else y * (g - total)
    return coo(output._indices().clone(), values, output.size(), output.is_coalesced())


for _log, _name in ((False, "_sparse_softmax"), (True, "_sparse_log_softmax")):
    KERNELS[_name] = functools.partial(_softmax, log=_log)
    KERNELS[f"{_name}_backward_data"] = functools.partial(_softmax_backward, log=_log)


@kernel("_sparse_sum_backward")
def _sparse_sum_backward(grad: Tensor, x: Tensor, dim: Sequence[int]) -> Tensor:
    summed = {d % x.dim() for d in dim}
    kept_dims = [d for d in range(x.sparse_dim()) if d not in summed]
    if kept_dims:
        indices, size = x._indices()[kept_dims], [x.size(d) for d in kept_dims]
        values = _values_at(grad.coalesce(), keys_of(indices, size))
    else:
        values = grad.unsqueeze(0)
    for d in sorted(summed):
        if d >= x.sparse_dim():
            values = values.unsqueeze(d - x.sparse_dim() + 1)
    return coo(x._indices().clone(), values.expand(x._values().size()).clone(), x.size(), x.is_coalesced())


@kernel("_sparse_broadcast_to")
def broadcast_to(x: Tensor, size: Sequence[int]) -> Tensor:
    """Repeat the elements along the sparse dimensions that are broadcast, and the values along dense ones."""
    new_dims = len(size) - x.dim()
    sparse_dim = new_dims + x.sparse_dim()
    old_size = [1] * new_dims + list(x.size())
    times = [n if n != old else 1 for n, old in zip(size[:sparse_dim], old_size, strict=False)]
    count, nnz = math.prod(times), x._nnz()
    repeated = _indices_of(torch.arange(count, device=x.device), times)
    of_x = torch.cat([x._indices().new_zeros((new_dims, nnz)), x._indices()])
    indices = (of_x.unsqueeze(2) + repeated.unsqueeze(1)).reshape(sparse_dim, nnz * count)
    dense_size = size[sparse_dim:]
    values = x._values().expand(nnz, *dense_size).unsqueeze(1).expand(nnz, count, *dense_size)
    values = values.reshape(nnz * count, *dense_size)
    if x.is_coalesced():
        order = torch.argsort(keys_of(indices, size[:sparse_dim]))
        indices, values = indices[:, order], values[order]
    return coo(indices, values, size, x.is_coalesced())


@kernel("permute")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    n = x.sparse_dim()
    order = [d % x.dim() for d in dims]
    indices = x._indices()[order[:n]] if n else x._indices()
    values = x._values().permute(0, *(d - n + 1 for d in order[n:]))
    # PyTorch compares the first dimension as it is written: a negative one counts as moved
    coalesced = x.is_coalesced() and order[:n] == list(range(n)) and (not dims or dims[0] == 0)
    return coordinate_tensor(indices, values, [x.size(d) for d in order], coalesced)


@kernel("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Select nonzeros in the order of `index`; negative indices count from the end. Raises IndexError for indices out
    of range."""
    dim %= x.dim()
    n, index = x.size(dim), index.reshape(-1).long()
    check_countable(index)
    if index.numel() and bool(((index < -n) | (index >= n)).any()):
        raise IndexError(
            f"index_select(): index contains elements that are out of range for tensor of size {list(x.size())} at"
            f" dimension {dim}"
        )
    index = torch.where(index < 0, index + n, index)
    size = [*x.size()[:dim], index.numel(), *x.size()[dim + 1 :]]
    if dim >= x.sparse_dim():
        values = x._values().index_select(dim - x.sparse_dim() + 1, index)
        return coo(x._indices().clone(), values, size, x.is_coalesced())
    sorted_positions, order = torch.sort(x._indices()[dim], stable=True)
    starts = torch.searchsorted(sorted_positions, index)
    to, of = _runs(starts, torch.searchsorted(sorted_positions, index, right=True) - starts)
    of = order[of]
    indices = x._indices()[:, of]
    indices[dim] = to
    return coo(indices, x._values()[of], size)
