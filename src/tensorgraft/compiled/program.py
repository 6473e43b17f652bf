"""The arrays that a traced program takes at a call: from storages, numbers among its arguments, feeds of the host, and
constants."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Mesh, Placement
from tensorgraft.hub.straight_line import NotStraight, StraightLine

_WRITTEN = 8  # storages that are named one by one
Cell = Any  # a `Storage`: an array of a backend, which a write replaces
Leaves = Sequence[Any]  # the arguments of a call


@dataclass(slots=True)
class Source:
    """A storage: always the same one, or that of an argument, or one that each call finds otherwise."""

    cell: Cell | None = None
    argument: int | None = None
    find: Callable[[Leaves], Cell] | None = None


class NumberInput(NamedTuple):
    """A Python number among the arguments that is an input of the program."""

    at: int  # the number of the leaf
    dtype: np.dtype


@dataclass
class Feed:
    """A value that the host gives at every call."""

    stand_in: Array
    value: Callable[[], np.ndarray]
    traced: np.ndarray | None = None  # the value at the time of the trace, with which the call that traced runs
    kind: str = "random state"
    is_number: bool = False  # which may be asked for at any time: a learning rate, the words of a random state
    tensor: Any = None  # a tensor of the host from outside, from which the value is read
    live: Any = None  # finds the corresponding tensor at a call
    _last: tuple[bytes, Array] | tuple[None, None] = None, None

    def array(self, backend: Backend) -> Array:
        """Return the value as an array of the backend, the same one where its bits have not changed."""
        value = self.take()
        bits = value.tobytes()
        if bits != self._last[0]:
            self._last = bits, backend.adopt(value)
        return self._last[1]

    def take(self) -> np.ndarray:
        if self.traced is None:
            return self.value()
        value, self.traced = self.traced, None
        return value


class Storages:
    """Many of them at once. `cell_of`: the storage of an argument."""

    def __init__(self, sources: Sequence[Source], cell_of: Callable[[Any], Cell]) -> None:
        no_source: Any = _NoStorage(None)
        self._cell_of = cell_of
        self._fixed: list[Any] = [source.cell or no_source for source in sources]
        self._arguments = [(k, s.argument) for k, s in enumerate(sources) if s.argument is not None]
        argument_positions = [i for _, i in self._arguments]
        # if all sources are arguments, one call selects them
        self._pick = itemgetter(*argument_positions) if len(argument_positions) == len(sources) > 1 else None
        self._varying = [(k, s.find) for k, s in enumerate(sources) if s.find is not None]

    def __len__(self) -> int:
        return len(self._fixed)

    def __call__(self, leaves: Leaves) -> list[Cell]:
        if not self._arguments and not self._varying:
            return self._fixed
        cells = self._fixed.copy()
        for k, i in self._arguments:
            cells[k] = self._cell_of(leaves[i])
        for k, find in self._varying:
            cells[k] = find(leaves)
        return cells

    def arrays(self, leaves: Leaves) -> list[Array]:
        """Return the arrays that the storages hold."""
        cell_of = self._cell_of
        if self._pick is not None:
            return [cell.array for cell in map(cell_of, self._pick(leaves))]
        arrays = [cell.array for cell in self._fixed]
        for k, i in self._arguments:
            arrays[k] = cell_of(leaves[i]).array
        for k, find in self._varying:
            arrays[k] = find(leaves).array
        return arrays

    def write_written(self, code: StraightCall, positions: Sequence[int]) -> list[str]:
        """Return the expressions of the storages at these positions, which a call writes. Raises NotStraight where it
        finds them otherwise than by its arguments, or moves what it writes."""
        if not {k for k, _ in self._varying}.isdisjoint(positions):
            raise NotStraight
        arguments = dict(self._arguments)
        if any(getattr(self._fixed[k], "placement", None) is not None for k in positions if k not in arguments):
            raise NotStraight
        return [code.written_cell(arguments[k]) if k in arguments else code.name(self._fixed[k]) for k in positions]

    def of_arguments(self) -> set[int]:
        """Return the positions of the storages that arguments bring."""
        return {k for k, _ in self._arguments}

    def write(self, code: StraightCall, fed: Mapping[int, str]) -> str:
        """Return the expression of these arrays. `fed`: those of others by their positions."""
        if self._varying:
            raise NotStraight
        parts: list[Any] = [fed.get(k, cell) for k, cell in enumerate(self._fixed)]
        for k, i in self._arguments:
            parts[k] = code.array(i)
        written: list[str] = []
        for from_outside, group in groupby(parts, lambda part: part.__class__ is not str):
            of_group = list(group)
            if from_outside and len(of_group) > _WRITTEN:
                written.append(f"*[cell.array for cell in {code.name(of_group)}]")
            else:
                written += (f"{code.name(part)}.array" if from_outside else part for part in of_group)
        return f"[{', '.join(written)}]"


class _NoStorage:
    """A placeholder for a storage that each call brings, or for that of a constant."""

    shared = True

    def __init__(self, array: Any) -> None:
        self.array = array


class ProgramInputs:
    """The arrays that a program takes. Those of storages that it writes may be donated to it."""

    def __init__(
        self,
        sources: Sequence[Source | NumberInput | Feed | Array],
        donated: Sequence[int],
        backend: Backend,
        cell_of: Callable[[Any], Cell],
        calling: Callable[[Leaves], Any] = contextlib.nullcontext,
    ) -> None:
        """`calling`: the context in which feeds read the arguments."""
        self._backend, self._calling = backend, calling
        sources, is_spread = _on_mesh(sources, backend)
        self._feeds = [(k, s) for k, s in enumerate(sources) if isinstance(s, Feed)]
        # numbers that come again; who writes into results would write into those of a mutable backend
        self._kept = {
            k for k, s in self._feeds if s.is_number and k not in donated and not (backend.mutable or is_spread)
        }
        self._numbers = [(k, *s) for k, s in enumerate(sources) if isinstance(s, NumberInput)]
        feeds = (Feed, NumberInput)
        self._storages = Storages(
            [s if isinstance(s, Source) else Source(_NoStorage(None if isinstance(s, feeds) else s)) for s in sources],
            cell_of,
        )
        self._donated = list(donated)
        plain = not self._feeds and not self._numbers and not self._donated
        self.arrays: Callable[[Leaves], list[Array]] = self._storages.arrays if plain else self

    def write(self, code: StraightCall) -> str:
        """Return the expression of the arrays, of which those that are donated have no other references."""
        if self._numbers or len(self._kept) < len(self._feeds):
            raise NotStraight
        cells = self.write_taken(code)
        xp = code.name(self._backend)
        fed = {k: code.let(f"{code.name(feed.array)}({xp})") for k, feed in self._feeds}
        arrays = self._storages.write(code, fed)
        if not cells:
            return arrays
        arrays, brought = code.let(arrays), self._storages.of_arguments()
        for is_brought in (False, True):  # the line has a variable for each array of an argument
            positions = [k for k in self._donated if (k in brought) is is_brought]
            if positions:
                held = _held_in_line(len(positions) > 1) + is_brought
                code.require(f"{_most_references(code, arrays, positions)} <= {held}")
        for start in range(0, len(cells), _WRITTEN):
            code.require(" or ".join(f"{cell}.shared" for cell in cells[start : start + _WRITTEN]).join(("not (", ")")))
        return arrays

    def write_taken(self, code: StraightCall) -> list[str]:
        """Return the expressions of the storages whose memory the program takes."""
        return self._storages.write_written(code, self._donated)

    @property
    def fed(self) -> bool:
        """True if some inputs are computed by the host at each call."""
        return bool(self._feeds)

    def forget_traced(self) -> None:
        """Compute feeds at the next call: it is not the call that traced, whose values were stored."""
        for _, feed in self._feeds:
            feed.traced = None

    def examples(self, leaves: Leaves) -> list[Array]:
        """Return arrays of the kinds that a call takes; those that the host gives are not asked for, and are any."""
        arrays, xp = self._storages.arrays(leaves), self._backend
        for k, feed in self._feeds:
            arrays[k] = np.broadcast_to(np.zeros((), xp.dtype_of(feed.stand_in)), xp.shape(feed.stand_in))
        for k, i, dtype in self._numbers:
            arrays[k] = np.asarray(leaves[i], dtype)
        return arrays

    def __call__(self, leaves: Leaves) -> list[Array]:
        arrays = self._storages.arrays(leaves)
        for k, feed in self._feeds:
            arrays[k] = feed.array(self._backend) if k in self._kept else feed.take()
        for k, i, dtype in self._numbers:
            arrays[k] = np.asarray(leaves[i], dtype)
        if self._donated:
            cells = self._storages(leaves)
            donated = [arrays[k] for k in self._donated]
            counts = list(map(sys.getrefcount, donated))
            if max(counts) > _HELD or True in [cells[k].shared for k in self._donated]:
                # other references to an array (another storage, a caller, DLPack) must not lose it
                with self._backend.scope():
                    for k, count in zip(self._donated, counts, strict=True):
                        if count > _HELD or cells[k].shared:
                            arrays[k] = self._backend.copy(arrays[k])
        return arrays

    def run(self, program: Any, leaves: Leaves) -> tuple[Array, ...]:
        """Run a program that takes over the memory of arrays without other references (`TracedProgram.compile`):
        storages drop their references while it runs."""
        arrays = self(leaves)
        cells = self._storages(leaves)
        sole = {
            k: cell for k in program.takes if not isinstance(cell := cells[k], _NoStorage) and cell.array is arrays[k]
        }
        if not sole:
            return tuple(program(*arrays))
        for cell in sole.values():
            cell.array = None
        try:
            results: tuple[Array, ...] = program.take(arrays)
            return results
        except BaseException:
            for k, cell in sole.items():
                cell.array = arrays[k]
            raise

    def current_arrays(self, leaves: Leaves) -> list[Array]:
        """Return the current arrays, for reading only: nothing is donated."""
        arrays = self._storages.arrays(leaves)
        with self._calling(leaves):
            for k, feed in self._feeds:
                arrays[k] = feed.value()
        return arrays


def _on_mesh(sources: Sequence[Any], backend: Backend) -> tuple[Sequence[Any], bool]:
    """Return the sources with constants on all devices of the mesh over which storages are spread, where every call
    would take them, and True if there is one."""
    placements = (s.cell.placement for s in sources if isinstance(s, Source) and s.cell is not None)
    mesh = next((p.mesh for p in placements if p is not None and not p.mesh.abstract), None)
    if mesh is None:
        return sources, False

    def on_mesh(x: Array, mesh: Mesh = mesh) -> Array:
        return backend.constrain(x, Placement(mesh, ((),) * len(backend.shape(x))))

    with backend.scope():
        return [s if isinstance(s, Source | NumberInput | Feed) else on_mesh(s) for s in sources], True


def _count_of_sole_reference() -> int:
    """Return the count that `ProgramInputs` sees of an array which only its storage holds."""
    cells = [_NoStorage(object())]
    arrays = [cell.array for cell in cells]
    donated = [arrays[k] for k in (0,)]
    return max(list(map(sys.getrefcount, donated)))


_HELD = _count_of_sole_reference()


def _most_references(code: StraightLine, arrays: str, positions: Sequence[int]) -> str:
    """Return the expression of how many references there are to one of the arrays, at most."""
    count = code.name(sys.getrefcount)
    if len(positions) == 1:
        return f"{count}({arrays}[{positions[0]}])"
    return f"max(map({count}, {code.name(itemgetter(*positions))}({arrays})))"


@functools.cache
def _held_in_line(several: bool) -> int:
    """Return the count that `_most_references` gives for arrays which only their storages and the line hold."""
    code = StraightLine()
    positions = range(1 + several)
    arrays = code.let(f"[{', '.join(f'{code.name(_NoStorage(object()))}.array' for _ in positions)}]")
    code.do(f"return {_most_references(code, arrays, positions)}")
    count: int = code.function("")()
    return count
