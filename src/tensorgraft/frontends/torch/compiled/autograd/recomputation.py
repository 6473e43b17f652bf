"""Recomputation of a checkpointed function: its inputs pass a barrier, so that the compiler does not reuse the first
results."""

from __future__ import annotations

import weakref

from tensorgraft.frontends.torch.core import codes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage


class Recomputation:
    """The storages that a recomputation reads and makes: those from before that it reads hold guarded arrays.

    Arguments:
        newest_array: an array that is computed before the recomputation begins.
    """

    def __init__(self, backend: Backend, newest_array: Array | None) -> None:
        self.own: weakref.WeakSet[Storage] = weakref.WeakSet()  # made by the recomputation itself
        self._backend, self._barrier = backend, newest_array
        self._guarded: dict[int, tuple[Storage, Array, Array]] = {}

    def reads(self, cell: Storage) -> None:
        if cell in self.own or id(cell) in self._guarded:
            return
        before = cell.array
        for part in codes.split_quantized([cell]):
            newest_array = part.array if self._barrier is None else self._barrier
            part.array = self._backend.optimization_barrier(part.array, newest_array)
        self._guarded[id(cell)] = (cell, before, cell.array)

    def restore(self) -> None:
        """Give storages that were not written their arrays back."""
        for cell, before, guarded in self._guarded.values():
            if cell.array is guarded:
                cell.array = before
