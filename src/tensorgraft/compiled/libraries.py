"""Attributes of libraries' modules that the functions of a program mention, which a program may replace:
`torch.nn.functional.relu = ...`, `torch.backends.cudnn.benchmark = True`, `builtins.print = ...`."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tensorgraft.compiled.captured_objects import in_library
from tensorgraft.compiled.outside_calls import REPLACED

PATCHED: list[type] = []  # classes of frameworks that programs give methods


class Libraries:
    """Modules of libraries, and the names that functions mention."""

    def __init__(self) -> None:
        self._modules: list[types.ModuleType] = [builtins]
        self._names: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: types.ModuleType) -> Iterator[types.ModuleType]:
        """Add a module; yield the modules that it represents (`torch.backends`)."""
        self._modules.append(module)
        if type(module) is not types.ModuleType:
            modules = (value for value in vars(module).values() if isinstance(value, types.ModuleType))
            yield from (inner for inner in modules if inner.__name__ == module.__name__)

    def mention(self, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Set the names that functions mention; yield (name, module or function of the program) for those that refer to
        one."""
        self._names = frozenset(names)
        for owner, name in self.entries():
            if _is_put_there(value := vars(owner)[name]):
                yield f"{owner.__name__}.{name}", value

    def entries(self) -> Iterator[tuple[Any, str]]:
        """Yield (a module, a name in it), except for entries that a trace itself replaces; of the classes in `PATCHED`,
        entries that the program has set."""
        for module in self._modules:
            yield from ((module, name) for name in sorted(self._names & vars(module).keys() - REPLACED))
        for cls in PATCHED:
            table = vars(cls)
            yield from ((cls, name) for name in sorted(self._names & table.keys()) if _is_put_there(table[name]))

    def properties(self) -> Iterator[tuple[Any, str]]:
        """Yield (a module, a name) for attributes that modules compute when they are read."""
        for module in self._modules:
            for cls in type(module).__mro__:
                if cls not in types.ModuleType.__mro__:
                    names = sorted(self._names & vars(cls).keys())
                    yield from ((module, name) for name in names if _is_computed(vars(cls)[name]))


def modules_named(names: Iterable[str], package: str) -> list[types.ModuleType]:
    """Return the modules, of those that are loaded, that `import` inside a function of a package finds by a name."""
    parts = package.split(".") if package else []
    above = ["", *(".".join(parts[: k + 1]) + "." for k in range(len(parts)))]
    modules = (sys.modules.get(before + name) for name in sorted(names) for before in above)
    return [module for module in modules if isinstance(module, types.ModuleType)]


def _is_put_there(value: Any) -> bool:
    """Return True if an attribute of a library's module or class is a module, or a function of the program."""
    of_program = isinstance(value, types.FunctionType) and not in_library(value.__code__.co_filename)
    return of_program or isinstance(value, types.ModuleType)


def _is_computed(member: Any) -> bool:
    return hasattr(type(member), "__get__") and not isinstance(member, types.FunctionType)
