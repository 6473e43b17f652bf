"""Dtypes of the hub: `numpy.dtype` objects, with `ml_dtypes` for those that NumPy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
float8_e4m3fnuz = np.dtype(ml_dtypes.float8_e4m3fnuz)
float8_e5m2fnuz = np.dtype(ml_dtypes.float8_e5m2fnuz)
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
# two halves, of elements in a storage: no framework computes in it, so arrays of its values are complex64
complex32 = np.dtype([("real", np.float16), ("imag", np.float16)])

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGER = SIGNED + UNSIGNED
FLOAT8 = (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz)
FLOATING = (float16, bfloat16, float32, float64)
COMPLEX = (complex64, complex128)
ALL = (bool_, *INTEGER, *FLOATING, *COMPLEX)

_FLOAT_LIKE = frozenset(FLOATING + FLOAT8)


def is_floating(dtype: np.dtype) -> bool:
    """Return True for real floating point, bfloat16 and float8 included (whose NumPy kind is not `f`)."""
    return dtype in _FLOAT_LIKE


def is_complex(dtype: np.dtype) -> bool:
    return dtype.kind == "c"


def is_inexact(dtype: np.dtype) -> bool:
    return is_floating(dtype) or is_complex(dtype)


def is_integer(dtype: np.dtype) -> bool:
    """Return True for signed or unsigned integers; bool is not one."""
    return dtype.kind in "iu"


def of_values(dtype: np.dtype) -> np.dtype:
    """Return the dtype of an array that holds the values of a storage's elements of `dtype`."""
    return complex64 if dtype is complex32 else dtype


def is_bool(dtype: np.dtype) -> bool:
    return dtype.kind == "b"


def finfo(dtype: np.dtype) -> Any:
    """Return `numpy.finfo`, also of `ml_dtypes` and, for complex dtypes, of their parts."""
    return ml_dtypes.finfo(real_dtype(dtype))


def iinfo(dtype: np.dtype) -> Any:
    return np.iinfo(dtype)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the parts of a complex dtype; any other dtype is returned unchanged."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return the complex dtype whose parts hold values of `dtype`."""
    if is_complex(dtype):
        return dtype
    return complex128 if dtype == float64 else complex64


def lowest(dtype: np.dtype) -> Any:
    """Return the least value of `dtype`: the identity of `max` (-inf where there is one)."""
    if is_bool(dtype):
        return False
    if is_integer(dtype):
        return int(iinfo(dtype).min)
    if dtype in (float8_e4m3fn, float8_e4m3fnuz, float8_e5m2fnuz):  # these have no infinity
        return float(finfo(dtype).min)
    return -float("inf")


def highest(dtype: np.dtype) -> Any:
    """Return the greatest value of `dtype`: the identity of `min`."""
    if is_bool(dtype):
        return True
    if is_integer(dtype):
        return int(iinfo(dtype).max)
    low = lowest(dtype)
    return -low


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which sums and products of `dtype` are accumulated: at least float32."""
    return float32 if is_floating(dtype) and dtype.itemsize < 4 else dtype
