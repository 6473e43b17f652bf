"""The metadata of a tensor (dtype, sizes, strides, offset), apart from its storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.devices import slot_of_backend
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, maker, set_storage
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Placement
from tensorgraft.storage import Storage, pin

Tensor = torch.Tensor


@dataclass
class Metadata:
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int  # bytes of the storage
    kind: Any = None  # the kind of a quantised storage (`codes.kind_of`)
    placement: Placement | None = None  # the placement of a storage over a mesh
    conj: bool = False  # a conjugation that is still to be done, where that is noted here
    neg: bool = False

    @staticmethod
    def of(t: Tensor) -> Metadata:
        cell = cell_of(t)
        geometry = tuple(t.size()), t.stride(), int(t.storage_offset())
        return Metadata(t.dtype, *geometry, t.untyped_storage().nbytes(), codes.kind_of(cell), cell.placement)

    @staticmethod
    def of_lazy(t: Tensor) -> Metadata:
        """Return the metadata of a tensor, a lazy conjugation or negation included."""
        return replace(Metadata.of(t), conj=t.is_conj(), neg=t.is_neg())

    def lazily(self, t: Tensor) -> Tensor:
        t = torch.conj(t) if self.conj else t
        return torch.ops.aten._neg_view(t) if self.neg else t

    def view(self, base: Tensor) -> Tensor:
        """Return a tensor on the storage of another one, of which it is a view where PyTorch has such a view."""
        base = torch.conj(base) if base.is_conj() else base
        base = torch.ops.aten._neg_view(base) if base.is_neg() else base
        if base.is_complex() and self.dtype is base.dtype.to_real():
            base = torch.view_as_real(base)
        if base.dtype is not self.dtype:
            return self.beside(base)
        return self.lazily(base.as_strided(self.size, self.stride, self.offset))

    def beside(self, t: Tensor) -> Tensor:
        """Return a tensor on the storage of another."""
        cell = cell_of(t)
        slot = slot_of_backend(codes.plain(cell.backend))
        new = attach(cell, slot, self.dtype, (0,), (1,), 0)
        rebindings_before = state.rebindings  # no rebinding: no guard has examined a new tensor
        set_storage(new, t.untyped_storage(), self.offset, self.size, self.stride)
        state.rebindings = rebindings_before
        return self.lazily(new)

    def on(self, cell: Storage) -> Tensor:
        slot = slot_of_backend(codes.plain(cell.backend))
        if self.placement is not None:
            pin(cell, cell.array, self.placement)
        return self.lazily(attach(cell, slot, self.dtype, self.size, self.stride, self.nbytes, self.offset))

    def maker(self, backend: Backend) -> Callable[[Any], Tensor]:
        """Return a function that makes tensors with this metadata, at offset 0, from new arrays."""
        make = maker(slot_of_backend(backend), self.dtype, self.size, self.stride, self.nbytes)
        placement = self.placement
        if placement is None:
            return (lambda array: self.lazily(make(array))) if self.conj or self.neg else make

        def make_placed(array: Any) -> Tensor:
            tensor = make(array)
            pin(cell_of(tensor), array, placement)
            return self.lazily(tensor)

        return make_placed
