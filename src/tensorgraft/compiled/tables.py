"""Tables: mutable objects of Python as entries by keys, whatever kind of object holds the entries."""

from __future__ import annotations

import contextlib
import enum
import inspect
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from tensorgraft.compiled.captured_objects import Call
from tensorgraft.compiled.instructions import stored_names

Find = Callable[[Call], Any]


@dataclass(slots=True)
class Table:
    """A mutable object whose entries a function may change, with its entries before a trace.

    `find` returns the corresponding object at another call: the same one, unless it belongs to the arguments.
    """

    name: str
    of: Any
    before: Any  # a dict, a list or a set
    find: Find | None  # None: always `of`
    start: Any = None  # the contents when the trace began, if these are not `before`
    names: set[str] = field(default_factory=set)  # names by which the function reaches it; empty for attributes
    keys: Collection[Any] | None = None  # of a dict: the keys that are compared; None: all

    def entries(self) -> Any:
        """Return a copy of the current entries that are compared."""
        now = entries_of(self.of)
        return now if self.keys is None else {key: value for key, value in now.items() if key in self.keys}

    def restrict(self, keys: Collection[Any]) -> None:
        """Compare only the entries of these keys from now on; others were changed by another thread."""
        self.keys = keys
        self.before = {key: value for key, value in self.before.items() if key in keys}

    def restore(self) -> None:
        """Give the object its entries of before the trace."""
        _restore(self.of, self.before, self.entries())

    def located(self, call: Call) -> Any:
        return self.of if self.find is None else self.find(call)


class Variables:
    """The variables that a function captures from functions around it, and the global variables that it assigns."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.fn = fn
        self.globals = sorted(stored_names(fn.__code__))

    def entries(self) -> dict[int | str, Any]:
        """Return the values of captured variables by their positions, of global ones by their names."""
        space = self.fn.__globals__
        values: dict[int | str, Any] = {name: space[name] for name in self.globals if name in space}
        for k, cell in enumerate(self.fn.__closure__ or ()):
            with contextlib.suppress(ValueError):  # a variable that is not bound yet
                values[k] = cell.cell_contents
        return values

    def put(self, key: int | str, value: Any) -> None:
        if isinstance(key, int):
            self._cell(key).cell_contents = value
        else:
            self.fn.__globals__[key] = value

    def drop(self, key: int | str) -> None:
        if isinstance(key, int):
            del self._cell(key).cell_contents
        else:
            self.fn.__globals__.pop(key, None)

    def _cell(self, k: int) -> types.CellType:
        assert self.fn.__closure__ is not None
        return self.fn.__closure__[k]


class Namespace:
    """The attributes of a class or of a Python module of the program whose names its functions mention."""

    def __init__(
        self, of: Any, names: Iterable[str], stored: Collection[str] = (), requested: Collection[str] = ()
    ) -> None:
        """`stored`: names that the functions may add; `requested`: names whose absence counts."""
        self.of = of
        classes = [*of.__mro__[:-1], *inspect.getmro(type(of))[:-2]] if isinstance(of, type) else [of]
        above = [vars(cls) for cls in classes]
        public = [n for n in names if not is_special(n)]
        if isinstance(of, types.ModuleType) and "__getattr__" in vars(of):  # called for missing names: absence counts
            requested = public
        self.names = [n for n in public if n in requested or any(n in space for space in above)]
        if isinstance(of, type):
            specials = {n: v for n, v in vars(of).items() if is_special(n)}
            self.names += [n for n, v in specials.items() if _is_called(v)]  # by Python
            self.names += [n for n in names if isinstance(specials.get(n), _VALUES)]  # `cls.__annotations__`
            self.names += [n for n in MAKING if n in vars(of)]
            if issubclass(of, enum.Enum):  # a member may be found by its value
                self.names += [n for n in of.__members__ if n not in self.names]
        self._all = [*self.names, *(n for n in public if n in stored and n not in self.names)]

    def sees(self, name: str) -> bool:
        """Return whether an attribute is among the entries, if it exists."""
        return name in self._all

    def entries(self) -> dict[str, Any]:
        attributes = vars(self.of)
        return {name: attributes[name] for name in self._all if name in attributes}

    def put(self, key: str, value: Any) -> None:
        setattr(self.of, key, value)

    def drop(self, key: str) -> None:
        delattr(self.of, key)


def _is_called(member: Any) -> bool:
    """Return True for an entry of a class that a call of a special method uses: a function, or a descriptor around
    one."""
    return callable(member) or (hasattr(type(member), "__get__") and not isinstance(member, types.GetSetDescriptorType))


_VALUES = dict | list | tuple | str
MAKING = ("__init__", "__new__", "__post_init__")


def is_special(name: str) -> bool:
    """Return True if Python calls a method of this name by itself, other than to make an object."""
    return name.startswith("__") and name.endswith("__") and name not in ("__getattribute__", *MAKING)


class Slots:
    """Attributes of an object whose class has `__slots__`."""

    def __init__(self, of: Any, names: Sequence[str]) -> None:
        self.of, self.names = of, names

    def entries(self) -> dict[str, Any]:
        return {name: getattr(self.of, name) for name in self.names if hasattr(self.of, name)}

    def put(self, key: str, value: Any) -> None:
        object.__setattr__(self.of, key, value)

    def drop(self, key: str) -> None:
        object.__delattr__(self.of, key)


class ContextValue:
    """The value of a context variable."""

    def __init__(self, of: ContextVar[Any]) -> None:
        self.of = of

    def entries(self) -> dict[str, Any]:
        value = self.of.get(_UNSET)
        return {} if value is _UNSET else {"value": value}

    def put(self, key: str, value: Any) -> None:
        self.of.set(value)

    def drop(self, key: str) -> None:
        """Do nothing: a context variable cannot be unset. Only a `get` without a default would notice."""


_UNSET = object()


class Environment:
    """Variables of the process's environment."""

    def __init__(self) -> None:
        import os

        self.of = os.environ

    def entries(self) -> dict[str, str]:
        return dict(self.of)

    def put(self, key: str, value: str) -> None:
        self.of[key] = value

    def drop(self, key: str) -> None:
        del self.of[key]


