"""A traced program, and how a call runs it: arrays in, results and what was written out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import unless
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Storage


class ArgumentStorage(NamedTuple):
    """A storage: that of an argument."""

    at: int  # which leaf

    def cell(self, leaves: Sequence[Any]) -> Storage:
        cell: Storage = leaves[self.at]._cell
        return cell


class OutsideStorage(NamedTuple):
    """A storage that is no argument's."""

    storage: Storage

    def cell(self, leaves: Sequence[Any]) -> Storage:
        return self.storage


class NumberInput(NamedTuple):
    """A Python number among the arguments that is an input of the program."""

    at: int  # which leaf
    dtype: np.dtype


class Constant(NamedTuple):
    """An array that is an input with the same value in every call."""

    array: Any


Place = ArgumentStorage | OutsideStorage
Source = ArgumentStorage | OutsideStorage | NumberInput | Constant


class New(NamedTuple):
    """A result that the program computes: which of its new storages, and where to look in it."""

    number: int
    geometry: Geometry | None


class View(NamedTuple):
    """A result in a storage that was there before."""

    source: Place
    geometry: Geometry | None


class Given(NamedTuple):
    """A result that is an argument itself."""

    at: int


class Value(NamedTuple):
    """A result that is no array: the same in every call."""

    value: Any


Result = New | View | Given | Value


@dataclass
class ArrayTrace:
    """A traced program, and what it reads and writes."""

    run: Callable[..., tuple[Any, ...]]
    inputs: list[Source]
    written: list[Place]
    donated: list[int]  # positions of inputs that are written
    results: list[Result]
    structure: Any
    outside: list[weakref.ref[Storage]]  # storages that are no arguments
    guards: dict[int, Any]  # Python numbers of which the function looked at the value, by their leaf
    bounds: dict[int, tuple[float, float]]  # of those that it did not, where a dtype holds some only
    checks: list[str]  # the messages of `error_if`; their flags are the program's last result
    surroundings: Surroundings | None = None

    def __post_init__(self) -> None:
        """What a call needs of all that, in the order in which it needs it."""
        self._arrays = [s.array if isinstance(s, Constant) else None for s in self.inputs]
        self._arguments = [(k, s.at) for k, s in enumerate(self.inputs) if isinstance(s, ArgumentStorage)]
        self._outside = [(k, s.storage) for k, s in enumerate(self.inputs) if isinstance(s, OutsideStorage)]
        self._numbers = [(k, s.at, s.dtype) for k, s in enumerate(self.inputs) if isinstance(s, NumberInput)]
        self._takes = [(k, s) for k in getattr(self.run, "takes", ()) if isinstance(s := self.inputs[k], Place)]
        self._only = None if self.written or self.checks else _all_new(self.results)

    def fits(self, leaves: Sequence[Any]) -> bool:
        """It is right for the numbers among the arguments, and what it reads is there."""
        for i, value in self.guards.items():
            if exact(leaves[i]) != value:
                return False
        for i, (low, high) in self.bounds.items():
            if not low <= leaves[i] <= high:
                return False
        if self.surroundings is not None and not self.surroundings.hold():
            return False
        return not self.outside or all(ref() is not None for ref in self.outside)

    def __call__(self, xp: Backend, leaves: Sequence[Any]) -> Any:
        arrays = self._arrays.copy()
        for k, i in self._arguments:
            arrays[k] = leaves[i]._cell.array
        for k, cell in self._outside:
            arrays[k] = cell.array
        for k, i, dtype in self._numbers:
            arrays[k] = np.asarray(leaves[i], dtype)
        if self.donated and not xp.mutable:
            for k in self.donated:
                if self._place(k).cell(leaves).shared:  # somebody else holds the array
                    with xp.scope():
                        arrays[k] = xp.copy(arrays[k])
        made = self._made(arrays, leaves) if self._takes else self.run(*arrays)
        del arrays
        if self._only is not None and not xp.mutable:
            out = [Array(Storage(a, xp), geometry) for a, geometry in zip(made, self._only, strict=True)]
            return optree.tree_unflatten(self.structure, out)
        return optree.tree_unflatten(self.structure, self._results(xp, leaves, made))

    def _place(self, k: int) -> Place:
        source = self.inputs[k]
        assert isinstance(source, Place)
        return source

    def _made(self, arrays: list[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """What the program gives. Storages let go of arrays whose memory it takes only then."""
        own = {k: cell for k, source in self._takes if (cell := source.cell(leaves)).array is arrays[k]}
        if not own:
            return self.run(*arrays)
        for cell in own.values():
            cell.array = None
        try:
            return self.run.take(arrays)  # type: ignore[attr-defined]
        except BaseException:
            for k, cell in own.items():
                cell.array = arrays[k]
            raise

    def _results(self, xp: Backend, leaves: Sequence[Any], made: Sequence[Any]) -> list[Any]:
        with xp.scope():
            if self.checks:
                unless(xp.to_numpy(made[-1]), self.checks)
                made = made[:-1]
            for place, value in zip(self.written, made, strict=False):
                cell = place.cell(leaves)
                if xp.mutable:
                    xp.assign(cell.array, value)
                else:
                    cell.array, cell.shared = value, False
            cells = [Storage(xp.own(a) if xp.mutable else a, xp) for a in made[len(self.written) :]]
        out: list[Any] = []
        for result in self.results:
            if isinstance(result, New):
                out.append(Array(cells[result.number], result.geometry))
            elif isinstance(result, View):
                out.append(Array(result.source.cell(leaves), result.geometry))
            else:
                out.append(leaves[result.at] if isinstance(result, Given) else result.value)
        return out


def _all_new(results: Sequence[Result]) -> list[Geometry | None] | None:
    """Where to look in new storages, if the results are these in their order, and nothing else."""
    found = [r.geometry for k, r in enumerate(results) if isinstance(r, New) and r.number == k]
    return found if len(found) == len(results) else None


def exact(x: Any) -> Any:
    """Equal for the same number only: zeros have signs, and NaN is itself."""
    if type(x) is complex:
        return x.real.hex(), x.imag.hex()
    return x.hex() if type(x) is float else x
