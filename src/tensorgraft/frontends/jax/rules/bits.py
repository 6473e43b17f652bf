"""Primitives that look at the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def reinterpreted(xp: Backend, x: Array, dtype: np.dtype) -> Array:
    """The same bits as another dtype of the same size."""
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
    """A byte, over and over."""
    return int.from_bytes(bytes([pattern]) * (width // 8), "little")


@rule("population_count")
def population_count(xp: Backend, x: Array, **_: Any) -> Array:
    """Sums of pairs, of fours, of bytes (Warren, "Hacker's Delight", section 5-1)."""
    dtype = xp.dtype_of(x)
    unsigned, width = unsigned_of(dtype), 8 * dtype.itemsize

    def constant(value: int) -> Array:
        return xp.full((), value, unsigned)

    def halves(v: Array, by: int, pattern: int) -> Array:
        mask = constant(_repeated(pattern, width))
        return xp.add(xp.bitwise_and(v, mask), xp.bitwise_and(xp.bitwise_right_shift(v, constant(by)), mask))

    v = halves(halves(halves(xp.astype(x, unsigned), 1, 0x55), 2, 0x33), 4, 0x0F)
    if width > 8:
        v = xp.bitwise_right_shift(xp.multiply(v, constant(_repeated(1, width))), constant(width - 8))
    return xp.astype(v, dtype)


@rule("clz")
def clz(xp: Backend, x: Array, **_: Any) -> Array:
    """The bits that stay zero when the highest one is smeared to the right."""
    dtype = xp.dtype_of(x)
    unsigned, width = unsigned_of(dtype), 8 * dtype.itemsize
    v, by = xp.astype(x, unsigned), 1
    while by < width:
        v = xp.bitwise_or(v, xp.bitwise_right_shift(v, xp.full((), by, unsigned)))
        by *= 2
    return xp.astype(population_count(xp, xp.bitwise_invert(v)), dtype)


@rule("mulhi")
def mulhi(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    """The high half of the product, by the four products of halves."""
    dtype = xp.dtype_of(x)
    half = 4 * dtype.itemsize
    unsigned = unsigned_of(dtype)
    by, mask = xp.full((), half, unsigned), xp.full((), 2**half - 1, unsigned)
    a, b = xp.astype(x, unsigned), xp.astype(y, unsigned)
    (a1, a0), (b1, b0) = ((xp.bitwise_right_shift(v, by), xp.bitwise_and(v, mask)) for v in (a, b))
    low = xp.bitwise_right_shift(xp.multiply(a0, b0), by)
    middle = xp.add(xp.multiply(a1, b0), low)
    other = xp.add(xp.multiply(a0, b1), xp.bitwise_and(middle, mask))
    high = xp.add(xp.add(xp.multiply(a1, b1), xp.bitwise_right_shift(middle, by)), xp.bitwise_right_shift(other, by))
    if dtype.kind == "i":  # a negative number is 2^n less than its bits say
        for v, w in ((x, b), (y, a)):
            high = xp.subtract(high, xp.where(xp.less(v, 0), w, xp.zeros_like(w)))
    return xp.astype(high, dtype)


# ---- reinterpretation ------------------------------------------------------------------------------------------------


@rule("bitcast_convert_type")
def bitcast_convert_type(xp: Backend, x: Array, *, new_dtype: Any, out: Any, **_: Any) -> Array:
    return xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), np.dtype(new_dtype)), tuple(out[0].shape))


@rule("reduce_precision")
def reduce_precision(xp: Backend, x: Array, *, exponent_bits: int, mantissa_bits: int, **_: Any) -> Array:
    """Rounded to another format, halves to even, without its subnormal numbers, as XLA's CPU compiler does it
    (xla/service/elemental_ir_emitter, EmitReducePrecisionIR)."""
    dtype = xp.dtype_of(x)
    info = dtypes.finfo(dtype)
    unsigned = unsigned_of(dtype)
    mantissa, exponent = int(info.nmant), 8 * dtype.itemsize - 1 - int(info.nmant)

    def constant(value: int) -> Array:
        return xp.full((), value, unsigned)

    v = reinterpreted(xp, x, unsigned)
    sign = 1 << (8 * dtype.itemsize - 1)
    dropped = mantissa - mantissa_bits
    if dropped > 0:
        last = xp.bitwise_and(xp.bitwise_right_shift(v, constant(dropped)), constant(1))
        v = xp.add(v, xp.add(last, constant((1 << (dropped - 1)) - 1)))
        v = xp.bitwise_and(v, constant(2 * sign - (1 << dropped)))
    if exponent_bits < exponent:
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        field = xp.bitwise_and(v, constant(((1 << exponent) - 1) << mantissa))
        signs = xp.bitwise_and(v, constant(sign))
        infinity = constant(((1 << exponent) - 1) << mantissa)
        great = xp.greater(field, constant((bias + reduced) << mantissa))
        small = xp.less_equal(field, constant((bias - reduced) << mantissa))
        v = xp.where(great, xp.bitwise_or(signs, infinity), v)
        v = xp.where(small, signs, v)
    rounded = reinterpreted(xp, v, dtype)
    return xp.where(xp.isnan(x), x if mantissa_bits else xp.full_like(x, float("inf")), rounded)


# ---- the total order of floating numbers -----------------------------------------------------------------------------


def _total(xp: Backend, x: Array) -> Array:
    """Integers in the order -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    dtype = xp.dtype_of(x)
    if not dtypes.is_floating(dtype):
        return x
    v = reinterpreted(xp, x, _signed_of(dtype))
    flipped = xp.bitwise_xor(v, xp.full((), dtypes.iinfo(_signed_of(dtype)).max, _signed_of(dtype)))
    return xp.where(xp.less(v, 0), flipped, v)


def _by_total_order(strict: str, compare: str) -> Callable[..., Array]:
    def run(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
        if not dtypes.is_complex(xp.dtype_of(x)):
            return getattr(xp, compare)(_total(xp, x), _total(xp, y))
        (a, b), (c, d) = ((_total(xp, xp.real(z)), _total(xp, xp.imag(z))) for z in (x, y))
        tied = xp.logical_and(xp.equal(a, c), getattr(xp, compare)(b, d))
        return tied if not strict else xp.logical_or(getattr(xp, strict)(a, c), tied)

    return run


rule("eq_to")(_by_total_order("", "equal"))
rule("lt_to")(_by_total_order("less", "less"))
rule("le_to")(_by_total_order("less", "less_equal"))
