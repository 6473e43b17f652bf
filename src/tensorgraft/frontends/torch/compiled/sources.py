"""Where a compiled call finds the storages and arrays that the traced one had."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.capture import Feed
from tensorgraft.frontends.torch.compiled.host import calling
from tensorgraft.frontends.torch.core.codes import QuantizedPart
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Array = Any
Tensor = torch.Tensor


@dataclass(slots=True)
class Source:
    """A storage: always the same one, or that of an argument, or of a leaf's gradient."""

    cell: Storage | None = None
    argument: int | None = None
    leaf: Callable[[Sequence[Any]], Tensor] | None = None
    part: QuantizedPart | None = None  # of an argument that is quantised

    def __call__(self, leaves: Sequence[Any]) -> Storage:
        if self.cell is not None:
            return self.cell
        if self.argument is not None:
            cell = cell_of(leaves[self.argument])
            return cell if self.part is None else QuantizedPart(cell, self.part.number, self.part.kind)
        assert self.leaf is not None
        gradient = self.leaf(leaves).grad
        assert gradient is not None
        return cell_of(gradient)


class Storages:
    """Many of them at once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        nobody: Any = _Nobody()
        self._fixed: list[Any] = [source.cell or nobody for source in sources]
        self._moving = [(k, source) for k, source in enumerate(sources) if source.cell is None]
        # of these, arguments that are not quantised, which most are
        self._plain = [(k, s.argument) for k, s in self._moving if s.argument is not None and s.part is None]
        self._others = [(k, s) for k, s in self._moving if s.argument is None or s.part is not None]

    def __len__(self) -> int:
        return len(self._fixed)

    def __call__(self, leaves: Sequence[Any]) -> list[Storage]:
        if not self._moving:
            return self._fixed
        cells = self._fixed.copy()
        for k, source in self._moving:
            cells[k] = source(leaves)
        return cells

    def arrays(self, leaves: Sequence[Any]) -> list[Array]:
        """What is in them."""
        arrays = [cell.array for cell in self._fixed]
        for k, i in self._plain:
            arrays[k] = leaves[i].untyped_storage().cell.array
        for k, source in self._others:
            arrays[k] = source(leaves).array
        return arrays


class _Nobody:
    """In the place of a storage that each call brings."""

    array = None


def storages_of(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    """PyTorch's storages of tensors, each of which is one object for as long as somebody has it: lists of them are
    equal where all storages are the same."""
    return list(map(_storage_of, tensors))


_storage_of = Tensor.untyped_storage


class ProgramInputs:
    """The arrays that a program takes: of storages, fed by the host, or constant. Those of storages that the program
    writes may be donated to it."""

    def __init__(self, sources: Sequence[Source | Feed | Array], donated: Sequence[int], backend: Backend) -> None:
        self._backend = backend
        self._feeds = [(k, s) for k, s in enumerate(sources) if isinstance(s, Feed)]
        fed = {k for k, _ in self._feeds}
        self._storages = Storages(
            [
                s if isinstance(s, Source) else Source(Storage(None if k in fed else s, backend))
                for k, s in enumerate(sources)
            ]
        )
        self._donated = list(donated)
        self._plain = not self._feeds and not self._donated

    @property
    def fed(self) -> bool:
        """The host feeds some of them, anew for each call."""
        return bool(self._feeds)

    def __call__(self, leaves: Sequence[Any]) -> list[Array]:
        arrays = self._storages.arrays(leaves)
        if self._plain:
            return arrays
        for k, feed in self._feeds:
            arrays[k] = feed.take()
        if self._donated:
            cells = self._storages(leaves)
            given = [arrays[k] for k in self._donated]
            counts = list(map(sys.getrefcount, given))
            if max(counts) > _HELD or True in [cells[k].shared for k in self._donated]:
                # whoever else holds an array (another storage, a caller, DLPack) must not lose it
                with self._backend.scope():
                    for k, count in zip(self._donated, counts, strict=True):
                        if count > _HELD or cells[k].shared:
                            arrays[k] = self._backend.copy(arrays[k])
        return arrays

    def now(self, leaves: Sequence[Any]) -> list[Array]:
        """The arrays as they are, for a look at them: nothing is donated."""
        arrays = self._storages.arrays(leaves)
        with calling(leaves):
            for k, feed in self._feeds:
                arrays[k] = feed.value()
        return arrays


def _held() -> int:
    """The count that `ProgramInputs` sees of an array which only its storage holds."""
    cells = [Storage(object(), None)]  # type: ignore[arg-type]
    arrays = [cell.array for cell in cells]
    given = [arrays[k] for k in (0,)]
    return max(list(map(sys.getrefcount, given)))


_HELD = _held()