def entries_of(of: Any) -> Any:
    """Return a shallow copy of a table: a dict, a list or a set."""
    if isinstance(of, dict):
        return dict(of.items()) if type(of) is not dict else of.copy()
    if isinstance(of, list | deque):
        return list(of)
    return set(of) if isinstance(of, set) else of.entries()


def put(of: Any, key: Any, value: Any) -> None:
    if isinstance(of, dict):
        (OrderedDict if isinstance(of, OrderedDict) else dict).__setitem__(of, key, value)
    else:
        of.put(key, value)


def drop(of: Any, key: Any) -> None:
    if isinstance(of, dict):
        # the function may have removed it, too
        (OrderedDict if isinstance(of, OrderedDict) else dict).pop(of, key, None)
    else:
        of.drop(key)


def reorder(of: Any, keys: Iterable[Any]) -> None:
    """Move these entries of a dict to its end, in this order."""
    for key in keys:
        if key in of:
            value = of[key]
            drop(of, key)
            put(of, key, value)


def entry_of(of: Any, key: Any) -> Any:
    """Return one entry of a table."""
    return of[key] if isinstance(of, dict | list | deque) else of.entries()[key]


def _restore(of: Any, before: Any, entries: Any) -> None:
    if isinstance(of, set):
        if of != before:
            of.clear()
            of.update(before)
        return
    if isinstance(before, list):
        if len(entries) != len(before) or not all(map(is_, entries, before)):
            of.clear()
            of.extend(before)
        return
    for key in entries:
        if key not in before:
            drop(of, key)
    for key, value in before.items():
        if key not in entries or entries[key] is not value:
            put(of, key, value)
    if isinstance(of, dict) and len(of) == len(before) and list(of) != list(before):
        reorder(of, before)


# ---- in the arguments of a call --------------------------------------------------------------------------------------


def find_argument(i: int) -> Find:
    """Return how a positional argument of a call is found."""
    return lambda call: call[0][i]


def find_keyword(name: str) -> Find:
    """Return how a keyword argument of a call is found."""
    return lambda call: call[1][name]


def find_item(find: Find | None, key: Any) -> Find | None:
    """Return how an entry of what `find` finds is found; None where that is no argument."""
    return None if find is None else lambda call: find(call)[key]


def find_attribute(find: Find | None, name: str) -> Find | None:
    """Return how an attribute of what `find` finds is found; None where that is no argument."""
    return None if find is None else lambda call: getattr(find(call), name)


def find_attributes(find: Find) -> Find:
    """Return how the attributes of what `find` finds are found."""
    return lambda call: vars(find(call))
