"""Dtypes of the standard, and its type promotion ("Type Promotion Rules", "Mixing arrays with Python scalars")."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.hub import dtypes

BOOL = (dtypes.bool_,)
SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
REAL = (dtypes.float32, dtypes.float64)
NARROW = (dtypes.float16, dtypes.bfloat16)  # beyond the standard
COMPLEX = (dtypes.complex64, dtypes.complex128)
STANDARD = (*BOOL, *SIGNED, *UNSIGNED, *REAL, *COMPLEX)

KINDS = {"b": "boolean", "i": "integer", "f": "real floating-point", "c": "complex floating-point"}


@functools.cache
def kind(dtype: np.dtype) -> str:
    """b, i, f or c."""
    if dtypes.is_floating(dtype):
        return "f"
    return {"b": "b", "i": "i", "u": "i", "c": "c"}[dtype.kind]


@functools.cache
def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """Raises TypeError where the standard defines no promotion: across kinds, and of uint64 with signed integers."""
    if a == b:
        return a
    kinds = {kind(a), kind(b)}
    if kinds == {"i"}:
        if a.kind == b.kind:
            return max(a, b, key=lambda d: d.itemsize)
        signed, unsigned = (a, b) if a.kind == "i" else (b, a)
        if signed.itemsize > unsigned.itemsize:
            return signed
        wider = [d for d in SIGNED if d.itemsize > unsigned.itemsize]
        if wider:
            return wider[0]
    elif kinds <= {"f", "c"}:
        if kinds == {"f"}:
            if a.itemsize != b.itemsize:
                return max(a, b, key=lambda d: d.itemsize)
            return dtypes.float32  # float16 and bfloat16
        complex_, other = (a, b) if kind(a) == "c" else (b, a)
        if kind(other) == "c" or other == dtypes.float64:
            return dtypes.complex128
        return complex_
    raise TypeError(
        f"there is no common dtype of {a} and {b}: the Array API standard promotes only within one kind of dtype."
        " Convert one of them with astype"
    )


def of_scalar(value: Any, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which a Python scalar meets an array of `dtype`.

    Raises TypeError where the standard allows none; OverflowError for an int that the dtype cannot hold.
    """
    k = kind(dtype)
    if isinstance(value, bool):
        is_valid = k == "b"
    elif isinstance(value, int):
        is_valid = k in "ifc"
        if k == "i" and not _can_hold(dtype, value):
            raise OverflowError(f"the Python integer {value} is out of bounds for {dtype}")
    elif isinstance(value, float):
        is_valid = k in "fc"
    else:
        is_valid = k in "fc"
        if k == "f":  # a complex scalar makes a real array complex
            return dtypes.complex_dtype(dtype if dtype not in NARROW else dtypes.float32)
    if not is_valid:
        raise TypeError(f"a Python {type(value).__name__} cannot be combined with an array of {dtype}")
    return dtype


def _can_hold(dtype: np.dtype, value: Any) -> bool:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return value.fits(low, high) if isinstance(value, Number) else low <= value <= high


def default_dtype(value: Any) -> np.dtype:
    """Return the default dtype of a Python scalar."""
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, int):
        return dtypes.int64
    return dtypes.float64 if isinstance(value, float) else dtypes.complex128


def checked(dtype: Any) -> np.dtype:
    """Return a dtype of the program. Raises TypeError for one that no backend supports."""
    resolved = np.dtype(dtype)
    if resolved not in STANDARD and resolved not in NARROW:
        raise TypeError(f"{dtype!r} is not a dtype of arrays; the dtypes are {', '.join(map(str, STANDARD))}")
    return resolved
