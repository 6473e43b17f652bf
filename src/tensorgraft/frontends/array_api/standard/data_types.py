"""Data type functions of the standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import promotion
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import SCALARS, common_dtype, of_python, operand, show
from tensorgraft.frontends.array_api.core.devices import resolve
from tensorgraft.frontends.array_api.core.exchange import moved_to
from tensorgraft.frontends.array_api.core.promotion import COMPLEX, NARROW, REAL, SIGNED, UNSIGNED, checked, promote
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.hub import dtypes

KINDS: dict[str, tuple[np.dtype, ...]] = {
    "bool": promotion.BOOL,
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": (*SIGNED, *UNSIGNED),
    "real floating": REAL,
    "complex floating": COMPLEX,
    "numeric": (*SIGNED, *UNSIGNED, *REAL, *COMPLEX),
}
_WITH_NARROW = ("real floating", "numeric")


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Return `x` converted: floating to integer truncates, to bool is not equal to zero. A complex array has no
    conversion to a real dtype (TypeError). `copy=False`: `x` itself where it has the dtype and is on the device."""
    xp = operand("astype", x)
    dtype = checked(dtype)
    if promotion.kind(x.dtype) == "c" and promotion.kind(dtype) in "if":
        raise TypeError(
            f"astype({show((x,))}, {dtype}): complex numbers cannot be converted to a real dtype: use real, imag or abs"
        )
    if device is not None and resolve(device) != x.device:
        return astype(moved_to(x, resolve(device).backend), dtype, copy=False)
    if x.dtype == dtype and not copy:
        return x
    with xp.scope():
        return new_array(xp.astype(x._value(), dtype), xp, x)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion leads from one dtype (or that of an array) to another."""
    source, target = from_.dtype if isinstance(from_, Array) else checked(from_), checked(to)
    try:
        return promote(source, target) == target
    except TypeError:
        return False


@dataclass(frozen=True)
class FloatInfo:
    """The properties of a floating-point dtype, as `finfo` returns them; of complex dtypes, those of their parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclass(frozen=True)
class IntInfo:
    """The properties of an integer dtype, as `iinfo` returns them."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def _dtype_of(name: str, kinds: str, x: Any) -> np.dtype:
    dtype = x.dtype if isinstance(x, Array) else checked(x)
    if promotion.kind(dtype) not in kinds:
        expected = " or ".join(promotion.KINDS[k] for k in kinds)
        raise TypeError(f"{name}({dtype}): expected a {expected} dtype")
    return dtype


def finfo(type: Any, /) -> FloatInfo:
    dtype = dtypes.real_dtype(_dtype_of("finfo", "fc", type))
    f = dtypes.finfo(dtype)
    return FloatInfo(f.bits, float(f.eps), float(f.max), float(f.min), float(f.smallest_normal), dtype)


def iinfo(type: Any, /) -> IntInfo:
    dtype = _dtype_of("iinfo", "i", type)
    i = np.iinfo(dtype)
    return IntInfo(i.bits, int(i.max), int(i.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind: a name of `KINDS`, a dtype, or a tuple of those."""
    resolved = np.dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(resolved, k) for k in kind)
    if not isinstance(kind, str):
        return resolved == np.dtype(kind)
    if kind not in KINDS:
        raise ValueError(f"isdtype: {kind!r} is not a kind of dtype; the kinds are {', '.join(KINDS)}")
    return resolved in KINDS[kind] or (kind in _WITH_NARROW and resolved in NARROW)


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Return the dtype to which arrays, dtypes and Python scalars are promoted; of NumPy scalars only, that of theirs.

    Raises TypeError if there is none."""
    if all(isinstance(x, np.generic) for x in arrays_and_dtypes):
        arrays_and_dtypes = tuple(x.dtype for x in arrays_and_dtypes)
    operands = [
        x.dtype if isinstance(x, Array) else x if type(x) in SCALARS or isinstance(x, Number) else checked(x)
        for x in map(of_python, arrays_and_dtypes)
    ]
    if not any(isinstance(x, np.dtype) for x in operands):
        raise ValueError("result_type: expected an array or a dtype among the arguments")
    return common_dtype(operands)


__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]
