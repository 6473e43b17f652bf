"""Rules of elementwise operations: shapes broadcast, arrays share one dtype, Python scalars take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract.array import Shape, ShapeDtype, broadcast, check, check_arrays, check_kinds, fail
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, ELEMENTWISE, PREDICATES, UNARY, kinds_of

# Python scalar -> the kinds of dtype it can take (Array API, "Mixing arrays with Python scalars")
_TAKES = {bool: "bifc", int: "ifc", float: "fc", complex: "c"}


def _common(op: str, kinds: str, *operands: Any) -> tuple[Shape, np.dtype]:
    """Return the broadcast shape and the one dtype of arrays and Python scalars."""
    arrays = [x for x in operands if isinstance(x, ShapeDtype)]
    if not arrays:
        fail(op, operands, "an array among the operands", TypeError)
    check_kinds(op, kinds, *arrays)
    kind = kinds_of(arrays[0].dtype)
    for x in operands:
        if not isinstance(x, ShapeDtype) and kind not in _TAKES.get(type(x), ""):
            fail(op, operands, f"arrays, or Python scalars that {arrays[0].dtype} can hold", TypeError)
    return broadcast(op, operands, (x.shape for x in arrays)), arrays[0].dtype


def same_dtype(op: str, *operands: Any) -> ShapeDtype:
    return ShapeDtype(*_common(op, ELEMENTWISE[op], *operands))


def real_part(op: str, x: ShapeDtype) -> ShapeDtype:
    shape, dtype = _common(op, ELEMENTWISE[op], x)
    return ShapeDtype(shape, dtypes.real_dtype(dtype))


def boolean_result(op: str, *operands: Any) -> ShapeDtype:
    return ShapeDtype(_common(op, ELEMENTWISE[op], *operands)[0], dtypes.bool_)


def where(op: str, condition: ShapeDtype, x: Any, y: Any) -> ShapeDtype:
    check_kinds(op, "b", condition)
    shape, dtype = _common(op, "bifc", x, y)
    return ShapeDtype(broadcast(op, (condition, x, y), (condition.shape, shape)), dtype)


def complex_(op: str, real: Any, imag: Any) -> ShapeDtype:
    shape, dtype = _common(op, "f", real, imag)
    if dtype not in (dtypes.float32, dtypes.float64):
        fail(op, (real, imag), "float32 or float64 parts", TypeError)
    return ShapeDtype(shape, dtypes.complex_dtype(dtype))


def astype(op: str, x: ShapeDtype, dtype: np.dtype) -> ShapeDtype:
    check_arrays(op, x)
    return ShapeDtype(x.shape, np.dtype(dtype))


def bitcast(op: str, x: ShapeDtype, dtype: np.dtype) -> ShapeDtype:
    check_arrays(op, x)
    check(x.ndim == 1, op, (x, dtype), "one dimension")
    size = x.size * x.dtype.itemsize
    check(size % dtype.itemsize == 0, op, (x, dtype), f"{size} bytes to be a multiple of {dtype.itemsize}")
    return ShapeDtype((size // dtype.itemsize,), dtype)


def integer_floor_divide(op: str, x: Any, y: Any) -> ShapeDtype:
    return ShapeDtype(*_common(op, "i", x, y))


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*UNARY, *BINARY), same_dtype),
    **dict.fromkeys((*PREDICATES, *COMPARISONS), boolean_result),
    **dict.fromkeys(("abs", "real", "imag"), real_part),
    "where": where,
    "complex": complex_,
    "astype": astype,
    "bitcast": bitcast,
    "integer_floor_divide": integer_floor_divide,
}
