"""Elementwise operations: functions of PyTorch, looked up by name, and the treatment of dtypes that they lack."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorgraft.backends.torch import special, unsigned
from tensorgraft.backends.torch.precision import (
    FLOAT8,
    INTEGERS,
    LIMITED,
    NARROW,
    SIGNED,
    UNSIGNED,
    as_bits,
    from_bits,
    ordered,
    pair,
    rounded,
    torch_dtype,
    widened,
)
from tensorgraft.backends.torch.recorder import StandIn
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, ELEMENTWISE, PREDICATES

Tensor = torch.Tensor
Fn = Callable[..., Tensor]
# float32 numbers beyond int32 are multiples of 256, and so is what these processors make of them
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")


def _abs(x: Tensor) -> Tensor:
    return x if x.dtype == torch.uint8 else torch.abs(x)


def _conj(x: Tensor) -> Tensor:
    """Conjugate in memory: branches and loops of a program take no tensors that are to be conjugated."""
    if isinstance(x, StandIn):
        return torch.conj_physical(x)
    return torch.conj(x).resolve_conj()  # `conj_physical` has no rule for batches


def _sign(x: Tensor) -> Tensor:
    if x.dtype.is_floating_point:  # PyTorch has 0 for NaN
        return torch.where(torch.isnan(x), x, torch.sgn(x))
    return torch.sgn(x)


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype not in INTEGERS:
        return torch.fmod(x, y)
    y, special = _divisor(y)
    return torch.where(special, torch.zeros_like(x), torch.fmod(x, y))


def _divisor(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a divisor of integers with 1 for 0, at which PyTorch raises, and for -1, by which the least number
    overflows (a trap of the processor); and where it was so."""
    special = y == 0
    if y.dtype.is_signed:
        special = special | (y == -1)
    return torch.where(special, torch.ones_like(y), y), special


def _integer_floor_divide(x: Tensor, y: Tensor) -> Tensor:
    divisor, special = _divisor(y)
    out = torch.div(x, divisor, rounding_mode="floor")
    return torch.where(special, -x, out) if y.dtype.is_signed else out


# Those that PyTorch knows by another name or otherwise; None: as a composite.
_OTHERS: dict[str, Fn | None] = {
    "abs": _abs,
    "sign": _sign,
    "conj": _conj,
    "bitwise_invert": torch.bitwise_not,
    "divide": torch.true_divide,
    "fmod": _fmod,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "erf_inv": torch.erfinv,
    "bessel_i0e": torch.special.i0e,
    "bessel_i1e": torch.special.i1e,
    "igamma": torch.special.gammainc,
    "igammac": torch.special.gammaincc,
    "nextafter": special.nextafter,
    "square": None,  # a product for unsigned integers
    "reciprocal": None,
}


def _function(name: str) -> Fn | None:
    return _OTHERS[name] if name in _OTHERS else getattr(torch, name, None) or getattr(torch.special, name, None)


