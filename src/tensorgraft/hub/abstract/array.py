"""`ShapeDtype`, the array of the abstract backend, and the checks that its rules are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import HasShape
from tensorgraft.hub.operations.elementwise import kinds_of

Shape = tuple[int, ...]

KINDS = {"b": "bool", "i": "integer", "f": "floating", "c": "complex"}


@dataclass(frozen=True, slots=True)
class ShapeDtype(HasShape):
    """An array of which only shape and dtype are known."""

    shape: Shape
    dtype: np.dtype

    def like(self, *shape: int) -> ShapeDtype:
        """Return an array of another shape and the same dtype."""
        return ShapeDtype(shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def show(x: Any) -> str:
    """Return the text of an operand in an error message: arrays as dtype[shape]."""
    if isinstance(x, list | tuple) and any(isinstance(item, ShapeDtype) for item in x):
        return f"[{', '.join(map(show, x))}]"
    return str(x) if isinstance(x, ShapeDtype | np.dtype) else repr(x)


def fail(op: str, operands: Iterable[Any], expected: str, error: type[Exception] = ValueError) -> Any:
    """Raise `error` with the operation, its operands and what was expected."""
    raise error(f"{op}({', '.join(map(show, operands))}): expected {expected}")


def check(holds: Any, op: str, operands: Iterable[Any], expected: str) -> None:
    if not holds:
        fail(op, operands, expected)


def check_arrays(op: str, *operands: Any) -> None:
    for x in operands:
        if not isinstance(x, ShapeDtype):
            fail(op, operands, f"arrays, got {type(x).__name__}", TypeError)


def check_kinds(op: str, kinds: str, *operands: ShapeDtype) -> None:
    """Check that the operands are arrays of one dtype whose kind is a letter of `kinds`."""
    check_arrays(op, *operands)
    dtype = operands[0].dtype
    if any(x.dtype != dtype for x in operands):
        fail(op, operands, "operands of one dtype", TypeError)
    if kinds_of(dtype) not in kinds:
        fail(op, operands, f"a dtype that is {' or '.join(KINDS[k] for k in kinds)}", TypeError)


def check_indices(op: str, operands: Sequence[Any], indices: Sequence[Any]) -> None:
    for i in indices:
        if not isinstance(i, ShapeDtype) or not dtypes.is_integer(i.dtype):
            fail(op, operands, "indices that are integer arrays", TypeError)


def check_shape(op: str, shape: Any) -> None:
    if not isinstance(shape, tuple) or not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
        fail(op, (shape,), "a shape: a tuple of ints that are not negative")


def axis_of(op: str, x: ShapeDtype, axis: int) -> int:
    """Return `axis`, counted from the start."""
    if not -x.ndim <= axis < x.ndim:
        fail(op, (x, axis), f"an axis between {-x.ndim} and {x.ndim - 1}" if x.ndim else "an array of some dimension")
    return axis % x.ndim


def axes_of(op: str, x: ShapeDtype, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes that `axis` means, counted from the start."""
    if axis is None:
        return tuple(range(x.ndim))
    axes = tuple(axis_of(op, x, a) for a in ((axis,) if isinstance(axis, int) else axis))
    check(len(set(axes)) == len(axes), op, (x, axis), "axes that differ")
    return axes


def broadcast(op: str, operands: Sequence[Any], shapes: Iterable[Shape]) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return fail(op, operands, "shapes that broadcast: on each axis, from the last, equal extents or 1")


def check_broadcasts_to(op: str, operands: Sequence[Any], shape: Shape, target: Shape) -> None:
    aligned = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(a not in (1, b) for a, b in aligned):
        fail(op, operands, f"a shape that broadcasts to {target}, got {shape}")
