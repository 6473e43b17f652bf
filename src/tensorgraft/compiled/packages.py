"""Guards for the state of packages that a program changes between two calls: functions of modules that it replaces,
attributes of their classes, registries.

Packages (other than frameworks and the standard library) are large, so only code that runs is examined: functions that
the program mentions, methods that read an attribute while a function is traced, and the functions that these mention in
turn.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from operator import call, eq, itemgetter
from typing import Any

from tensorgraft.compiled.captured_objects import (
    FRAMEWORKS,
    functions_around,
    in_library,
    is_of_program,
    is_python_class,
)
from tensorgraft.compiled.instructions import names_of, stored_names
from tensorgraft.compiled.lookups import ABSENT
from tensorgraft.compiled.outside_calls import REPLACED
from tensorgraft.compiled.values import is_plain, is_same_value

_SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_LAYERS = os.sep + os.path.join("torch", "nn", "modules", "")
_MOST_FUNCTIONS, _MOST_ENTRIES = 500, 50
_CONTAINERS = (dict, list, set, deque)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

Space = Mapping[str, Any]


@functools.lru_cache(maxsize=4096)
def _is_of_package(file: str) -> bool:
    """Return True for a file of a package that is neither a framework nor a part of Python."""
    site = next((site for site in _SITE if file.startswith(site)), None)
    return site is not None and file[len(site) :].partition(os.sep)[0].removesuffix(".py") not in FRAMEWORKS


def _is_of_layers(file: str) -> bool:
    """Return True for a file that defines a framework's layers, which call functions of the program."""
    return _LAYERS in file and not file.endswith(_LAYERS + "module.py")


