"""Rules of gather, scatter, sorting and searching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract.array import (
    Shape,
    ShapeDtype,
    axis_of,
    broadcast,
    check,
    check_arrays,
    check_broadcasts_to,
    check_indices,
    check_kinds,
)

_MODES = {"set": "bifc", "add": "bifc", "multiply": "bifc", "min": "bif", "max": "bif"}


def _indexed(op: str, x: ShapeDtype, indices: Sequence[ShapeDtype]) -> Shape:
    check_arrays(op, x)
    operands = (x, indices)
    check_indices(op, operands, indices)
    check(len(indices) <= x.ndim, op, operands, f"at most {x.ndim} index arrays")
    return broadcast(op, operands, (i.shape for i in indices)) + x.shape[len(indices) :]


def gather(op: str, x: ShapeDtype, indices: Sequence[ShapeDtype]) -> ShapeDtype:
    return x.like(*_indexed(op, x, indices))


def scatter(
    op: str, x: ShapeDtype, indices: Sequence[ShapeDtype], updates: ShapeDtype, mode: str = "set"
) -> ShapeDtype:
    check(mode in _MODES, op, (x, indices, updates, mode), f"a mode of {', '.join(_MODES)}")
    check_kinds(f"{op} with mode {mode}", _MODES[mode], x, updates)
    check_broadcasts_to(op, (x, indices, updates), updates.shape, _indexed(op, x, indices))
    return x


def nonzero(op: str, x: ShapeDtype) -> Any:
    raise TracedValueError(f"{op}({x}): the shape of the result depends on values, which abstract arrays do not have")


def sort(op: str, operands: Sequence[ShapeDtype], axis: int = -1, num_keys: int = 1) -> tuple[ShapeDtype, ...]:
    check(1 <= num_keys <= len(operands), op, (operands, num_keys), "at least one key among the operands")
    check_arrays(op, *operands)
    for key in operands[:num_keys]:
        check_kinds(op, "bif", key)
    check(len({x.shape for x in operands}) == 1, op, operands, "operands of one shape")
    axis_of(op, operands[0], axis)
    return tuple(operands)


def searchsorted(op: str, boundaries: ShapeDtype, values: ShapeDtype, right: bool = False) -> ShapeDtype:
    check_kinds(op, "bif", boundaries, values)
    lead = boundaries.shape[:-1]
    check(
        boundaries.ndim == 1 or (boundaries.ndim and values.ndim and lead == values.shape[:-1]),
        op,
        (boundaries, values),
        "boundaries of one dimension, or with the leading axes of the values",
    )
    return ShapeDtype(values.shape, dtypes.int64)


RULES: dict[str, Callable[..., Any]] = {
    "gather": gather,
    "scatter": scatter,
    "nonzero": nonzero,
    "sort": sort,
    "searchsorted": searchsorted,
}
