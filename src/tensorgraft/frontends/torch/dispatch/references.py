"""PyTorch's reference functions (`torch._refs`), which its meta functions and decompositions call.

Each elementwise one is marked to be skipped by Dynamo (`torch._disable_dynamo`), and the first call of any imports
Dynamo for that, which takes one to three seconds. As long as Dynamo is not imported, the mark is not needed.

Many of them import PyTorch's module of symbolic shapes, and SymPy with it, to compare sizes. For sizes that are numbers
neither is needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorgraft.compiled.lookups import content_of
from tensorgraft.importing import when_imported

_MODULES = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations")
_MARK = "__dynamo_disable"  # the attribute in which `torch._disable_dynamo` keeps the function that it calls
_WRAPPER = torch._disable_dynamo(lambda: None).__code__
_WRAPPED = _WRAPPER.co_freevars.index("fn")  # the variable of a wrapper that holds what it wraps


@functools.cache
def call_without_dynamo() -> None:
    """Let reference functions be called without an import of Dynamo, until the program imports it itself."""
    if "torch._dynamo" in sys.modules:
        return
    marked = [fn for fn in _disabled() if _MARK not in vars(fn)]
    for fn in marked:
        setattr(fn, _MARK, fn)

    def restore() -> None:
        for fn in marked:
            if vars(fn).get(_MARK) is fn:
                delattr(fn, _MARK)

    when_imported("torch._dynamo", restore)


def _disabled() -> Iterator[Callable[..., Any]]:
    """Yield the functions that Dynamo is to leave out, however they are wrapped."""
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(_MODULES)]
    waiting: list[Any] = [value for module in modules for value in vars(module).values()]
    visited: set[int] = set()
    while waiting:
        fn = waiting.pop()
        if fn.__class__ is not types.FunctionType or id(fn) in visited:
            continue
        visited.add(id(fn))
        held = [*map(content_of, fn.__closure__ or ())]
        if fn.__code__ is _WRAPPER:
            yield held[_WRAPPED]
        waiting += held
        waiting.append(getattr(fn, "__wrapped__", None))


class _Unimported(types.ModuleType):
    """A placeholder for a module that is not imported. Reading a name that it lacks imports the module."""

    def __getattr__(self, name: str) -> Any:
        # a package, whose version Inductor reads in a module that was imported with the placeholder
        if name.startswith("__") and not (name in ("__path__", "__version__") and self is _sympy):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _is_number(x: Any) -> bool:
    return all(map(_is_number, x)) if isinstance(x, tuple | list) else isinstance(x, int)


def _equal(x: Any, y: Any) -> bool:
    return tuple(x) == tuple(y) if isinstance(x, tuple | list) and isinstance(y, tuple | list) else x == y


_symbolic_shapes = _Unimported("torch.fx.experimental.symbolic_shapes")
_sympy = _Unimported("sympy")
vars(_sympy)["Basic"] = type("Basic", (), {})  # the class of expressions, of which there are none without SymPy
_STAND_INS = (_symbolic_shapes, _sympy)
ANSWERS: list[tuple[str, Callable[..., Any], Callable[[Any], bool]]] = [
    *(
        (name, lambda condition: condition, lambda x: x is True or x is False)
        for name in ("expect_true", "guard_or_true", "guard_or_false", "statically_known_true", "guard_size_oblivious")
    ),
    ("sym_or", lambda *x: functools.reduce(operator.or_, x), _is_number),
    ("sym_and", lambda *x: functools.reduce(operator.and_, x), _is_number),
    ("sym_eq", _equal, _is_number),
    ("guarding_hint_or_throw", lambda x: x, _is_number),
    ("has_guarding_hint", lambda x: True, _is_number),
    ("is_nested_int", lambda x: False, _is_number),
]


def answer_for_numbers(name: str, answer: Callable[..., Any], is_known: Callable[[Any], bool]) -> Callable[..., Any]:
    """Return a replacement of a function of PyTorch's module of symbolic shapes that calls that module only for values
    that are not known."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not all(map(is_known, args)):
            return _Unimported.__getattr__(_symbolic_shapes, name)(*args, **kwargs)
        return answer(*args)

    return call


for _entry in ANSWERS:
    setattr(_symbolic_shapes, _entry[0], answer_for_numbers(*_entry))


@contextlib.contextmanager
def known_sizes() -> Iterator[None]:
    """Let reference functions be called with sizes that are numbers, without an import of SymPy."""
    put = [module for module in _STAND_INS if sys.modules.setdefault(module.__name__, module) is module]
    try:
        yield
    finally:
        for module in put:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
