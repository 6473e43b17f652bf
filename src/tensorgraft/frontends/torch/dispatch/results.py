"""The new tensors of an operator's result: their metadata, and the structure that contains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.dispatch.overlapping_elements import overlaps_itself
from tensorgraft.storage import contiguous_strides, is_dense

Tensor = torch.Tensor
Structure = Callable[[list[Any]], Any]
# dtype, size, strides and bytes of a new tensor; None: the operator leaves it undefined
Result = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int] | None


class Conjugate(tuple):
    """A result whose memory holds the conjugates of its values, as that of a solution from the right does."""


def conjugated(t: Tensor) -> Tensor:
    torch._C._set_conj(t, True)
    return t


def describe(result: Any) -> tuple[list[Result] | None, Structure | None]:
    """Return the new tensors of a result of the meta function, and how to put them together."""
    if result is None:
        return None, None
    if isinstance(result, Tensor):
        return [_result(result)], (lambda out: conjugated(out[0])) if result.is_conj() else None
    results: list[Result] = []

    def visit(o: Any) -> Any:
        if isinstance(o, list | tuple):
            parts = [visit(x) for x in o]
            return lambda out: [part(out) for part in parts]
        at = len(results)
        results.append(None if o is None else _result(o))
        if results[at].__class__ is Conjugate:
            return lambda out: conjugated(out[at])
        return lambda out: out[at]

    build = visit(result)
    return results, (lambda out: tuple(build(out))) if isinstance(result, tuple) else build


def _result(meta: Tensor) -> Result:
    return Conjugate(_layout_of(meta)) if meta.is_conj() else _layout_of(meta)


def _layout_of(meta: Tensor) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]:
    size, stride = tuple(meta.size()), meta.stride()
    if meta.is_contiguous():
        return meta.dtype, size, stride, meta.numel() * meta.dtype.itemsize
    if not is_dense(size, stride) and (0 in stride or overlaps_itself(size, stride)):  # expanded: there it is a view
        stride = contiguous_strides(size)
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if meta.numel() else 0
    return meta.dtype, size, stride, extent * meta.dtype.itemsize
