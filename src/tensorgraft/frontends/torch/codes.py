"""The arrays of a quantised storage as storages of their own: what a traced program reads and writes."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.storage import Storage


class Part(Storage):
    """Codes, scales or zero points of a quantised storage, whichever they are at the time."""

    __slots__ = ("kind", "number", "owner")

    def __init__(self, owner: Storage, number: int, kind: Any) -> None:
        self.owner, self.number, self.kind = owner, number, kind
        backend: Any = owner.backend
        self.backend: Backend = backend.inner
        self.capture = None
        self.shared = True  # the same codes may be behind other storages

    def _whole(self) -> Quantized:
        whole = self.owner.array
        if not isinstance(whole, Quantized) or whole.kind != self.kind:
            raise RuntimeError(
                "a tensor was quantised by another scheme, or not at all, when tg.jit traced the function that uses it:"
                " compile the function again"
            )
        return whole

    @property
    def array(self) -> Any:
        return self._whole().parts[self.number]

    @array.setter
    def array(self, value: Any) -> None:
        whole = self._whole()
        parts = list(whole.parts)
        parts[self.number] = value
        self.owner.array = whole.with_parts(tuple(parts))


def parts(cell: Storage) -> list[Part]:
    return [Part(cell, k, cell.array.kind) for k in range(len(cell.array.parts))]


def plain(backend: Backend) -> Backend:
    """The backend that computes for one that knows of quantised arrays."""
    wrapper: Any = backend
    return wrapper.inner if backend.wraps else backend
