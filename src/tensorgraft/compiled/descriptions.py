"""Names, documentation and annotations of functions and classes, and classes of objects, as far as code reads
them."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable
from typing import Any

from tensorgraft.compiled.captured_objects import is_program_class
from tensorgraft.compiled.instructions import asks_for_classes
from tensorgraft.compiled.lookups import ABSENT
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.tables import Namespace, is_special

# attributes of functions and classes that describe them
_DESCRIPTIONS = {"__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__signature__"}
# special methods that Python does not call for an expression
_UNCALLED = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__getattr__", "__getattribute__"}
_UNCALLED |= {"__setattr__", "__delattr__", "__del__", "__repr__", "__reduce__", "__reduce_ex__", "__getstate__"}
_UNCALLED |= {"__setstate__", "__replace__", "__copy__", "__deepcopy__", "__dir__", "__hash__", "__eq__"}


def values_at(places: Iterable[tuple[Any, str]]) -> list[Any]:
    return [getattr(of, name, ABSENT) for of, name in places]


@functools.lru_cache(maxsize=4096)
def _has_special_methods(cls: Any) -> bool:
    """Return whether a class of a program defines a method that Python calls for an expression (`len(x)`, `x(y)`)."""
    entries = (item for base in cls.__mro__ if is_program_class(base) for item in vars(base).items())
    return any(is_special(n) and n not in _UNCALLED and isinstance(v, types.FunctionType) for n, v in entries)


def classes_of(objects: Iterable[Any]) -> list[type]:
    return [*map(type, objects)]


def described(world: Reachable, functions: Iterable[types.FunctionType]) -> list[tuple[Any, str]]:
    """Return (a function or a class, an attribute that describes it) for those attributes that code mentions."""
    mentioned = {name for code in world.codes for name in code.co_names} & _DESCRIPTIONS
    classes = [table.of.of for table in world.tables.values() if isinstance(table.of, Namespace)]
    return [(of, name) for of in (*functions, *classes) for name in sorted(mentioned) if hasattr(of, name)]


def with_guarded_classes(world: Reachable) -> list[Any]:
    """Return the program's objects whose classes count, because functions ask for them, or because Python calls methods
    of them (`len(x)`, `x(y)`)."""
    owners = [owner for owner in world.owners if id(owner) not in world.finders]
    if any(map(asks_for_classes, world.codes)):
        return owners
    return [owner for owner in owners if _has_special_methods(owner.__class__)]


def uses_decimals(world: Reachable) -> bool:
    """Return whether decimal numbers are in reach, whose arithmetic reads the context."""
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return False
    return any(x is decimal or x is decimal.Decimal or isinstance(x, decimal.Decimal) for x in world.visited.values())
