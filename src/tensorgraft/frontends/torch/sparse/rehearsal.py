"""Metadata of results, and errors, of CPU PyTorch for sparse tensors: from a call of its own operator on stand-ins of
the same sizes, dtypes and layouts that have at most one specified element, once for each such combination."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.sparse.structure import BLOCKED, BY_ROW, LAYOUTS, TensorMetadata, spec_of

Tensor = torch.Tensor


def expected(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the metadata (`TensorMetadata`, several in a tuple) of the CPU's result. Raises what the CPU raises."""
    signature = schema.signature(op)
    written = {n for n, name in enumerate(signature.positional) if name in signature.written}
    return _expected(
        op,
        tuple(_frozen(a, n in written) for n, a in enumerate(args)),
        tuple((name, _frozen(a, name in signature.written)) for name, a in kwargs.items()),
    )


@functools.lru_cache(maxsize=4096)
def _expected(op: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    with torch.no_grad(), without_autocast():
        result = op(*_stand_in(args), **{name: _stand_in(a) for name, a in kwargs})
    return tuple(map(_spec, result)) if isinstance(result, tuple | list) else _spec(result)


def _spec(x: Any) -> Any:
    return spec_of(x) if isinstance(x, Tensor) else x


class _Described(tuple[TensorMetadata, bool, bool]):
    """The metadata of a tensor, whether it has specified elements, and whether the operator writes it."""


class _Number(tuple[type, Any]):
    """A number and its type: 1, 1.0 and True are different arguments."""


def _frozen(a: Any, is_written: bool = False) -> Any:
    if isinstance(a, Tensor):
        is_sparse = a.layout is not torch.strided
        return _Described((spec_of(a), is_sparse and a._nnz() > 0, is_written))
    if isinstance(a, list | tuple):
        return tuple(map(_frozen, a))
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return _Number((type(a), a)) if isinstance(a, bool | int | float | complex) else a


def _stand_in(a: Any) -> Any:
    if isinstance(a, _Described):
        return _tensor(*a)
    if isinstance(a, _Number):
        return a[1]
    return tuple(map(_stand_in, a)) if isinstance(a, tuple) else a


def _tensor(spec: TensorMetadata, has_elements: bool, is_written: bool) -> Tensor:
    """Return a tensor of the CPU that consists of zeros, of which at most one in each batch is specified."""
    count = int(has_elements)
    zeros = functools.partial(torch.zeros, dtype=spec.dtype, device="cpu")
    if spec.layout is torch.strided:
        return zeros(spec.size) if is_written else zeros(()).expand(spec.size)
    indices = functools.partial(torch.zeros, dtype=spec.index_dtype, device="cpu")
    if spec.layout is torch.sparse_coo:
        sparse_dim = len(spec.size) - spec.dense_dim
        return torch.sparse_coo_tensor(
            indices((sparse_dim, count)),
            zeros((count, *spec.dense)),
            spec.size,
            check_invariants=False,
            is_coalesced=True,
        )
    assert spec.layout in LAYOUTS, spec.layout
    block = spec.blocksize if spec.layout in BLOCKED else ()
    by_row = spec.layout in BY_ROW
    axis = 0 if by_row else 1
    lines = spec.matrix[axis] // spec.blocksize[axis]
    ends = indices((*spec.batch, lines + 1))
    ends[..., 1:] = count
    return torch.sparse_compressed_tensor(
        ends,
        indices((*spec.batch, count)),
        zeros((*spec.batch, count, *block, *spec.dense)),
        spec.size,
        layout=spec.layout,
        check_invariants=False,
    )
