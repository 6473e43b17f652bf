"""Conditions that are not evaluated again while the objects that they read are unmodified.

CPython changes a word of memory whenever a dictionary, a class, a closure cell or a function is modified. A function in
C++ (`watched.cpp`) compares all these words, in a tenth of the time that the conditions take. It is compiled in another
thread once there are calls often enough to need it; without a compiler or the interpreter's header files, conditions
are evaluated at each call.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import operator
import os
import sys
import sysconfig
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

from tensorgraft.hub import cpp

# watch(objects) -> (changed, confirm): `changed()` returns None if nothing was modified since `confirm(number)` was
# called with the number that it had returned
Watch = Callable[[tuple[Any, ...]], tuple[Callable[[], int | None], Callable[[int], None]]]
CALLS = 1000  # of a signature, after which the function is compiled
_CALLS_WHILE_COMPILING = 30_000  # take about a second
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")


class _Unwatched(Exception):
    """An expression reads what has no such word, or a variable."""


# ---- what expressions read -------------------------------------------------------------------------------------------


def objects_read(expression: str, space: Mapping[str, Any]) -> list[Any] | None:
    """Return the objects whose modification may change whether a condition is true; None if there is another way to
    change it. Of a list of names, which are dictionaries or their values: the objects that change what is in them.
    `space`: the values of all names, which are constant. The class of `x` is written `(x,)`."""
    found: list[Any] = []
    reader = _Reader(space, found)
    body = ast.parse(expression, mode="eval").body
    try:
        if isinstance(body, ast.List):
            for name in body.elts:
                reader.table(name, in_order=True)
        else:
            reader.condition(body)
    except _Unwatched:
        return None
    return found


def conjuncts(condition: str) -> list[str]:
    """Return the conditions that are combined by `and`."""
    body = ast.parse(condition, mode="eval").body
    if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And):
        return list(map(ast.unparse, body.values))
    return [condition]


class _Reader:
    def __init__(self, space: Mapping[str, Any], found: list[Any]) -> None:
        self._space, self._found = space, found

    def condition(self, e: ast.expr) -> None:
        match e:
            case ast.BoolOp(_, values):
                for value in values:
                    self.condition(value)
            case ast.UnaryOp(ast.Not(), operand):
                self.condition(operand)
            case ast.Compare(ast.Constant(str()), [ast.In() | ast.NotIn()], [table]):
                self.table(table)
            case ast.Compare(ast.Call(ast.Name("len"), [table], []), [ast.Eq()], [ast.Constant()]):
                self.table(table)
            case ast.Compare(ast.List([ast.Starred(table)]), [ast.Eq()], [ast.Name(names)]) if names in self._space:
                self.table(table, in_order=True)
            case ast.Compare(x, [ast.Is() | ast.IsNot()], [ast.Constant() | ast.Name() as y]):
                self._value(x)
                if isinstance(y, ast.Name):
                    self._object(y)
            case ast.Name():  # true if it is not empty
                self.table(e)
            case _:
                raise _Unwatched

    def _object(self, e: ast.expr) -> Any:
        if not isinstance(e, ast.Name) or e.id not in self._space:
            raise _Unwatched
        return self._space[e.id]

    def table(self, e: ast.expr, in_order: bool = False) -> None:
        """Note a dictionary, which may be that of a view or of a class."""
        x = self._object(e)
        if type(x) is type({}.values()):
            x = x.mapping
        if type(x) is types.MappingProxyType:
            (x,) = gc.get_referents(x)
        # the order of an OrderedDict is its own
        if type(x) is not dict and (in_order or type(x) is not OrderedDict):
            raise _Unwatched
        self._found.append(x)

    def _value(self, e: ast.expr) -> None:
        """Note where a value is looked up, which is compared by identity."""
        match e:
            case ast.Subscript(table, ast.Constant(str())):
                self.table(table)
            case ast.Call(ast.Attribute(table, "get"), [key], []):
                if type(self._object(key)) is not str:
                    raise _Unwatched
                self.table(table)
            case ast.Call(ast.Name("type"), [x], []):
                self._found.append((self._object(x),))
            case ast.Attribute(owner, name):
                self._attribute(self._object(owner), name)
            case _:
                raise _Unwatched

    def _attribute(self, owner: Any, name: str) -> None:
        kind = type(owner)
        if kind is types.ModuleType and name in owner.__dict__:
            self._found += (owner.__dict__, (owner,))
        elif (
            (kind is type and _is_plain_attribute(owner, name))
            or (kind is types.CellType and name == "cell_contents")
            or (kind is types.FunctionType and name in _OF_FUNCTIONS)
        ):
            self._found.append(owner)
        else:
            raise _Unwatched


def _is_plain_attribute(owner: type, name: str) -> bool:
    """Return True if an attribute of a class is what is in the tables of its bases."""
    if name == "__mro__":
        return True
    found = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)
    is_own = not hasattr(type(vars(type).get(name)), "__set__")  # the class of classes does not define it
    return found is not None and is_own and (type(found) is types.FunctionType or not hasattr(type(found), "__get__"))


# ---- the function ----------------------------------------------------------------------------------------------------


class _Library:
    """The compiled function, once it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False
        self.watch: Watch | None = None
        # since 3.13 a dictionary keeps its version where an attribute of its object is set
        is_known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 12)
        # False: there is none
        self.possible = is_known and Path(sysconfig.get_path("include"), "Python.h").exists()

    def countdown(self, is_frequent: bool) -> repeat[None]:
        """Return an iterator over the calls of a signature after which to ask for the function (again)."""
        return repeat(None, _CALLS_WHILE_COMPILING if is_frequent else CALLS)

    def start(self) -> None:
        """Compile in another thread."""
        with self._lock:
            if self._started:
                return
            self._started = True
        try:
            threading.Thread(target=self.load, name="tensorgraft-compile").start()
        except RuntimeError:  # no more threads, or the process is about to end
            self.possible = False

    def load(self) -> None:
        """Compile, or find the library in the cache."""
        text = Path(__file__).with_name("watched.cpp").read_text(encoding="utf-8")
        options = (f"-I{sysconfig.get_path('include')}", f"-DINTERPRETER={sysconfig.get_config_var('SOABI')}")
        try:
            watch: Any = ctypes.PyDLL("", handle=cpp.library(text, options)._handle).watch
            watch.argtypes, watch.restype = (ctypes.py_object,), ctypes.py_object
            self.watch = watch if _notices(watch) else None
        except (cpp.NoCompilerError, OSError):
            return
        finally:
            self.possible = self.watch is not None

    def after_fork(self) -> None:
        if self._started and self.watch is None:  # the thread is not there
            self.possible = False


