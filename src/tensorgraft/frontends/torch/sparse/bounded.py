"""Coalesced tensors in traces: as many elements as before, of which those that are left over lie outside of the tensor.

How many elements are distinct depends on values. Optimizers of PyTorch coalesce a gradient, take the elements of dense
moments at its indices, and add sparse updates with the same indices. These steps read nothing outside of the tensor and
drop what is added there (`within_size`): elements that are left over have no effect. Other programs get an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.located_errors import refused
from tensorgraft.frontends.torch.core.tensors import cell_of

Tensor = torch.Tensor


class Bounds:
    """The indices of tensors that have elements left over, in one trace."""

    def __init__(self) -> None:
        self.in_step = False  # an optimizer of PyTorch takes a step
        self._arrays: dict[Any, Any] = {}  # {identity of indices, which copies share: their array}

    def add(self, indices: Tensor) -> None:
        self._arrays[_identity(indices)] = cell_of(indices).array

    def has(self, x: Tensor) -> bool:
        return bool(self._arrays) and _identity(x._indices()) in self._arrays


def _identity(indices: Tensor) -> Any:
    capture = state.now.capture
    assert capture is not None
    return capture.sparse.indices.identity(indices)


def bounds() -> Bounds | None:
    """Return those of the trace in progress."""
    capture = state.now.capture
    return None if capture is None or capture.sparse is None else capture.sparse.bounds


def coalesced_parts(x: Tensor, keys: Tensor, size: torch.Size, indices_of: Callable[..., Tensor]) -> Any:
    """Return (indices, values), as many as those of `x`, in a trace; None outside of one, or where the indices are
    known. Raises an error outside of an optimizer's step."""
    known = bounds()
    if known is None or not _is_unknown(keys):
        return None
    if not known.in_step:
        raise refused(
            "coalesces a sparse tensor, whose number of distinct elements depends on values.",
            ("coalesce before", "call x.coalesce() outside, and pass the result"),
            ("keep it as it is", "products and sums with dense tensors need no coalesced tensor"),
            ("make it dense", "x.to_dense()"),
        )
    ordered, order = torch.sort(keys, stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    group = torch.cumsum(is_first, 0) - 1
    values = torch.zeros_like(x._values()).index_add(0, group, x._values()[order])
    distinct = torch.full_like(keys, math.prod(size)).scatter(0, group, ordered)
    indices = indices_of(distinct, size)
    known.add(indices)
    return indices, values


def check_countable(keys: Tensor) -> None:
    """Raises TracedValueError if the number of distinct keys, which is that of a result's elements, depends on traced
    values."""
    if has_unknown_count(keys):
        raise refused(
            "gives a sparse tensor whose number of elements depends on values.",
            ("one structure", "operands with the same indices (x * 2, x.detach()) are combined element by element"),
            ("do it outside", "before the call, and pass the result"),
            ("make it dense", "x.to_dense()"),
        )


def has_unknown_count(keys: Tensor) -> bool:
    """Return True in a trace that does not know the values on which a number of elements depends."""
    return bounds() is not None and _is_unknown(keys)


def check_dense(x: Tensor, *args: Any, **kwargs: Any) -> None:
    """Raises TracedValueError for a dense tensor to be made sparse whose values are traced."""
    check_countable(x)


def _is_unknown(x: Tensor) -> bool:
    """Return True for a tensor whose values the trace in progress does not know, nor may ask for."""
    capture = state.now.capture
    assert capture is not None
    indices = capture.sparse.indices
    return capture.values is None and not (indices.knows(x) or indices.is_constant(x))


def within_size(x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values to be added, of which those of elements that are left over add 0 to the first element."""
    known = bounds()
    if known is None or not known.has(x):
        return keys, values
    kept = keys < math.prod(x.size()[: x.sparse_dim()])
    rows = kept.reshape(-1, *(1,) * (values.dim() - 1))
    return torch.where(kept, keys, 0), torch.where(rows, values, 0)


def masked(x: Tensor, mask: Tensor, keys_of: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Return the elements of a dense tensor at those of `mask`, anything where they are left over; None where `mask`
    has none left over."""
    known = bounds()
    if x.is_sparse or known is None or not known.has(mask):
        return None
    n = math.prod(mask.size()[: mask.sparse_dim()])
    return x.reshape(n, *mask.size()[mask.sparse_dim() :])[keys_of(mask).clamp(max=n - 1)]
