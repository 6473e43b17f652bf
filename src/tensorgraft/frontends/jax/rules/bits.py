"""Primitives that read the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


def reinterpreted(xp: Any, x: AnyArray, dtype: np.dtype) -> AnyArray:
    """Return the same bits as another dtype of the same size."""
    shape = xp.shape(x)
    return xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), dtype), shape)


def unsigned_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def _signed_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"i{dtype.itemsize}")


# ---- shifts: the hub's, of a dtype with or without a sign ------------------------------------------------------------


def _shift(name: str, method: str, of: Callable[[np.dtype], np.dtype]) -> None:
    @rule(name)
    def shift(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
        dtype = xp.dtype_of(x)
        moved = getattr(xp, method)(*(xp.astype(v, of(dtype)) for v in (x, y)))
        return xp.astype(moved, dtype)


_shift("shift_left", "bitwise_left_shift", unsigned_of)
_shift("shift_right_logical", "bitwise_right_shift", unsigned_of)
_shift("shift_right_arithmetic", "bitwise_right_shift", _signed_of)


# ---- counting --------------------------------------------------------------------------------------------------------


def _repeated(pattern: int, width: int) -> int:
    """Return a byte, over and over."""
    return int.from_bytes(bytes([pattern]) * (width // 8), "little")


@rule("population_count")
@with_operators
def population_count(xp: ValueBackend, x: Value, **_: Any) -> Value:
    """Sums of pairs, of fours, of bytes (Warren, "Hacker's Delight", section 5-1)."""
    dtype = x.dtype
    unsigned, width = unsigned_of(dtype), 8 * dtype.itemsize

    def constant(value: int) -> Value:
        return xp.full((), value, unsigned)

    def halves(v: Value, by: int, pattern: int) -> Value:
        mask = constant(_repeated(pattern, width))
        return (v & mask) + ((v >> constant(by)) & mask)

    v = halves(halves(halves(xp.astype(x, unsigned), 1, 0x55), 2, 0x33), 4, 0x0F)
    if width > 8:
        v = (v * constant(_repeated(1, width))) >> constant(width - 8)
    return xp.astype(v, dtype)


@rule("clz")
@with_operators
def clz(xp: ValueBackend, x: Value, **_: Any) -> Value:
    """Return the bits that stay zero when the highest one is smeared to the right."""
    dtype = x.dtype
    unsigned, width = unsigned_of(dtype), 8 * dtype.itemsize
    v, by = xp.astype(x, unsigned), 1
    while by < width:
        v = v | (v >> xp.full((), by, unsigned))
        by *= 2
    return xp.astype(population_count(xp, ~v), dtype)


@rule("mulhi")
@with_operators
def mulhi(xp: ValueBackend, x: Value, y: Value, **_: Any) -> Value:
    """Return the high half of the product, by the four products of halves."""
    dtype = x.dtype
    half = 4 * dtype.itemsize
    unsigned = unsigned_of(dtype)
    by, mask = xp.full((), half, unsigned), xp.full((), 2**half - 1, unsigned)
    a, b = xp.astype(x, unsigned), xp.astype(y, unsigned)
    (a1, a0), (b1, b0) = ((v >> by, v & mask) for v in (a, b))
    low = (a0 * b0) >> by
    middle = a1 * b0 + low
    other = a0 * b1 + (middle & mask)
    high = a1 * b1 + (middle >> by) + (other >> by)
    if dtype.kind == "i":  # a negative number is 2^n less than its bits say
        for v, w in ((x, b), (y, a)):
            high = high - xp.where(v < 0, w, xp.zeros_like(w))
    return xp.astype(high, dtype)


# ---- reinterpretation ------------------------------------------------------------------------------------------------


@rule("bitcast_convert_type")
def bitcast_convert_type(xp: Backend, x: Array, *, new_dtype: Any, out: Any, **_: Any) -> Array:
    return xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), np.dtype(new_dtype)), tuple(out[0].shape))


@rule("reduce_precision")
@with_operators
def reduce_precision(xp: ValueBackend, x: Value, *, exponent_bits: int, mantissa_bits: int, **_: Any) -> Value:
    """Rounded to another format, halves to even, without its subnormal numbers, as XLA's CPU compiler does it
    (xla/service/elemental_ir_emitter, EmitReducePrecisionIR)."""
    dtype = x.dtype
    info = dtypes.finfo(dtype)
    unsigned = unsigned_of(dtype)
    mantissa, exponent = int(info.nmant), 8 * dtype.itemsize - 1 - int(info.nmant)

    def constant(value: int) -> Value:
        return xp.full((), value, unsigned)

    v = reinterpreted(xp, x, unsigned)
    sign = 1 << (8 * dtype.itemsize - 1)
    dropped = mantissa - mantissa_bits
    if dropped > 0:
        last = (v >> constant(dropped)) & constant(1)
        v = v + (last + constant((1 << (dropped - 1)) - 1))
        v = v & constant(2 * sign - (1 << dropped))
    if exponent_bits < exponent:
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        field = v & constant(((1 << exponent) - 1) << mantissa)
        signs = v & constant(sign)
        infinity = constant(((1 << exponent) - 1) << mantissa)
        great = field > constant((bias + reduced) << mantissa)
        small = field <= constant((bias - reduced) << mantissa)
        v = xp.where(great, signs | infinity, v)
        v = xp.where(small, signs, v)
    rounded = reinterpreted(xp, v, dtype)
    return xp.where(xp.isnan(x), x if mantissa_bits else xp.full_like(x, float("inf")), rounded)


# ---- the total order of floating numbers -----------------------------------------------------------------------------


def _total(xp: Any, x: AnyArray) -> AnyArray:
    """Integers in the order -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    dtype = xp.dtype_of(x)
    if not dtypes.is_floating(dtype):
        return x
    v = reinterpreted(xp, x, _signed_of(dtype))
    flipped = xp.bitwise_xor(v, xp.full((), dtypes.iinfo(_signed_of(dtype)).max, _signed_of(dtype)))
    return xp.where(xp.less(v, 0), flipped, v)


def _by_total_order(strict: str, compare: str) -> Callable[..., Array]:
    @with_operators
    def run(xp: ValueBackend, x: Value, y: Value, **_: Any) -> Value:
        if not dtypes.is_complex(x.dtype):
            return getattr(xp, compare)(_total(xp, x), _total(xp, y))
        (a, b), (c, d) = ((_total(xp, xp.real(z)), _total(xp, xp.imag(z))) for z in (x, y))
        tied = (a == c) & getattr(xp, compare)(b, d)
        return tied if not strict else getattr(xp, strict)(a, c) | tied

    return run


rule("eq_to")(_by_total_order("", "equal"))
rule("lt_to")(_by_total_order("less", "less"))
rule("le_to")(_by_total_order("less", "less_equal"))