def _notices(watch: Watch) -> bool:
    """Return True if modifications of every kind of object are noticed, and nothing else is."""

    class Base:
        pass

    class Kind(Base):
        pass

    def function(x: int = 0) -> Any:
        return lambda: content

    def store(x: Any, value: int) -> None:
        x.a = value

    content, instance, table = 0, Kind(), OrderedDict(a=1)
    for k in range(100):  # the interpreter specialises it
        store(instance, k)
    attributes, cell = vars(instance), function().__closure__[0]
    modifications: list[Callable[[], object]] = [
        lambda: setattr(instance, "a", -1),
        lambda: store(instance, -2),
        lambda: setattr(instance, "b", 2),
        lambda: delattr(instance, "b"),
        lambda: operator.setitem(table, "a", 2),
        table.clear,
        lambda: setattr(cell, "cell_contents", 1),
        lambda: setattr(function, "__defaults__", (1,)),
        lambda: setattr(Base, "x", 1),
        lambda: setattr(instance, "__class__", Base),
    ]
    changed, confirm = watch((attributes, table, cell, function, Kind, (instance,)))
    for modify in modifications:
        Kind.__mro__, getattr(Kind, "x", None)  # gives the class a version
        confirm(changed() or 0)
        if changed() is not None:
            return False
        modify()
        if changed() is None:
            return False
    return True


library = _Library()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=library.after_fork)
