"""Quantised numbers: fake quantisation, rounding to a grid, and integers with the range that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.quantized.ranges import (
    codes_narrow,
    limits,
    narrowed,
    numbers_narrow,
    round_half_away,
    single,
    wide,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

# ---- fake quantisation -----------------------------------------------------------------------------------------------


def _nudged(xp: ValueBackend, low: Value, high: Value, num_bits: int, narrow: bool) -> tuple[Value, Value, Value]:
    """Return (low, high, scale) of the grid of `num_bits` whose range is shifted so that 0 is one of its values."""
    first, last = float(narrow), float(2**num_bits - 1)
    scale = (high - low) / (last - first)
    zero = first - low / scale
    zero_step = xp.clip(round_half_away(xp, zero), first, last)
    return (first - zero_step) * scale, (last - zero_step) * scale, scale


@with_operators
def _fake(xp: ValueBackend, x: Value, low: Value, high: Value, num_bits: int, narrow: bool) -> Value:
    """Return x clamped to a range and rounded to the grid of `num_bits` there; 0 for the range from 0 to 0."""
    is_empty = (low == 0) & (high == 0)
    safe = xp.where(is_empty, xp.ones_like(high), high)
    first, last, scale = _nudged(xp, low, safe, num_bits, narrow)
    clamped = xp.minimum(xp.maximum(x, first), last) - first
    steps = xp.floor(clamped * (1.0 / scale) + 0.5)
    out = steps * scale + first
    return xp.where(is_empty, xp.zeros_like(out), out)


@with_operators
def _fake_gradients(
    xp: ValueBackend, d: Value, x: Value, low: Value, high: Value, num_bits: int, narrow: bool
) -> tuple[Value, Value, Value]:
    """Return the gradients of x, and of `low` and `high` before they are summed to the shapes of these. The gradient
    `d` belongs to x within the range, to `low` below it, and to `high` above it."""
    is_empty = (low == 0) & (high == 0)
    first, last, _ = _nudged(xp, low, xp.where(is_empty, xp.ones_like(high), high), num_bits, narrow)
    below = (x < first) & ~is_empty
    above = (x > last) & ~is_empty
    in_range = ~(below | above)
    shares = [d * xp.astype(mask, d.dtype) for mask in (in_range, below, above)]
    return shares[0], shares[1], shares[2]


def _range(xp: Backend, low: float, high: float) -> tuple[Array, Array]:
    return xp.full((), low, dtypes.float32), xp.full((), high, dtypes.float32)


@rule("FakeQuantWithMinMaxArgs")
def fake_quant_args(
    xp: Backend, x: Array, *, min: float = -6.0, max: float = 6.0, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _fake(xp, x, *_range(xp, min, max), num_bits, narrow_range)


@rule("FakeQuantWithMinMaxArgsGradient")
def fake_quant_args_gradient(
    xp: Backend, d: Array, x: Array, *, min: float = -6.0, max: float = 6.0, num_bits: int = 8,
    narrow_range: bool = False,
) -> Array:  # fmt: skip
    return _fake_gradients(xp, d, x, *_range(xp, min, max), num_bits, narrow_range)[0]


@rule("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant_vars(
    xp: Backend, x: Array, low: Array, high: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _fake(xp, x, low, high, num_bits, narrow_range)


@rule("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient")
def fake_quant_vars_gradient(
    xp: Backend, d: Array, x: Array, low: Array, high: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> list[Array]:
    inner, below, above = _fake_gradients(xp, d, x, low, high, num_bits, narrow_range)
    over = tuple(range(xp.ndim(x) - xp.ndim(low)))
    return [inner, xp.sum(below, axis=over), xp.sum(above, axis=over)]


# ---- rounding to a grid ----------------------------------------------------------------------------------------------


def _channels(xp: Any, v: AnyArray, x: AnyArray, axis: int) -> AnyArray:
    """Return `v`, a value for each channel (position along `axis` of x), in a shape that broadcasts with x."""
    return v if axis == -1 else xp.reshape(v, tuple(xp.size(v) if a == axis else 1 for a in range(xp.ndim(x))))


@with_operators
def _on_grid(
    xp: ValueBackend, x: Value, low: Value, high: Value, bits: int, signed: bool, mode: str, narrow: bool
) -> Value:
    """Return x clamped to a range and rounded to a grid there. The grid has 0 and steps as large as the range requires;
    the range is widened at the other end to the end of the grid."""
    least = (-(2 ** (bits - 1)) + int(narrow)) if signed else 0
    most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    zero = xp.zeros_like(low)
    greatest = xp.full_like(low, np.finfo(np.float32).max)
    from_low = xp.where(low * least > 0, float(least) / low, greatest) if signed else greatest
    safe = xp.where(high > 0, high, xp.ones_like(high))
    from_high = xp.where(high > 0, float(most) / safe, greatest)
    by_low = from_low < from_high
    scale = xp.minimum(from_low, from_high)
    inverse = 1.0 / scale
    high = xp.where(by_low, inverse * most, high)
    low = xp.where(by_low, low, inverse * least if least else zero)
    scaled = xp.minimum(xp.maximum(x, low), high) * scale
    rounded = xp.round(scaled) if mode == "HALF_TO_EVEN" else xp.floor(scaled + 0.5)
    return rounded * inverse


def _quantised_and_back(
    xp: Backend, x: Array, low: Array, high: Array, bits: int, signed: bool, has_range: bool, mode: str, narrow: bool,
    axis: int,
) -> Array:  # fmt: skip
    if not has_range:
        over = tuple(a for a in range(xp.ndim(x)) if a != axis) if axis != -1 else None
        low, high = xp.min(x, axis=over), xp.max(x, axis=over)
    low, high = _channels(xp, low, x, axis), _channels(xp, high, x, axis)
    return _on_grid(xp, x, low, high, bits, signed, mode, narrow)


@rule("QuantizeAndDequantizeV2")
def quantize_and_dequantize_v2(
    xp: Backend, x: Array, low: Array, high: Array, *, signed_input: bool = True, num_bits: int = 8,
    range_given: bool = False, round_mode: str = "HALF_TO_EVEN", narrow_range: bool = False, axis: int = -1,
) -> Array:  # fmt: skip
    return _quantised_and_back(xp, x, low, high, num_bits, signed_input, range_given, round_mode, narrow_range, axis)


rule("QuantizeAndDequantizeV4")(quantize_and_dequantize_v2)


@rule("QuantizeAndDequantizeV3", known=("num_bits",))
def quantize_and_dequantize_v3(
    xp: Backend, x: Array, low: Array, high: Array, num_bits: np.ndarray, *, signed_input: bool = True,
    range_given: bool = True, narrow_range: bool = False, axis: int = -1,
) -> Array:  # fmt: skip
    return _quantised_and_back(
        xp, x, low, high, int(num_bits), signed_input, range_given, "HALF_TO_EVEN", narrow_range, axis
    )


@rule("QuantizeAndDequantizeV4Grad")
@with_operators
def quantize_and_dequantize_v4_grad(
    xp: ValueBackend, d: Value, x: Value, low: Value, high: Value, *, axis: int = -1
) -> list[Value]:
    in_range = (x >= _channels(xp, low, x, axis)) & (x <= _channels(xp, high, x, axis))
    return [d * xp.astype(in_range, d.dtype), xp.zeros_like(low), xp.zeros_like(high)]


# ---- integers with a range -------------------------------------------------------------------------------------------


@rule("Dequantize")
@with_operators
def dequantize(
    xp: ValueBackend, x: Value, low: Value, high: Value, *, mode: str = "MIN_COMBINED", narrow_range: bool = False,
    axis: int = -1, dtype: np.dtype = dtypes.float32,
) -> Value:  # fmt: skip
    source = x.dtype
    least, most = limits(source)
    low, high = _channels(xp, low, x, axis), _channels(xp, high, x, axis)
    if mode == "MIN_FIRST":
        out = numbers_narrow(xp, x, low, high, source)
    elif mode == "SCALED":
        scale = high / float(most)
        if source.kind == "i":
            scale = xp.maximum(low / float(least + int(narrow_range)), scale)
        out = single(xp, x) * scale
    else:
        half = 0.0 if source.kind == "u" else (most - least + 1) / 2.0
        scale = (high - low) / float(most - least)
        out = (single(xp, x) + half) * scale + low
    return xp.astype(out, dtype)


@rule("QuantizeV2")
@with_operators
def quantize_v2(
    xp: ValueBackend, x: Value, low: Value, high: Value, *, T: np.dtype, mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO", narrow_range: bool = False, axis: int = -1,
    ensure_minimum_range: float = 0.01,
) -> list[Value]:  # fmt: skip
    least, most = limits(T)
    low = xp.minimum(xp.zeros_like(low), low)
    size = xp.maximum(xp.maximum(abs(low), abs(high)), xp.ones_like(low))
    high = xp.maximum(high, low + size * ensure_minimum_range)
    high = xp.maximum(high, xp.zeros_like(high))
    a, b = _channels(xp, low, x, axis), _channels(xp, high, x, axis)
    if (
        T.itemsize == 1
        and axis == -1
        and not narrow_range
        and ((mode == "SCALED" and round_mode == "HALF_TO_EVEN") or (mode == "MIN_FIRST" and T.kind == "u"))
    ):
        return _by_onednn(xp, x, low, high, T, mode)
    if mode == "SCALED":
        low, high, scale = _scaled_range(xp, low, high, float(least + int(narrow_range)), float(most))
        a, b, scale = (_channels(xp, v, x, axis) for v in (low, high, scale))
        out = xp.maximum(xp.minimum(x, b), a) * scale
        out = round_half_away(xp, out) if round_mode == "HALF_AWAY_FROM_ZERO" else xp.round(out)
        return [xp.astype(wide(xp, out), T), low, high]  # 2**31 wraps
    if mode == "MIN_FIRST":
        return [codes_narrow(xp, x, a, b, T), low, high]
    scale = float(most - least) / (b - a)
    out = (xp.maximum(xp.minimum(x, b), a) - a) * scale
    if T.kind == "u":
        return [narrowed(xp, wide(xp, out + 0.5), T), low, high]
    return [xp.astype(wide(xp, round_half_away(xp, out - (most - least + 1) / 2.0)), T), low, high]


def _by_onednn(xp: ValueBackend, x: Value, low: Value, high: Value, dtype: np.dtype, mode: str) -> list[Value]:
    """Quantise as oneDNN does, which TensorFlow uses where it can."""
    if mode == "MIN_FIRST":
        out = (x - low) * (255.0 / (high - low))
    else:
        high = xp.maximum(abs(low), abs(high))
        low = xp.zeros_like(high) if dtype.kind == "u" else -high
        out = x * (255.0 / (high if dtype.kind == "u" else high + high))
    return [narrowed(xp, wide(xp, xp.round(out)), dtype), low, high]


def _scaled_range(xp: ValueBackend, low: Value, high: Value, first: float, last: float) -> tuple[Value, Value, Value]:
    """Return (low, high, steps per unit) of a range that is widened at one end so that `first` and `last` are the
    numbers of steps from 0 to its ends."""
    scale = xp.full_like(high, np.finfo(np.float32).max)
    for end, steps in ((low, first), (high, last)):
        same_sign = end * steps > 0
        steps_per_unit = steps / xp.where(same_sign, end, xp.ones_like(end))
        scale = xp.minimum(scale, xp.where(same_sign, steps_per_unit, scale))
    return first / scale, last / scale, scale