class Packages:
    """The values that functions of packages mention, as of the first time that each function was found."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()
        self._classes: set[tuple[int, frozenset[str]]] = set()
        self._places: dict[tuple[int, str], tuple[Space, str, Any]] = {}
        self._containers: dict[int, tuple[str, Any, list[Any]]] = {}

    def see(self, code: types.CodeType, space: Space) -> None:
        """Examine the names that a function mentions, given its code and its global variables."""
        if code in self._codes or len(self._codes) >= _MOST_FUNCTIONS:
            return
        self._codes.add(code)
        if not (_is_of_package(code.co_filename) or _is_of_layers(code.co_filename)):
            return
        names = names_of(code)
        for name in sorted(names & space.keys() - stored_names(code) - REPLACED):
            self.meet(space, name, names)

    def meet(self, space: Space, name: str, names: frozenset[str], looked_up: bool = False) -> None:
        """Examine a module's attribute that a function mentions together with other `names`. `looked_up`: it is already
        guarded."""
        value = space[name]
        if isinstance(value, types.ModuleType):
            if not looked_up and value.__name__.partition(".")[0] not in sys.stdlib_module_names:
                inner = {n for n in names & vars(value).keys() if vars(value)[n] is not value and n != name}
                for n in sorted(inner - REPLACED):
                    self.meet(vars(value), n, names - {name})
        elif isinstance(value, type):
            self.meet_class(value, names)
        else:
            if not looked_up or isinstance(value, _CONTAINERS):
                self._place(space, name, value)
            if isinstance(value, types.FunctionType):
                for fn in (value, *(fn for _, fn in functions_around(value) if isinstance(fn, types.FunctionType))):
                    self.see(fn.__code__, fn.__globals__)
            elif is_of_program(value):
                self.meet_object(value, names)

    def meet_object(self, value: Any, names: frozenset[str]) -> None:
        """Look at the attributes of an object of a package, and at its methods that a function calls."""
        self.meet_class(type(value), names)
        attributes: dict[str, Any] = getattr(value, "__dict__", {})
        for key, inner in attributes.items():
            if is_plain(inner) or isinstance(inner, _CONTAINERS):
                self._place(attributes, key, inner)

    def meet_class(self, cls: type, names: frozenset[str]) -> None:
        """Look at the attributes of a package's class that are mentioned, also by its methods among them, and at its
        special methods."""
        if (id(cls), names) in self._classes:
            return
        self._classes.add((id(cls), names))
        bases = [base for base in cls.__mro__ if is_python_class(base) and _is_class_of_package(base)]
        for base in bases:
            names |= {n for n, v in vars(base).items() if n.endswith("__") and isinstance(v, types.FunctionType)}
        mentioned: frozenset[str] = frozenset()
        while new := [(base, n) for base in bases for n in sorted(names & vars(base).keys() - mentioned)]:
            mentioned = names
            for base, name in new:
                value = vars(base)[name]
                for fn in _functions_of(value):
                    self.see(fn.__code__, fn.__globals__)
                    names |= names_of(fn.__code__)
                if is_plain(value) or isinstance(value, (*_CONTAINERS, types.FunctionType)):
                    self._place(vars(base), name, value, base)

    def _place(self, space: Space, name: str, value: Any, owner: Any = None) -> None:
        if name.endswith("__") and is_plain(value):  # the names of a module and of a class
            return
        self._places.setdefault((id(owner or space), name), (space, name, value))
        if isinstance(value, _CONTAINERS) and len(value) <= _MOST_ENTRIES:
            self._containers.setdefault(id(value), (name, value, entries_of(value)))

    def places(self) -> list[tuple[Space, str]]:
        """Return where values other than functions are looked up, except those that the function itself changes at each
        call."""
        values = ((s, n, value) for s, n, value in self._places.values() if not isinstance(value, _FUNCTIONS))
        return [(s, n) for s, n, value in values if is_same_value(s.get(n, ABSENT), value)]

    def namespaces(self) -> Namespaces:
        """Return the functions that have not changed since."""
        of_owners: dict[int, tuple[Space, dict[str, Any]]] = {}
        for (owner, _), (space, name, value) in self._places.items():
            if isinstance(value, _FUNCTIONS) and space.get(name) is value:
                of_owners.setdefault(owner, (space, {}))[1][name] = value
        return Namespaces(of_owners.values())

    def containers(self) -> Iterator[tuple[str, Any]]:
        """Yield the containers that have not changed since."""
        for name, of, before in self._containers.values():
            now = entries_of(of)
            if len(now) == len(before) and all(map(is_same_value, now, before)):
                yield name, of

    def functions(self) -> Iterator[tuple[str, Any]]:
        """Yield the functions that the program has put into modules and containers."""
        values = [(name, value) for _, name, value in self._places.values()]
        values += [(name, value) for name, _, before in self._containers.values() for value in before]
        return ((name, value) for name, value in values if _is_of_program(value))


class Namespaces:
    """Functions in modules and classes, all of which are compared at once."""

    def __init__(self, spaces: Iterable[tuple[Space, dict[str, Any]]]) -> None:
        self._spaces = list(spaces)
        self._getters = [itemgetter(*functions) for _, functions in self._spaces]
        self._of = [space for space, _ in self._spaces]
        self._expected = [tuple(fns.values()) if len(fns) > 1 else next(iter(fns.values())) for _, fns in self._spaces]

    def hold(self) -> bool:
        """Return whether each function is the same, which functions are compared by."""
        try:
            return all(map(eq, map(call, self._getters, self._of), self._expected))
        except KeyError:
            return False

    def failure(self) -> str | None:
        """Return the name of a function that was replaced, or None."""
        places = ((space, name, fn) for space, functions in self._spaces for name, fn in functions.items())
        return next(
            (f"{fn.__qualname__} was replaced" for space, name, fn in places if space.get(name) is not fn), None
        )

    def __bool__(self) -> bool:
        return bool(self._spaces)


def entries_of(of: Any) -> list[Any]:
    """Return the entries of a container."""
    return [*of, *of.values()] if isinstance(of, dict) else [*of]


def _is_of_program(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not in_library(value.__code__.co_filename)


def _functions_of(member: Any) -> list[types.FunctionType]:
    members = [member, *(getattr(member, name, None) for name in ("__func__", "fget"))]
    return [fn for fn in members if isinstance(fn, types.FunctionType)]


def _is_class_of_package(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return _is_of_package(file) or _is_of_layers(file)
