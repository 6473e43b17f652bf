"""How a tensor looks at a storage, apart from the storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.frontends.torch.core import codes
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
    nbytes: int  # of the storage
    kind: Any = None  # of a storage that is quantised (`codes.kind_of`)
    placement: Placement | None = None  # of a storage that is kept over a mesh

    @staticmethod
    def of(t: Tensor) -> Metadata:
        cell = cell_of(t)
        geometry = tuple(t.size()), t.stride(), int(t.storage_offset())
        return Metadata(t.dtype, *geometry, t.untyped_storage().nbytes(), codes.kind_of(cell), cell.placement)

    def beside(self, t: Tensor) -> Tensor:
        """A tensor on the storage of another."""
        cell = cell_of(t)
        slot = slot_of_backend(codes.plain(cell.backend))
        new = attach(cell, slot, self.dtype, (0,), (1,), 0)
        return set_storage(new, t.untyped_storage(), self.offset, self.size, self.stride)

    def on(self, cell: Storage) -> Tensor:
        slot = slot_of_backend(codes.plain(cell.backend))
        if self.placement is not None:
            pin(cell, cell.array, self.placement)
        return attach(cell, slot, self.dtype, self.size, self.stride, self.nbytes, self.offset)

    def maker(self, backend: Backend) -> Callable[[Any], Tensor]:
        """What makes tensors that look so at new arrays, from their beginning on."""
        make = maker(slot_of_backend(backend), self.dtype, self.size, self.stride, self.nbytes)
        placement = self.placement
        if placement is None:
            return make

        def make_placed(array: Any) -> Tensor:
            tensor = make(array)
            pin(cell_of(tensor), array, placement)
            return tensor

        return make_placed
