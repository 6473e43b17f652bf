"""Checks of tensors that share memory with one that an operator writes.

PyTorch's rules differ from operator to operator, and its meta functions do not check them. If a call writes memory that
it also reads, the CPU's kernel is therefore called with zeros that overlap in the same way (`refusals`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.dispatch.refusals import refuse

Tensor = torch.Tensor

_IDEMPOTENT = frozenset({"fill_.Scalar", "fill_.Tensor", "zero_", "masked_fill_.Scalar", "masked_fill_.Tensor"})


def repeats(t: Tensor) -> bool:
    """Return whether elements of a tensor are surely one in memory: those along a dimension without a stride."""
    strides = t.stride()
    return 0 in strides and any(n > 1 and not s for n, s in zip(t.size(), strides, strict=True))


def check_overlap(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError where PyTorch refuses to write into memory that the tensors of a call share."""
    if not operator.writes:
        return
    bound = operator.signature.bind(args, kwargs)
    targets = tensors_in([bound.get(name) for name in operator.writes], {})
    for t in targets:
        if repeats(t) and operator.name not in _IDEMPOTENT:
            if refuse(operator, args, kwargs, "unsupported operation: "):  # some of the CPU's kernels take it
                return
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory"
                " location. Please clone() the tensor before performing the operation."
            )
    if shares_memory(targets, tensors_in(args, kwargs), grows=operator.kind == "out"):
        refuse(operator, args, kwargs, "unsupported operation: ")


def _span(t: Tensor) -> tuple[int, int]:
    """Return the bytes of its storage between a tensor's first and last element."""
    begin = int(t.storage_offset())
    end = begin + 1 + sum((n - 1) * s for n, s in zip(t.size(), t.stride(), strict=True))
    return begin * t.itemsize, end * t.itemsize


def shares_memory(targets: list[Tensor], all_tensors: list[Tensor], grows: bool) -> bool:
    """Return True if an argument that is written shares memory with another one.

    `grows`: the written tensor may be resized, also within its storage.
    """
    if len(all_tensors) < 2:
        return False
    by_storage: dict[int, list[Tensor]] = {}
    occurrences = Counter(map(id, all_tensors))
    if any(occurrences[id(t)] > 1 for t in targets):  # also of an empty one, for which room is made before it is read
        return True
    for t in all_tensors:
        if t.numel():
            by_storage.setdefault(t.untyped_storage()._cdata, []).append(t)
    for t in targets:
        begin, end = _span(t)
        neighbours = by_storage.get(t.untyped_storage()._cdata, [])
        if sum(grows or (begin < high and low < end) for low, high in map(_span, neighbours)) > 1:  # one is `t` itself
            return True
    return False


def relation(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Return where the tensors of a call begin, in bytes from the first on the same storage; None where nothing that is
    written overlaps another tensor."""
    bound = operator.signature.bind(args, kwargs)
    target_ids = {id(t) for t in tensors_in([bound.get(name) for name in operator.writes], {})}
    spans: dict[int, list[tuple[int, int, bool]]] = {}
    offsets: list[int] = []
    overlaps = False
    for t in tensors_in(args, kwargs):
        if t.device.type == TYPE:
            begin, end = _span(t)
            intervals = spans.setdefault(t.untyped_storage()._cdata, [])
            target = id(t) in target_ids
            if t.numel():
                overlaps |= any(
                    (target or other_target) and begin < high and low < end for low, high, other_target in intervals
                )
                intervals.append((begin, end, target))
            offsets.append(begin - intervals[0][0] if intervals else 0)
    return tuple(offsets) if overlaps else None
