"""How a tensor looks at a storage, apart from the storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.frontends.torch.core import codes
from tensorgraft.frontends.torch.core.devices import slot_of_backend
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, set_storage
from tensorgraft.storage import Storage

Tensor = torch.Tensor


@dataclass
class Metadata:
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int  # of the storage
    kind: Any = None  # of a storage that is quantised (`codes.kind_of`)

    @staticmethod
    def of(t: Tensor) -> Metadata:
        kind = codes.kind_of(cell_of(t))
        return Metadata(
            t.dtype, tuple(t.size()), t.stride(), int(t.storage_offset()), t.untyped_storage().nbytes(), kind
        )

    def beside(self, t: Tensor) -> Tensor:
        """A tensor on the storage of another."""
        cell = cell_of(t)
        slot = slot_of_backend(codes.plain(cell.backend))
        new = attach(cell, slot, self.dtype, (0,), (1,), 0)
        return set_storage(new, t.untyped_storage(), self.offset, self.size, self.stride)

    def on(self, cell: Storage) -> Tensor:
        slot = slot_of_backend(codes.plain(cell.backend))
        return attach(cell, slot, self.dtype, self.size, self.stride, self.nbytes, self.offset)
