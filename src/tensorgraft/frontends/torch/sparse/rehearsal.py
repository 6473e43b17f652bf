"""Metadata of results, and errors, of CPU PyTorch for sparse tensors: from a call of its own operator on stand-ins of
the same sizes, dtypes and layouts that have at most one specified element, once for each such combination."""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.sparse.structure import BLOCKED, BY_ROW, LAYOUTS, TensorMetadata, spec_of

Tensor = torch.Tensor
# Layouts of which stand-ins have no elements: MKL's solver, which may crash for blocks, is not called then
_EMPTY = dict.fromkeys(("triangular_solve", "triangular_solve.X"), BLOCKED)


def expected(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the metadata (`TensorMetadata`, several in a tuple) of the CPU's result. Raises what the CPU raises."""
    signature = schema.signature(op)
    written = {id(a) for name, a in signature.bind(args, kwargs).items() if name in signature.written}
    numbers: dict[int, int] = {}  # of tensors, which may be an argument twice
    freeze = functools.partial(_frozen, numbers, written, _EMPTY.get(schema.short_name(op), ()))
    return _expected(op, freeze(args), tuple((name, freeze(a)) for name, a in kwargs.items()))


@functools.lru_cache(maxsize=4096)
def _expected(op: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    stand_in = functools.partial(_stand_in, {})
    with torch.no_grad(), without_autocast():
        result = op(*stand_in(args), **{name: stand_in(a) for name, a in kwargs})
    return tuple(map(_spec, result)) if isinstance(result, tuple | list) else _spec(result)


def _spec(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    spec = spec_of(x)
    if spec.layout in BLOCKED and len(spec.blocksize) < 2:  # PyTorch 2.13 drops the dimensions of 1 x 1 blocks in a sum
        return spec._replace(blocksize=(1, 1), dense_dim=0)
    return spec


class _Described(NamedTuple):
    """A tensor among the arguments: its number and metadata, whether it has elements, is coalesced, and is written."""

    number: int
    spec: TensorMetadata
    has_elements: bool
    is_coalesced: bool
    is_written: bool


class _Number(tuple[type, Any]):
    """A number and its type: 1, 1.0 and True are different arguments."""


def _frozen(numbers: dict[int, int], written: set[int], empty: Container[torch.layout], a: Any) -> Any:
    if isinstance(a, Tensor):
        number = numbers.setdefault(id(a), len(numbers))
        has_elements = a.layout is not torch.strided and a.layout not in empty and a._nnz() > 0
        is_coalesced = a.layout is torch.sparse_coo and a.is_coalesced()
        return _Described(number, spec_of(a), has_elements, is_coalesced, id(a) in written)
    if isinstance(a, list | tuple):
        return tuple(_frozen(numbers, written, empty, x) for x in a)
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return _Number((type(a), a)) if isinstance(a, bool | int | float | complex) else a


def _stand_in(tensors: dict[int, Tensor], a: Any) -> Any:
    if isinstance(a, _Described):
        if a.number not in tensors:
            tensors[a.number] = _tensor(a)
        return tensors[a.number]
    if isinstance(a, _Number):
        return a[1]
    return tuple(_stand_in(tensors, x) for x in a) if isinstance(a, tuple) else a


def _tensor(described: _Described) -> Tensor:
    """Return a tensor of the CPU that consists of zeros, with at most one specified element in each batch."""
    spec, count = described.spec, int(described.has_elements)
    zeros = functools.partial(torch.zeros, dtype=spec.dtype, device="cpu")
    if spec.layout is torch.strided:
        return zeros(spec.size) if described.is_written else zeros(()).expand(spec.size)
    indices = functools.partial(torch.zeros, dtype=spec.index_dtype, device="cpu")
    if spec.layout is torch.sparse_coo:
        sparse_dim = len(spec.size) - spec.dense_dim
        parts = indices((sparse_dim, count)), zeros((count, *spec.dense))
        # one element alone would be coalesced
        return torch.sparse_coo_tensor(*parts, spec.size, check_invariants=False)._coalesced_(described.is_coalesced)
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
