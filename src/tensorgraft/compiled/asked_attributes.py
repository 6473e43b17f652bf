"""Attributes of classes, Python modules and functions that a program asks for by a name that it computes:
`getattr(config, f"rate_{stage}")`, `vars(config)`, `inspect.getmembers(Config)`.

Attributes with names that the code mentions are found before a function is traced. These are noted while it is traced:
calls of `getattr`, `hasattr` and `vars` are intercepted (`outside_calls`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tensorgraft.compiled.captured_objects import is_python_class
from tensorgraft.compiled.lookups import ABSENT, Lookups
from tensorgraft.compiled.tables import Namespace

_SPACES = (type, types.ModuleType, types.FunctionType)


_OF_CLASSES = {"__dict__", "getmembers", "getmembers_static"}  # names by which code reads all attributes of classes
_ASKING = {"getattr", "hasattr", "vars", "setattr", "delattr", *_OF_CLASSES}


def asks(names: Collection[str]) -> bool:
    """Return whether code that mentions these names may ask for attributes by other ones."""
    return not _ASKING.isdisjoint(names)


class AskedAttributes:
    """The attributes that were asked for. `world`, a `side_effects.Reachable`, examines their values when they are
    first found."""

    def __init__(self, world: Any, names: Collection[str]) -> None:
        self._world, self._watch = world, world.watch
        self._reads_classes = not _OF_CLASSES.isdisjoint(names)
        self._names: dict[tuple[int, str], tuple[Any, str]] = {}
        self._whole: dict[int, Any] = {}

    def note(self, owner: Any, name: str) -> None:
        """Note that an attribute is read, be it there or not."""
        if not isinstance(owner, _SPACES) or name.startswith("__") or (id(owner), name) in self._names:
            return
        self._names[id(owner), name] = owner, name
        for space, _ in places_of(owner, name):
            if name in space:
                self._watch(f"{owner.__name__}.{name}", space[name])

    def note_all(self, owner: Any) -> None:
        """Note that all attributes of a class or a module are read."""
        if not isinstance(owner, _SPACES) or id(owner) in self._whole:
            return
        self._whole[id(owner)] = owner
        for name, value in _own(owner).items():
            self._watch(f"{owner.__name__}.{name}", value)

    def _spaces(self) -> list[Any]:
        return [table.of for table in self._world.tables.values() if isinstance(table.of, Namespace)]

    def sees(self, owner: Any, name: str) -> bool:
        """Return whether a change of an attribute is seen after the trace."""
        if not isinstance(owner, type | types.ModuleType) or self._world.is_new(owner):
            return True
        return any(space.of is owner and space.sees(name) for space in self._spaces())

    def finish(self) -> None:
        """Note the attributes of classes that the program may have read all at once."""
        for space in self._spaces() if self._reads_classes else ():
            if isinstance(space.of, type):
                self.note_all(space.of)

    def places(self) -> Iterator[tuple[str, Lookups]]:
        """Yield (a name for messages, where attributes are looked up)."""
        for owner, name in self._names.values():
            yield owner.__name__, Lookups(places_of(owner, name))

    def contents(self) -> Iterator[tuple[str, Any, Callable[[], list[Any]]]]:
        """Yield (a name, a class or a module, a function that returns the names and values of all its attributes)."""
        for owner in self._whole.values():
            yield owner.__name__, owner, functools.partial(_names_and_values, owner)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield (a name, a value) for the attributes that exist."""
        for owner, name in self._names.values():
            found = (space.get(name, ABSENT) for space, _ in places_of(owner, name))
            yield from ((f"{owner.__name__}.{name}", value) for value in found if value is not ABSENT)
        for owner in self._whole.values():
            yield from ((f"{owner.__name__}.{name}", value) for name, value in _own(owner).items())


def places_of(owner: Any, name: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return the tables in which an attribute is looked up, the last one being that which has it."""
    if not isinstance(owner, type):
        return [(vars(owner), name)]
    spaces = [vars(cls) for cls in owner.__mro__ if is_python_class(cls)]
    found = next((k for k, space in enumerate(spaces) if name in space), len(spaces))
    return [(space, name) for space in spaces[: found + 1]]


def _own(owner: Any) -> dict[str, Any]:
    """Return the attributes of a class, those of its bases included, or of a module, except special ones."""
    spaces = (
        [vars(cls) for cls in reversed(owner.__mro__) if is_python_class(cls)]
        if isinstance(owner, type)
        else [vars(owner)]
    )
    return {name: value for space in spaces for name, value in space.items() if not name.startswith("__")}


def _names_and_values(owner: Any) -> list[Any]:
    own = _own(owner)
    return [*own, *own.values()]
