"""The arrays of a quantised storage as separate storages, which a traced program reads, writes and returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.backend import joined, quantizing
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.storage import Storage


class QuantizedPart(Storage):
    """Codes, scales or zero points of a quantised storage, whichever they are at the time."""

    __slots__ = ("kind", "number", "owner")

    def __init__(self, owner: Storage, number: int, kind: Any) -> None:
        self.owner, self.number, self.kind = owner, number, kind
        backend: Any = owner.backend
        self.backend: Backend = backend.inner
        self.capture = self.placement = None
        self.shared = True  # other storages may have the same codes

    def _quantized(self) -> Quantized:
        full_array = self.owner.array
        if not isinstance(full_array, Quantized) or full_array.kind != self.kind:
            raise RuntimeError(
                "the scheme by which a tensor is quantised has changed since tg.jit traced the function that uses"
                " it: compile the function again"
            )
        return full_array

    @property
    def array(self) -> Any:
        return self._quantized().parts[self.number]

    @array.setter
    def array(self, value: Any) -> None:
        full_array = self._quantized()
        parts = list(full_array.parts)
        parts[self.number] = value
        self.owner.array = full_array.with_parts(tuple(parts))


def parts(cell: Storage) -> list[QuantizedPart]:
    return [QuantizedPart(cell, k, cell.array.kind) for k in range(len(cell.array.parts))]


def split_quantized(cells: Sequence[Storage]) -> list[Storage]:
    """Storages, with the parts of those that are quantised in their place."""
    return [part for cell in cells for part in (parts(cell) if cell.backend.compound else (cell,))]


def owner(cell: Storage) -> Storage:
    """Return the storage itself; of a part, the one that it is of."""
    return cell.owner if isinstance(cell, QuantizedPart) else cell


def kind_of(cell: Storage) -> Any:
    """Return the information that `storage` needs in addition to the arrays of a quantised storage; None for other
    storages."""
    return cell.array.kind if cell.backend.compound else None


def count(kind: Any) -> int:
    """Return the number of arrays that a storage of this kind has."""
    return 1 if kind is None else len(kind[-1].parts)


def storage(arrays: Sequence[Any], kind: Any, backend: Backend) -> Storage:
    """Return a new storage of a kind, of the first of these arrays of the backend."""
    if kind is None:
        return Storage(arrays[0], backend)
    return Storage(joined([kind], arrays)[0], quantizing(backend))


def plain(backend: Backend) -> Backend:
    """Return the backend that computes for a backend with quantised arrays, or the backend itself."""
    wrapper: Any = backend
    return wrapper.inner if backend.compound else backend
