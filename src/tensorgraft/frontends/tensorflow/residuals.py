"""Values that a graph's forward half leaves to its backward half: flattened to arrays, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.loop_carry import traced
from tensorgraft.frontends.tensorflow.tables import LookupTable
from tensorgraft.frontends.tensorflow.values import (
    CountedRows,
    CountedSizes,
    EitherOptional,
    OptionalValue,
    TensorList,
    VariableCell,
    is_known,
    lifted,
)
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


class Residuals:
    """Values as arrays and back. What is known, the shapes among it, stays known.

    A call that is not traced may have lists of other lengths than the one before, and its backward half may be run
    after another call's forward half: so the arrays end with the number of their layout.
    """

    def __init__(self) -> None:
        self._layouts: list[list[Any]] = []
        self._numbers: dict[Any, int] = {}
        self._traced: list[Any] | None = None
        self._first: dict[int, np.ndarray] = {}
        self._vary: set[int] = set()

    def flat(self, xp: Backend, values: Sequence[Any]) -> list[Array]:
        is_traced = traced(xp, values)
        if not is_traced:
            values = [self._settled(xp, i, x) for i, x in enumerate(values)]
        parts = [flattened(xp, x) for x in values]
        layout = [like for like, _ in parts]
        arrays = [a for _, arrays in parts for a in arrays]
        if is_traced:
            self._traced = layout
            return [*arrays, xp.asarray(np.asarray(0, np.int32))]
        key = tuple(_key(like) for like in layout)
        number = self._numbers.setdefault(key, len(self._layouts))
        if number == len(self._layouts):
            self._layouts.append(layout)
        return [*arrays, xp.asarray(np.asarray(number, np.int32))]

    def values(self, xp: Backend, arrays: Sequence[Array]) -> list[Any]:
        *rest, number = arrays
        if self._traced is not None and (not self._layouts or traced(xp, arrays)):
            layout = self._traced
        else:
            layout = self._layouts[int(xp.to_numpy(number))]
        remaining = iter(rest)
        return [like.value(remaining) for like in layout]

    def _settled(self, xp: Backend, i: int, x: Any) -> Any:
        """Return a known value, as an array if calls before had another one: it is data then, and no constant."""
        if not is_known(x) or x.dtype.kind in "OSU":
            return x
        first = self._first.setdefault(i, x)
        if x is not first and not (x.dtype == first.dtype and np.array_equal(x, first)):
            self._vary.add(i)
        return lifted(xp, x) if i in self._vary else x


@dataclass(frozen=True)
class _Plain:
    known: Any = None
    is_cell: bool = False

    def value(self, arrays: Any) -> Any:
        x = next(arrays) if self.known is None else self.known
        return VariableCell(x) if self.is_cell else x


@dataclass(frozen=True)
class _List:
    like: TensorList
    items: tuple[Any, ...] | None
    has_stack: bool
    length: Any

    def value(self, arrays: Any) -> TensorList:
        items = None if self.items is None else tuple(None if i is None else i.value(arrays) for i in self.items)
        stack = next(arrays) if self.has_stack else None
        length = next(arrays) if self.like.length is not None and self.length is None else self.length
        return replace(self.like, items=items, stack=stack, length=length)


@dataclass(frozen=True)
class _Parts:
    like: OptionalValue | EitherOptional
    parts: tuple[Any, ...]

    def value(self, arrays: Any) -> OptionalValue | EitherOptional:
        values = tuple(p.value(arrays) for p in self.parts)
        if isinstance(self.like, EitherOptional):
            return EitherOptional(*values)
        return OptionalValue(None if self.like.values is None else values)


@dataclass(frozen=True)
class _Counted:
    like: CountedRows | CountedSizes

    def value(self, arrays: Any) -> CountedRows | CountedSizes:
        if isinstance(self.like, CountedSizes):
            return replace(self.like, array=next(arrays))
        return CountedRows(next(arrays), next(arrays))


def flattened(xp: Backend, x: Any) -> tuple[Any, list[Array]]:
    """Return (the layout that puts a value together again, its arrays)."""
    if isinstance(x, OptionalValue | EitherOptional):
        inner = [flattened(xp, v) for v in ((x.yes, x.no) if isinstance(x, EitherOptional) else x.values or ())]
        bare: Any = EitherOptional(*[OptionalValue(None)] * 2) if isinstance(x, EitherOptional) else x
        if isinstance(x, OptionalValue) and x.values is not None:
            bare = OptionalValue(())
        return _Parts(bare, tuple(like for like, _ in inner)), [a for _, arrays in inner for a in arrays]
    if isinstance(x, TensorList):
        parts = [None if i is None else flattened(xp, i) for i in x.items or ()]
        arrays = [a for p in parts if p is not None for a in p[1]]
        length = x.length if x.length is None or is_known(x.length) else None
        arrays += [a for a in (x.stack, None if length is not None else x.length) if a is not None]
        items = None if x.items is None else tuple(None if p is None else p[0] for p in parts)
        bare = replace(x, items=None, stack=None, length=None if x.length is None else np.int32(0))
        return _List(bare, items, x.stack is not None, length), arrays
    if isinstance(x, CountedRows):
        return _Counted(CountedRows(None, None)), [x.array, x.count]
    if isinstance(x, CountedSizes):
        return _Counted(replace(x, array=None)), [x.array]
    is_cell = isinstance(x, VariableCell)
    content = x.value if is_cell else x
    if is_known(content) or isinstance(content, LookupTable):
        return _Plain(content, is_cell), []
    return _Plain(None, is_cell), [content]


def _key(like: Any) -> Any:
    if isinstance(like, _Parts):
        return type(like.like), getattr(like.like, "values", None) is None, tuple(map(_key, like.parts))
    if isinstance(like, _List):
        items = None if like.items is None else tuple(None if i is None else _key(i) for i in like.items)
        common_bytes = None if like.like.common is None else like.like.common.tobytes()
        length = None if like.length is None else int(like.length)
        return like.like.shape, items, like.has_stack, length, common_bytes
    return like.known is None, like.is_cell
