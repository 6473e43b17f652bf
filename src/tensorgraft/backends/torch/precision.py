"""Dtypes of PyTorch, those that it can store but hardly compute with, and how operands meet.

uint16, uint32, uint64 and float8 have few kernels in PyTorch. Arrays that are only moved are moved as integers of their
size (`as_bits`). Unsigned integers are computed with as signed ones: sums, products and bits are the same modulo
2^n, and what compares flips the highest bit first (`ordered`). float8 is computed in float32.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorgraft.backends.torch.recorder import factory
from tensorgraft.hub import dtypes

Tensor = torch.Tensor

TORCH: dict[np.dtype, torch.dtype] = {
    **{dtype: getattr(torch, dtype.name) for dtype in dtypes.ALL},
    **{dtype: getattr(torch, dtype.name) for dtype in dtypes.FLOAT8},
}
NUMPY: dict[torch.dtype, np.dtype] = {theirs: ours for ours, theirs in TORCH.items()}

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
FLOAT8 = frozenset(TORCH[dtype] for dtype in dtypes.FLOAT8)
NARROW = frozenset((torch.float16, torch.bfloat16, *FLOAT8))
CARRIERS = {**SIGNED, **dict.fromkeys(FLOAT8, torch.uint8)}  # dtypes of the same bits, in which elements are moved
LIMITED = frozenset(CARRIERS)
UNSIGNED = frozenset(SIGNED)
INTEGERS = frozenset(TORCH[dtype] for dtype in dtypes.INTEGER)
_SCALARS = frozenset((bool, int, float, complex, torch.SymInt))  # an extent is one, while PyTorch leaves it open
_LEAST = {torch.int16: -(2**15), torch.int32: -(2**31), torch.int64: -(2**63)}


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Raises NotImplementedError for dtypes that PyTorch cannot compute with (int4)."""
    native = TORCH.get(dtype)
    if native is None:
        raise NotImplementedError(f"PyTorch has no tensors of {dtype}: convert them to int8 first")
    return native


# Dynamo cannot trace questions about NumPy's dtypes: it is to call them, and take the answers as constants. (The mark
# is that of `torch._dynamo.assume_constant_result`, which would import Dynamo.)
for _fn in (torch_dtype, *vars(dtypes).values()):
    if getattr(_fn, "__module__", None) in (__name__, dtypes.__name__):
        _fn._dynamo_marked_constant = True
del _fn


# ---- as other dtypes of the same size --------------------------------------------------------------------------------


def as_bits(x: Tensor) -> Tensor:
    """Return `x`, or its bits as integers that PyTorch has kernels for."""
    carrier = CARRIERS.get(x.dtype)
    return x if carrier is None else x.view(carrier)


def from_bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.view(dtype)


def elementwise_move(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of one array that moves elements without looking at their values."""

    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype in LIMITED:
            return fn(as_bits(x), *args, **kwargs).view(x.dtype)
        return fn(x, *args, **kwargs)

    return apply


def ordered(x: Tensor) -> Tensor:
    """Return `x`, or numbers that PyTorch can compare and that are in the same order."""
    dtype = x.dtype
    if dtype in SIGNED:
        bits = x.view(SIGNED[dtype])
        return bits ^ _LEAST[bits.dtype]
    return x.to(torch.float32) if dtype in FLOAT8 else x


def from_ordered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `ordered` for an array of `dtype`."""
    if dtype in SIGNED:
        return (x ^ _LEAST[x.dtype]).view(dtype)
    return x.to(dtype) if dtype in FLOAT8 else x


def widen(x: Tensor) -> Tensor:
    """Return `x` in float32 where it is narrower."""
    return x.to(torch.float32) if x.dtype in NARROW else x


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` in a narrower dtype. Values beyond the range of float8_e4m3fn become NaN, as in the hub; PyTorch
    saturates to 448."""
    if dtype == torch.float8_e4m3fn:
        x = x.to(torch.float32)
        x = torch.where(torch.abs(x) > _BEYOND_E4M3, math.nan, x)
    return x.to(dtype)


_BEYOND_E4M3 = 464.0  # halfway between 448 and what would come next, and still rounded to the even one


def widened(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of one operand so that narrow operands are computed in float32 and rounded once."""

    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype in NARROW:
            return rounded(fn(x.to(torch.float32), *args, **kwargs), x.dtype)
        return fn(x, *args, **kwargs)

    return apply


# ---- Python scalars --------------------------------------------------------------------------------------------------


def scalar(value: Any, dtype: torch.dtype) -> Any:
    """Return a Python scalar that a tensor of `dtype` can be filled with; ints wrap round."""
    if isinstance(value, torch.SymInt):  # to ask for its number would make it one
        return torch.sym_float(value) if dtype.is_floating_point else value
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        value = value.real
    if dtype.is_floating_point:
        return float(value)
    if dtype == torch.bool:
        return bool(value)
    bits = 8 * dtype.itemsize
    value = (operator.index(value) if not isinstance(value, float) else int(value)) & ((1 << bits) - 1)
    return value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value


full = factory(torch.ops.aten.full.default, torch.full)
arange = factory(torch.ops.aten.arange.default, torch.arange)


def filled(shape: tuple[int, ...], value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a new array of one Python scalar."""
    value = scalar(value, dtype)
    if dtype in FLOAT8:
        return rounded(full(shape, value, dtype=torch.float32, device=device), dtype)
    if dtype.is_complex and not cmath.isfinite(value):  # in a program of FX its text is not Python's
        parts = (full(shape, part, dtype=dtype.to_real(), device=device) for part in (value.real, value.imag))
        return torch.complex(*parts)
    return full(shape, value, dtype=dtype, device=device)


def pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors; a Python scalar becomes one with the dtype and device of the other."""
    if type(y) in _SCALARS:
        return x, filled((), y, x.dtype, x.device)
    if type(x) in _SCALARS:
        return filled((), x, y.dtype, y.device), y
    return x, y
