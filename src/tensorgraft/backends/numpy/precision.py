"""Conversion of operands for NumPy: Python scalars take the array's dtype, and narrow floats are computed in float32.

NumPy has no promotion of Python scalars for the dtypes of `ml_dtypes` (bfloat16 + 2.0 is float32 there), raises for
Python ints that do not fit, and rounds a narrow float after every step of a reduction. The hub defines it otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes

NARROW = frozenset((dtypes.float16, dtypes.bfloat16, *dtypes.FLOAT8))
_SCALARS = frozenset((bool, int, float, complex))


def scalar(value: Any, dtype: np.dtype) -> Any:
    """Return a Python scalar as one of `dtype`; ints wrap round."""
    if dtype.kind in "iu":
        value = operator.index(value)
        try:
            return dtype.type(value)
        except OverflowError:
            bits = 8 * dtype.itemsize
            return np.array(value & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(value)


def pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two operands, of which one may be a Python scalar, as arrays of one dtype."""
    if type(y) in _SCALARS:
        return x, scalar(y, x.dtype)
    if type(x) in _SCALARS:
        return scalar(x, y.dtype), y
    return x, y


def widened(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of one operand so that narrow operands are computed in float32 and rounded once."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = x.dtype
        if dtype in NARROW:
            return fn(x.astype(np.float32), *args, **kwargs).astype(dtype)
        return fn(x, *args, **kwargs)

    return apply


def widen(x: Any) -> Any:
    """Return `x` in float32 where it is narrower."""
    return x.astype(np.float32) if x.dtype in NARROW else x
