"""Captures of transformed functions: arrays from outside may be read, and writes to them become results.

While a function of `Array`s is transformed, the storages that it uses are lent to the transform: their arrays are
replaced by arrays of the transform's backend, and restored when it has ended.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorgraft.compiled import source_location
from tensorgraft.compiled.source_location import Place
from tensorgraft.frontends.array_api.core.devices import Device, alias, device_of, is_device
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage, made_during


class _Local(threading.local):
    capture: ArrayCapture | None = None


now = _Local()


def is_compiling() -> bool:
    """Return True if a program is being traced by `tg.jit`."""
    capture = now.capture
    while capture is not None and not capture.reads:
        capture = capture.before
    return capture is not None


@dataclass
class LentCell:
    """A storage and its state before a trace."""

    cell: weakref.ref[Storage]
    array: Any
    backend: Backend
    capture: Any
    inner_array: Any  # its array when it was lent


class ArrayCapture:
    """One run of a function inside a transform, from the backend `outer` to `inner`, which may be the same.

    Storages are lent when they are written, when they meet arrays of the transform, and, where `reads`, when they are
    read.
    """

    def __init__(
        self, outer: Backend, inner: Backend, reads: bool, name: str = "", fn: Callable[..., Any] | None = None
    ) -> None:
        self.outer = outer
        self.inner = inner
        self.reads = reads
        self.name = name  # the name of the transform
        self.fn = fn  # the function that is transformed
        self.before: ArrayCapture | None = None
        self.lent_cells: list[LentCell] = []
        self.insides: set[int] = set()  # ids of their arrays, which other storages may hold, too
        self.inputs: set[int] = set()  # ids of storages that come from outside
        self.arguments: set[int] = set()  # ids of storages of arguments of `fn`, or of their stand-ins
        # {storage: where it was made}
        self.origins: weakref.WeakKeyDictionary[Storage, Place] = weakref.WeakKeyDictionary()
        self.new_storages: weakref.WeakSet[Storage] = weakref.WeakSet()  # with `reads`: all new storages
        self.results: list[weakref.ref[Storage]] = []
        self.checks: list[tuple[Any, str]] = []  # (a flag of `inner` that must be false, the message if it is not)
        self.aliases: dict[Device, Backend] = {}  # {device to which the program has moved arrays: its alias of `inner`}

    def on(self, device: Device) -> Backend:
        """Return the backend of this level for arrays that are on a device: `inner`, or an alias of it."""
        if device == device_of(self.inner):
            return self.inner
        if device not in self.aliases:
            self.aliases[device] = alias(self.inner, device)
        return self.aliases[device]

    def holds(self, cell: Storage) -> bool:
        """Return whether the arrays of a storage are of this level."""
        return cell.backend is self.inner or any(cell.backend is xp for xp in self.aliases.values())

    def take(self, cell: Storage) -> None:
        """Make the array of a storage, on whatever device, one of this level."""
        self.on(device_of(cell.backend))
        self.touch(cell)

    def touch(self, cell: Storage) -> None:
        if cell.capture is self:
            return
        if self.before is not None:
            self.before.reading(cell)
        inner: Any = self.inner
        array = None
        if self.holds(cell):
            inner = cell.backend
        elif cell.backend is not self.outer:
            if self.before is not None:
                self.before.touch(cell)  # from further outside
            if cell.backend is not self.outer:
                self._check_not_constant(cell)
                inner = self.aliases.get(device_of(cell.backend))
                if inner is None or not (is_device(cell.backend) or (self.before and self.before.holds(cell))):
                    return  # elsewhere, or of a level inside of this one
                array = self._copied_from_device(cell)
                if self.reads:  # a constant of the program
                    cell.backend, cell.array = inner, array
        if array is None:
            array = cell.array
        if self.reads and (inner.is_traced(array) or id(array) in self.insides):  # made inside
            cell.capture = self
            self.results.append(weakref.ref(cell))
            return
        if cell.backend is not inner:
            inner_array = inner.lifted(array)
        elif self.reads:
            inner_array = inner.stand_in(array)
        else:
            inner_array = inner.copy(array) if inner.mutable else array
        self.lent_cells.append(LentCell(weakref.ref(cell), cell.array, cell.backend, cell.capture, inner_array))
        self.insides.add(id(inner_array))
        cell.backend, cell.array, cell.capture = inner, inner_array, self

    def _check_not_constant(self, cell: Storage) -> None:
        """Raise ValueError for an array from outside of a compiled function on another device, which would be a
        constant of its program."""
        if self.reads and is_device(cell.backend) and cell not in self.new_storages:
            raise ValueError(
                f"a compiled function on {device_of(self.inner)} reads an array on {device_of(cell.backend)} from"
                " outside, but a program runs on one device: move the array with to_device, outside of the"
                " function"
            )

    def _copied_from_device(self, cell: Storage) -> Any:
        """Return an array of `outer` with the values of one on another device, to which the program moves others."""
        if self.before is not None:
            self.before.take(cell)
            return cell.array
        with self.outer.scope():
            return self.outer.asarray(cell.backend.to_numpy(cell.array))

    def reading(self, cell: Storage) -> None:
        if self.reads:
            self.touch(cell)
        elif self.before is not None and cell.capture is not self:
            self.before.reading(cell)

    def is_input(self, cell: Storage) -> bool:
        """Return True if a program that is being traced reads `cell` when it runs."""
        if not self.reads:
            return (id(cell) in self.arguments and is_compiling()) or (
                self.before is not None and self.before.is_input(cell)
            )
        if cell in self.new_storages:
            return False
        self.touch(cell)
        return any(lent_cell.inner_array is cell.array for lent_cell in self.lent_cells)

    def constant(self, cell: Storage) -> Any:
        """Return the array of a storage that was made inside, of values that are known; None where they are not."""
        capture: ArrayCapture | None = self
        while capture is not None:
            if capture.reads and cell in capture.new_storages:
                for lent_cell in capture.lent_cells:
                    if lent_cell.inner_array is cell.array and not lent_cell.backend.is_traced(lent_cell.array):
                        return lent_cell.array
            capture = capture.before
        return None

    def note(self, cell: Storage) -> None:
        """Remember where in the program a storage is made, of which an array is made now."""
        if cell not in self.origins and cell.capture is None:
            location = source_location.current_place()
            if location is not None:
                self.origins[cell] = location

    def writing(self, cell: Storage, value: Any) -> Any:
        """Return `value` as it is to be written into a storage."""
        self.touch(cell)
        xp = cell.backend
        return value if xp.is_array(value) else xp.lifted(value)

    def written(self) -> list[tuple[Storage, Any]]:
        """Return the storages from outside that the function has written, and their arrays inside."""
        changed = []
        for lent_cell in self.lent_cells:
            cell = lent_cell.cell()
            if cell is not None and (self.inner.mutable or cell.array is not lent_cell.inner_array):
                changed.append((cell, cell.array))
        return changed

    def restore(self) -> None:
        for cells in reversed(self.lent_cells):
            cell = cells.cell()
            if cell is not None:
                cell.backend, cell.array, cell.capture = cells.backend, cells.array, cells.capture
        for ref in self.results:
            if (cell := ref()) is not None:
                cell.capture = None


@contextlib.contextmanager
def capturing(
    outer: Backend, inner: Backend, reads: bool = False, name: str = "", fn: Callable[..., Any] | None = None
) -> Iterator[ArrayCapture]:
    capture = ArrayCapture(outer, inner, reads, name, fn)
    capture.before, now.capture = now.capture, capture
    if reads:
        made_during.append(capture.new_storages)
    try:
        yield capture
    finally:
        if reads:
            made_during[:] = [
                those for those in made_during if those is not capture.new_storages
            ]  # equal ones are others
        now.capture = capture.before
        capture.restore()


_MAKING = frozenset({"filter_eval_shape", "tg.source"})


def creation_backend(xp: Backend) -> Backend:
    """Return the backend for arrays that a program makes of nothing on `xp`: one of shapes while shapes are evaluated,
    one that records while a program is written down."""
    capture = now.capture
    while capture is not None:
        if capture.name in _MAKING and capture.outer is xp:
            return capture.inner
        capture = capture.before
    return xp


def join(*cells: Storage) -> bool:
    """Bring storages from inside and outside of a transform to one backend; return False if there is no transform, or
    they still differ."""
    capture = now.capture
    if capture is None:
        return False
    for cell in cells:
        capture.touch(cell)
    return len({cell.backend for cell in cells}) == 1


def level_of(cell: Storage) -> ArrayCapture | None:
    """Return the transform whose arrays a storage has; None where its array is one of a device, with a value."""
    capture = now.capture
    if capture is None:
        return None
    capture.reading(cell)
    if is_device(cell.backend) and _has_value(cell) and not capture.is_input(cell):
        return None
    while capture is not None and not capture.holds(cell):
        capture = capture.before
    return capture


def _has_value(cell: Storage) -> bool:
    return not cell.backend.is_traced(cell.array) and not cell.backend.is_differentiated(cell.array)


def name_of_trace() -> str:
    """Return the transform for which arrays have no values: the outermost that compiles or batches."""
    name, capture = None, now.capture
    while capture is not None:
        if capture.reads or capture.name in _HIDING:
            name = capture.name
        capture = capture.before
    return name or "a trace"


def name_of_derivative() -> str:
    """Return the transform that takes the innermost derivative."""
    capture = now.capture
    while capture is not None:
        if capture.name and not capture.reads and capture.name not in _HIDING:
            return capture.name
        capture = capture.before
    return "a derivative"


_HIDING = frozenset({"vmap", "filter_eval_shape"})


def origin_of(cell: Storage) -> Place | tuple[str, Any] | None:
    """Return the place at which the program made an array of a storage; ("an argument of", fn) or ("something from
    outside of", fn) for one that came into a transform from outside; None where that is not known."""
    capture, captured_by = now.capture, None
    while capture is not None:
        location = capture.origins.get(cell)
        if location is not None:
            return location
        if id(cell) in capture.arguments:
            return "an argument of", capture.fn
        if captured_by is None and capture.fn is not None and (capture.reads or id(cell) in capture.inputs):
            captured_by = capture.fn
        capture = capture.before
    return None if captured_by is None else ("something from outside of", captured_by)
