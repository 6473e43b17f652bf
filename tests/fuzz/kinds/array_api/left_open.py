"""What the standard leaves open, or has each backend do as it can: no program has it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.program import Undefined

ARITHMETIC = {"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "maximum", "minimum"}


def kind(x: Any) -> str:
    return str(x.dtype.kind) if isinstance(x, np.ndarray | np.generic) else ""


def base(x: Any) -> str:
    return "i" if kind(x) == "u" else kind(x)


def defined(name: str, given: list[Any], out: Any) -> None:
    """Raises Undefined for what the standard leaves open, or has each backend do as it can."""
    kinds = {base(x) for x in given} - {""}
    if out is not None and base(out[0]) not in kinds:
        raise Undefined("in place into another kind")
    if kinds - {"f", "c"} and len(kinds) > 1 and not (name == "multiply" and "b" in kinds):
        raise Undefined("integers and floats in one operation")
    if kinds == {"i"} and {str(x.dtype) for x in given if kind(x)} & {"uint64"} and {kind(x) for x in given} & {"i"}:
        raise Undefined("uint64 and signed integers")
    scalars = [x for x in given if isinstance(x, bool | int | float | complex)]
    arrays = [x for x in given if kind(x)]
    for s in scalars:
        allowed = {bool: "b", int: "iufc", float: "fc", complex: "c"}[type(s)]
        if not all(kind(x) in allowed for x in arrays):
            raise Undefined("a Python number of another kind")
        if type(s) is int and any(kind(x) in "iu" and not fits(s, x.dtype) for x in arrays):
            raise Undefined("a Python number beyond the dtype")
    if kinds == {"b"} and name in ARITHMETIC | {"negative", "absolute", "sign", "square", "reciprocal", "positive"}:
        raise Undefined("arithmetic of booleans")
    if kinds == {"i"} and name in ("floor_divide", "remainder", "divide") and np.any(np.asarray(given[1]) == 0):
        raise Undefined("an integer divided by 0")
    if name == "floor_divide" and kinds == {"f"} and any(np.isinf(x).any() for x in given):
        raise Undefined("NumPy has other values for infinities than the standard")
    if name in ("left_shift", "right_shift"):
        bits = min(x.dtype.itemsize * 8 for x in arrays)
        if np.any((np.asarray(given[1]) < 0) | (np.asarray(given[1]) >= bits)):
            raise Undefined("a shift beyond the bits")
    if name in ("signbit", "copysign") and any(np.isnan(x).any() for x in given[-1:]):
        raise Undefined("the sign of NaN")
    if "c" in kinds and name in ("floor_divide", "remainder", "maximum", "minimum", "less", "greater"):
        raise Undefined("an order of complex numbers")


def fits(value: int, dtype: Any) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)
