"""How a tensor looks at a storage, apart from the storage."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensorgraft.frontends.torch.devices import slot_of_backend
from tensorgraft.frontends.torch.tensors import attach
from tensorgraft.storage import Storage

Tensor = torch.Tensor


@dataclass
class Metadata:
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int  # of the storage

    @staticmethod
    def of(t: Tensor) -> Metadata:
        return Metadata(t.dtype, tuple(t.size()), t.stride(), int(t.storage_offset()), t.untyped_storage().nbytes())

    def on(self, cell: Storage) -> Tensor:
        return attach(cell, slot_of_backend(cell.backend), self.dtype, self.size, self.stride, self.nbytes, self.offset)