# Operations that PyTorch computes correctly in 16-bit floats; for others it lacks kernels, or rounds in between.
_NARROW = {
    *["abs", "sign", "negative", "ceil", "floor", "trunc", "round", "add", "subtract", "multiply", "divide", "fmod"],
    *[
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "sin",
        "cos",
        "maximum",
        "minimum",
        "nextafter",
        *PREDICATES,
        *COMPARISONS,
    ],
}
# Unsigned integers: as signed ones of the same bits, or as numbers in the same order.
_RING = {"add", "subtract", "multiply", "negative", "pow", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert"}
_RING |= {"bitwise_left_shift", "equal", "not_equal"}
_ORDER = {"less", "less_equal", "greater", "greater_equal"}
_TRUTHS = {*PREDICATES, *COMPARISONS}


def _unary(name: str, fn: Fn) -> Callable[..., Any]:
    slow = LIMITED if name in _NARROW else LIMITED | NARROW
    narrow = fn if name in _TRUTHS else widened(fn)

    def method(self: Any, x: Array, /) -> Array:
        if x.dtype not in slow:
            return fn(x)
        if x.dtype in UNSIGNED:
            return unsigned.UNARY[name](x) if name in unsigned.UNARY else fn(as_bits(x)).view(x.dtype)
        return narrow(x.to(torch.float32)) if name in _TRUTHS else narrow(x)

    return method


def _binary(name: str, fn: Fn) -> Callable[..., Any]:
    slow = LIMITED if name in _NARROW else LIMITED | NARROW

    def method(self: Any, x: Array, y: Array, /) -> Array:
        if type(x) is not Tensor or type(y) is not Tensor:
            x, y = pair(x, y)
        dtype = x.dtype
        if dtype not in slow:
            return fn(x, y)
        if dtype not in UNSIGNED:
            out = fn(x.to(torch.float32), y.to(torch.float32))
        elif name in _RING:
            out = fn(as_bits(x), as_bits(y))
        elif name in _ORDER:
            return fn(ordered(x), ordered(y))
        else:
            return unsigned.BINARY[name](x, y)
        return out if name in _TRUTHS else from_bits(out, dtype) if dtype in UNSIGNED else rounded(out, dtype)

    return method


class TorchElementwise:
    for _name in ELEMENTWISE:
        if (_fn := _function(_name)) is not None:
            locals()[_name] = (_binary if _name in BINARY or _name in COMPARISONS else _unary)(_name, _fn)
    del _name, _fn

    integer_floor_divide = _binary("integer_floor_divide", _integer_floor_divide)

    def where(self, condition: Array, x: Array, y: Array, /) -> Array:
        x, y = pair(x, y)
        # PyTorch has few kernels for unsigned integers
        return from_bits(torch.where(condition, as_bits(x), as_bits(y)), x.dtype)

    def complex(self, real: Array, imag: Array, /) -> Array:
        return torch.complex(*torch.broadcast_tensors(*pair(real, imag)))

    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        return convert(x, torch_dtype(dtype))

    def bitcast(self, x: Array, dtype: np.dtype, /) -> Array:
        return _bitcast(x, torch_dtype(dtype))


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """See `Elementwise.astype`."""
    source = x.dtype
    if source == dtype:
        return x
    if source.is_complex and not dtype.is_complex:
        return x != 0 if dtype == torch.bool else convert(torch.real(x), dtype)
    if source in FLOAT8 or (dtype in FLOAT8 and source != torch.float32):
        return convert(x.to(torch.float32), dtype) if source in FLOAT8 else rounded(convert(x, torch.float32), dtype)
    if source in UNSIGNED:
        return unsigned.convert(x, dtype)
    if source.is_floating_point and dtype in INTEGERS:
        return _truncated(x, dtype)
    if dtype in UNSIGNED:
        return x.to(SIGNED[dtype]).view(dtype)
    return rounded(x, dtype)


def _truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert floats to integers through int64: numbers that do not fit into narrower integers wrap."""
    if dtype == torch.uint64:
        if x.dtype in NARROW:
            x = x.to(torch.float32)
        high = x >= 2.0**63
        low = torch.where(high, x - 2.0**63, x).to(torch.int64)
        return torch.where(high, low ^ dtypes.lowest(dtypes.int64), low).view(dtype)
    if dtype in (torch.int32, torch.int64):
        return x.to(dtype)
    narrow = _X86 and x.device.type == "cpu" and x.dtype == torch.float32 and dtype.itemsize == 1
    wide = x.to(torch.int32 if narrow else torch.int64)
    return wide.to(SIGNED[dtype]).view(dtype) if dtype in SIGNED else wide.to(dtype)


def _bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    if not x.numel():
        return x.new_empty((0,), dtype=dtype)
    x = x.contiguous()
    if x.stride(0) != 1:  # strides of an array of one element
        x = torch.as_strided(x, x.shape, (1,))
    if dtype == torch.bool and x.dtype != torch.bool:
        return x.view(torch.uint8) != 0
    return x.view(dtype)
