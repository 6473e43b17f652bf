"""Lookups of many values at once: entries of dictionaries, variables of functions, attributes. A guard makes hundreds
of them at each call of a compiled function."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, call
from typing import Any

from tensorgraft.hub.straight_line import StraightLine


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()  # the value of an entry that does not exist, or of an unbound variable
_content = attrgetter("cell_contents")
_MOST = 64  # lookups that are written one by one


class Lookups:
    """Entries of dictionaries by key, closure cells, and attributes by name, whose values are looked up."""

    def __init__(
        self,
        entries: Iterable[tuple[Mapping[str, Any], str]] = (),
        cells: Iterable[types.CellType] = (),
        attributes: Iterable[tuple[Any, str]] = (),
    ) -> None:
        self.entries, self.cells, self.attributes = list(entries), list(cells), list(attributes)
        self._prepare()

    def _prepare(self) -> None:
        self._getters: list[Callable[..., Any]] = [table.get for table, _ in self.entries]
        self._keys = [key for _, key in self.entries]
        self._owners = [owner for owner, _ in self.attributes]
        self._names = [name for _, name in self.attributes]

    def current(self) -> list[Any]:
        """Return the values, in the order entries, cells, attributes."""
        values = list(map(call, self._getters, self._keys, repeat(ABSENT))) if self._keys else []
        if self.cells:
            try:
                values += list(map(_content, self.cells))
            except ValueError:  # a variable that is not bound yet
                values += map(content_of, self.cells)
        if self._names:
            values += map(getattr, self._owners, self._names, repeat(ABSENT))
        return values

    def write(self, code: StraightLine, values: Sequence[Any]) -> None:
        """Write the condition that the lookups return exactly the objects `values`, in the order of `current`."""
        if len(values) > _MOST:
            code.require_objects(code.let(f"{code.name(self.current)}()"), values)
            return
        entries, cells, attributes = self.split(values)
        for (table, key), value in zip(self.entries, entries, strict=True):
            if value is ABSENT:
                code.require(f"{key!r} not in {code.name(table)}")
            elif table.__class__ is dict and key.__class__ is str:
                code.require(f"{code.name(table)}[{key!r}] is {code.name(value)}")
            else:
                code.require(f"{code.name(table)}.get({code.name(key)}) is {code.name(value)}")
        for cell, value in zip(self.cells, cells, strict=True):
            content = (
                f"{code.name(content_of)}({code.name(cell)})" if value is ABSENT else f"{code.name(cell)}.cell_contents"
            )
            code.require(f"{content} is {code.name(value)}")
        for (owner, name), value in zip(self.attributes, attributes, strict=True):
            if value is ABSENT or not name.isidentifier():
                code.require(f"getattr({code.name(owner)}, {name!r}, {code.name(ABSENT)}) is {code.name(value)}")
            else:
                code.require(f"{code.name(owner)}.{name} is {code.name(value)}")

    def each_once(self, values: Sequence[Any]) -> list[Any]:
        """Look no place up twice that has one of `values` twice. Returns the values that are left."""
        kinds = ("entries", "cells", "attributes")
        left: list[Any] = []
        for kind, values_of_kind in zip(kinds, self.split(values), strict=True):
            unique = {
                _lookup_key(lookup, value): (lookup, value)
                for lookup, value in zip(getattr(self, kind), values_of_kind, strict=True)
            }
            setattr(self, kind, [lookup for lookup, _ in unique.values()])
            left += [value for _, value in unique.values()]
        self._prepare()
        return left

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Return values in the order of `current` as those of entries, of cells and of attributes."""
        a = len(self.entries)
        b = a + len(self.cells)
        return values[:a], values[a:b], values[b : b + len(self.attributes)]


def _lookup_key(lookup: Any, value: Any) -> Any:
    """Return a key of a place that is expected to have a value."""
    owner, name = lookup if isinstance(lookup, tuple) else (lookup, "")
    return id(owner), name, id(value)


def content_of(cell: types.CellType) -> Any:
    """Return the value of a variable, or ABSENT if it is unbound."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT
