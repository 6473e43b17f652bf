"""The values that a loop or a branch carries, as flat arrays: a tensor list becomes one array, with room for pushes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.errors import ShapeError
from tensorgraft.frontends.tensorflow.tables import LookupTable
from tensorgraft.frontends.tensorflow.values import (
    CountedRows,
    CountedSizes,
    EitherOptional,
    OptionalValue,
    TensorList,
    VariableCell,
    all_the_same,
    is_known,
    lifted,
)
from tensorgraft.frontends.tensorflow.variants import Variant
from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_abstract = functools.cache(AbstractBackend)


def arrays_of(x: Any) -> list[Any]:
    """Return the arrays in an operand: an array, the elements of a list, or the value of a variable."""
    if isinstance(x, TensorList):
        return [i for i in (*(x.items or ()), x.stack, x.length) if i is not None]
    if isinstance(x, OptionalValue | EitherOptional):
        parts = x.values or () if isinstance(x, OptionalValue) else (x.yes, x.no)
        return [a for part in parts for a in arrays_of(part)]
    if isinstance(x, Variant | tuple):
        return [a for part in (x if isinstance(x, tuple) else x.arrays()) for a in arrays_of(part)]
    return [x.value] if isinstance(x, VariableCell) else [x]


def traced(xp: Backend, operands: Sequence[Any]) -> bool:
    """Return whether an operand has no value yet, or results computed now will have none."""
    if xp.in_trace() or xp.is_tracing():
        return True
    return any(not is_known(x) and xp.is_array(x) and xp.is_traced(x) for o in operands for x in arrays_of(o))


class LoopCarry:
    """Values, and the flat arrays that they are made of. `growth`: by how much lists grow per step, by position."""

    def __init__(self, xp: Backend, values: Sequence[Any], growth: dict[int, int] | None = None) -> None:
        self.xp = xp
        self.growth = growth or {}
        self.like: list[Any] = []
        self.arrays: list[Array] = []
        for k, x in enumerate(values):
            if isinstance(x, TensorList):
                stacked_list = x if x.common is not None else x.stacked(xp)
                if stacked_list.common is None:
                    self.arrays.append(stacked_list.stack)
                if not is_known(stacked_list.length) or self.growth.get(k):
                    self.arrays.append(lifted(xp, stacked_list.length))
                self.like.append(stacked_list)
            else:
                if isinstance(x, Variant | tuple):
                    raise _no_array(x)
                if not isinstance(x, VariableCell):
                    self.arrays.append(lifted(xp, x))
                self.like.append(x)

    def values(self, arrays: Sequence[Array], after: int | None = None) -> list[Any]:
        """Rebuild such values from other arrays; with `after`, lists of known length as after so many steps."""
        remaining = iter(arrays)
        values: list[Any] = []
        for k, like in enumerate(self.like):
            if isinstance(like, TensorList):
                stack, grows = None if like.common is not None else next(remaining), self.growth.get(k, 0)
                length = like.length if is_known(like.length) and not grows else next(remaining)
                if after is not None and is_known(like.length):
                    length = np.asarray(int(like.length) + grows * after, np.int32)
                value = replace(like, stack=stack, length=length)
                values.append(value if after is None else value.unstacked())
            else:
                values.append(like if isinstance(like, VariableCell) else next(remaining))
        return values

    def flatten_like(self, values: Sequence[Any]) -> list[Array]:
        """Flatten other values of this kind."""
        arrays: list[Array] = []
        for k, (value, like) in enumerate(zip(values, self.like, strict=True)):
            if isinstance(like, TensorList):
                stacked_list = value
                if like.common is None:
                    stacked_list = replace(value, shape=like.extents()).stacked(self.xp, like.stack.shape[0])
                    arrays.append(stacked_list.stack)
                if not is_known(like.length) or self.growth.get(k):
                    arrays.append(lifted(self.xp, stacked_list.length))
            elif not isinstance(like, VariableCell):
                arrays.append(lifted(self.xp, value))
        return arrays

    @classmethod
    def into_loop(
        cls,
        xp: Backend,
        operands: Sequence[Any],
        moving: Sequence[int],
        body: Callable[[Backend, list[Any]], list[Any]],
        steps: int | None,
        cells: Sequence[int],
    ) -> LoopCarry:
        """Flatten the initial values of a loop: the operands that change, and the values of the variables that it
        writes. Lists get the room and the element shape that one abstract step of the body tells."""
        values = [operands[i] for i in moving]
        growth: dict[int, int] = {}
        if any(isinstance(x, TensorList) for x in values):
            outputs = body(_abstract(), [_spec(xp, x, i in moving) for i, x in enumerate(operands)])
            for k, i in enumerate(moving):
                before, final = operands[i], outputs[i]
                if isinstance(before, TensorList):
                    values[k], growth[k] = _with_room(xp, before, final, steps)
        return cls(xp, [*values, *(operands[i].value for i in cells)], growth)


def _with_room(xp: Backend, before: TensorList, final: TensorList, steps: int | None) -> tuple[TensorList, int]:
    if before.items is not None and final.items is not None and len(before.items) != len(final.items):
        common = all_the_same(before.items + final.items)
        if common is not None:
            grows = len(final.items) - len(before.items)
            return replace(before, items=None, common=common, length=before.count()), grows
    if any(isinstance(x, OptionalValue | EitherOptional) for x in final.items or ()):
        raise _of_branches()
    counts = before.count(), final.count()
    if not all(map(is_known, counts)):
        grows = 0 if final.items is None and before.items is None else 1
        if steps is None or before.items is not None:
            raise ShapeError("a tensor list grows by a number of elements that depends on traced values")
        return before, grows
    grows = int(counts[1]) - int(counts[0])
    if grows > 0 and steps is None:
        raise ShapeError(
            "a tensor list grows in a loop with an unknown number of iterations, in a program that is being"
            " traced: pass maximum_iterations= to tf.while_loop, or call the program without compiling it"
        )
    if before.common is not None:
        return before, grows
    shaped = replace(before, shape=final.extents() if final.items or final.items is None else before.shape)
    return shaped.stacked(xp, int(counts[0]) + max(grows, 0) * (steps or 0)), grows


def _of_branches() -> ShapeError:
    return ShapeError(
        "the derivative of a branch in a loop that is being traced, of so many steps that it stays a loop: write"
        " tf.where in the place of tf.cond, or call the program without compiling it"
    )


def _no_array(x: Any) -> ShapeError:
    kind = type(x[0] if isinstance(x, tuple) and x else x).__name__
    return ShapeError(
        f"a loop or a branch that is being traced carries what no array is ({kind}, a variant of TensorFlow's): call"
        " the program without compiling it"
    )


def abstractly(
    xp: Backend, run: Callable[[Backend, list[Any]], list[Any]], operands: Sequence[Any]
) -> tuple[Backend, list[Any]]:
    """Return (the abstract backend, the specs of a function's results on it)."""
    return _abstract(), run(_abstract(), [_spec(xp, x, False) for x in operands])


def _spec(xp: Backend, x: Any, moves: bool) -> Any:
    if isinstance(x, LookupTable):
        return x
    if isinstance(x, CountedRows):
        return CountedRows(_spec(xp, x.array, moves), _spec(xp, x.count, moves))
    if isinstance(x, CountedSizes):
        return replace(x, array=_spec(xp, x.array, moves))
    if isinstance(x, OptionalValue):
        return OptionalValue(None if x.values is None else tuple(_spec(xp, v, moves) for v in x.values))
    if isinstance(x, EitherOptional):
        return EitherOptional(_spec(xp, x.yes, moves), _spec(xp, x.no, moves))

    def spec(a: Any) -> Any:
        if isinstance(a, OptionalValue | EitherOptional):
            raise _of_branches()
        if isinstance(a, TensorList):
            raise ShapeError(
                "a loop that is being traced carries a list of lists (from a nested loop), which cannot be an array"
            )
        if isinstance(a, Variant | tuple):
            raise _no_array(a)
        if is_known(a):
            return ShapeDtype(a.shape, a.dtype) if moves else a
        return ShapeDtype(tuple(xp.shape(a)), xp.dtype_of(a))

    if isinstance(x, VariableCell):
        return VariableCell(spec(x.value), x.name)
    if not isinstance(x, TensorList):
        return spec(x)
    if x.items is None:
        return replace(
            x,
            stack=None if x.stack is None else spec(x.stack),
            length=x.length if is_known(x.length) else spec(x.length),
        )
    return replace(x, items=tuple(None if i is None else spec(i) for i in x.items))
