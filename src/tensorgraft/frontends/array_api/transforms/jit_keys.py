"""For what calls a traced program is right: all that it took for constant, told quickly, and compared call by call."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.arrays import framework_of
from tensorgraft.compiled.surroundings import OfAnother
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.traced_numbers import is_input
from tensorgraft.hub.backend import Backend

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NUMBERS = (float, complex)  # any of which is an input


def reached(fn: Callable[..., Any]) -> list[Any]:
    """What a function reaches by its closure, its globals and the object it is a method of."""
    found: list[Any] = []
    if isinstance(fn, types.MethodType):
        found.append(fn.__self__)
        fn = fn.__func__
    if isinstance(fn, functools.partial):
        return [*reached(fn.func), *fn.args, *fn.keywords.values()]
    code = getattr(fn, "__code__", None)
    if code is None:
        return found
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that is not bound yet
            continue
    known = fn.__globals__
    return found + [known[name] for name in code.co_names if name in known]


class CallKey:
    """What of a call must not change: the structure of its arguments, shapes, dtypes and views of arrays, which of them
    share memory, everything that is neither array nor number, and what the function reaches."""

    __slots__ = ("backend", "marks", "sharing", "structure", "surroundings")

    def __init__(self, leaves: Sequence[Any], structure: Any, surroundings: list[Any]) -> None:
        """`backend` is that of the arrays among the leaves: None without any, or where they are on several."""
        self.structure = structure
        self.surroundings = surroundings
        backend: Backend | None = None
        marks: list[Any] = []
        cells: list[int] = []
        several = False
        for x in leaves:
            if x.__class__ is Array:
                cell = x._cell
                if backend is None:
                    backend = cell.backend
                    told = backend.signature
                elif cell.backend is not backend:
                    several = True
                marks.append(x._geometry)
                marks.append(told(cell.array))
                marks.append(cell.placement)
                cells.append(id(cell))
            elif x.__class__ in _NUMBERS:
                marks.append(x.__class__)
            else:
                marks.append(_mark(x))
        self.backend = None if several else backend
        self.marks = marks
        self.sharing = list(map(cells.index, cells)) if len(set(cells)) < len(cells) else None

    def is_as(self, other: CallKey) -> bool:
        """Quickly, and never wrongly, True: the same objects around, equal arguments."""
        return (
            self.backend is other.backend
            and self.marks == other.marks
            and self.sharing == other.sharing
            and self.structure == other.structure
            and len(self.surroundings) == len(other.surroundings)
            and all(map(operator.is_, self.surroundings, other.surroundings))
        )

    def key(self, backend: Backend) -> Any:
        """The same to be looked up."""
        sharing = None if self.sharing is None else tuple(self.sharing)
        return self.structure, backend, sharing, *map(_object_mark, self.surroundings), *self.marks


def _object_mark(x: Any) -> Any:
    return (type(x), x) if isinstance(x, _PLAIN) else _Identity(x)


class _Identity:
    """An object of a key, by what it is and not by what it is equal to; held, so that no other has its place."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _mark(x: Any) -> Any:
    if is_input(x):
        return type(x)
    if type(x) not in _PLAIN and framework_of(x) == "torch":
        raise OfAnother("an argument is a torch.Tensor, in a function of Arrays of the Array API")
    try:
        hash(x)
    except TypeError:
        raise TypeError(
            f"an argument of a compiled function is a {type(x).__qualname__}, which is neither an array nor hashable:"
            " pass arrays, numbers, strings, or containers of them"
        ) from None
    if isinstance(x, types.FunctionType):
        return x, *map(_object_mark, reached(x))
    return type(x), x
