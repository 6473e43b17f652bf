"""Quantised numbers: fake quantisation, rounding to a grid, and integers with the range that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any

# ---- fake quantisation -----------------------------------------------------------------------------------------------


def _away(xp: Backend, x: Array) -> Array:
    """Rounded, halves away from zero."""
    out = xp.floor(xp.add(xp.abs(x), 0.5))
    return xp.where(xp.less(x, 0), xp.negative(out), out)


def _nudged(xp: Backend, low: Array, high: Array, num_bits: int, narrow: bool) -> tuple[Array, Array, Array]:
    """(low, high, scale) such that 0 is on the grid."""
    first, last = float(narrow), float(2**num_bits - 1)
    scale = xp.divide(xp.subtract(high, low), last - first)
    zero = xp.subtract(first, xp.divide(low, scale))
    held = xp.clip(_away(xp, zero), first, last)
    return xp.multiply(xp.subtract(first, held), scale), xp.multiply(xp.subtract(last, held), scale), scale


def _fake(xp: Backend, x: Array, low: Array, high: Array, num_bits: int, narrow: bool) -> Array:
    nothing = xp.logical_and(xp.equal(low, 0), xp.equal(high, 0))
    safe = xp.where(nothing, xp.ones_like(high), high)
    first, last, scale = _nudged(xp, low, safe, num_bits, narrow)
    held = xp.subtract(xp.minimum(xp.maximum(x, first), last), first)
    steps = xp.floor(xp.add(xp.multiply(held, xp.divide(1.0, scale)), 0.5))
    out = xp.add(xp.multiply(steps, scale), first)
    return xp.where(nothing, xp.zeros_like(out), out)


def _fake_gradients(
    xp: Backend, d: Array, x: Array, low: Array, high: Array, num_bits: int, narrow: bool
) -> tuple[Array, Array, Array]:
    """(that of x, and what those of both ends sum up)."""
    nothing = xp.logical_and(xp.equal(low, 0), xp.equal(high, 0))
    first, last, _ = _nudged(xp, low, xp.where(nothing, xp.ones_like(high), high), num_bits, narrow)
    below = xp.logical_and(xp.less(x, first), xp.logical_not(nothing))
    above = xp.logical_and(xp.greater(x, last), xp.logical_not(nothing))
    zero = xp.zeros_like(d)
    inside = xp.logical_not(xp.logical_or(below, above))
    return xp.where(inside, d, zero), xp.where(below, d, zero), xp.where(above, d, zero)


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


def _channels(xp: Backend, v: Array, x: Array, axis: int) -> Array:
    return v if axis == -1 else xp.reshape(v, tuple(xp.size(v) if a == axis else 1 for a in range(xp.ndim(x))))


def _on_grid(xp: Backend, x: Array, low: Array, high: Array, bits: int, signed: bool, mode: str, narrow: bool) -> Array:
    """The range is widened at one end until the grid, which has 0, covers it."""
    least = (-(2 ** (bits - 1)) + int(narrow)) if signed else 0
    most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    zero = xp.zeros_like(low)
    below = xp.divide(float(least), low) if signed else None
    from_low = xp.where(xp.greater(xp.multiply(low, least), 0), below, xp.full_like(low, np.finfo(np.float32).max)) if (
        signed
    ) else xp.full_like(low, np.finfo(np.float32).max)  # fmt: skip
    safe = xp.where(xp.greater(high, 0), high, xp.ones_like(high))
    from_high = xp.where(
        xp.greater(high, 0), xp.divide(float(most), safe), xp.full_like(high, np.finfo(np.float32).max)
    )
    by_low = xp.less(from_low, from_high)
    scale = xp.minimum(from_low, from_high)
    inverse = xp.divide(1.0, scale)
    high = xp.where(by_low, xp.multiply(inverse, most), high)
    low = xp.where(by_low, low, xp.multiply(inverse, least) if least else zero)
    held = xp.multiply(xp.minimum(xp.maximum(x, low), high), scale)
    rounded = xp.round(held) if mode == "HALF_TO_EVEN" else xp.floor(xp.add(held, 0.5))
    return xp.multiply(rounded, inverse)


def _quantised_and_back(
    xp: Backend, x: Array, low: Array, high: Array, bits: int, signed: bool, given: bool, mode: str, narrow: bool,
    axis: int,
) -> Array:  # fmt: skip
    if not given:
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
def quantize_and_dequantize_v4_grad(
    xp: Backend, d: Array, x: Array, low: Array, high: Array, *, axis: int = -1
) -> list[Array]:
    inside = xp.logical_and(
        xp.greater_equal(x, _channels(xp, low, x, axis)), xp.less_equal(x, _channels(xp, high, x, axis))
    )
    return [xp.where(inside, d, xp.zeros_like(d)), xp.zeros_like(low), xp.zeros_like(high)]


# ---- integers with a range -------------------------------------------------------------------------------------------


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def steps_of(xp: Backend, low: Array, high: Array, dtype: np.dtype) -> Array:
    """What a step of the integers stands for."""
    least, most = _limits(dtype)
    return xp.divide(xp.subtract(high, low), float(most - least))


def to_float(xp: Backend, x: Array, low: Array, high: Array) -> Array:
    """`MIN_FIRST`: the range is spread over all integers of the dtype."""
    dtype = xp.dtype_of(x)
    least, _ = _limits(dtype)
    wide = [xp.astype(v, dtypes.float64) for v in (x, low, high)]
    step = steps_of(xp, wide[1], wide[2], dtype)
    first = xp.multiply(_away(xp, xp.divide(wide[1], step)), step)
    return xp.astype(xp.add(xp.multiply(xp.subtract(wide[0], least), step), first), dtypes.float32)


@rule("Dequantize")
def dequantize(
    xp: Backend, x: Array, low: Array, high: Array, *, mode: str = "MIN_COMBINED", narrow_range: bool = False,
    axis: int = -1, dtype: np.dtype = dtypes.float32,
) -> Array:  # fmt: skip
    source = xp.dtype_of(x)
    least, most = _limits(source)
    low, high = _channels(xp, low, x, axis), _channels(xp, high, x, axis)
    numbers = xp.astype(x, dtypes.float32)
    if mode == "MIN_FIRST":
        out = to_float(xp, x, low, high)
    elif mode == "SCALED":
        last = float(most)
        scale = xp.divide(high, last)
        if source.kind == "i":
            scale = xp.maximum(xp.divide(low, float(least + int(narrow_range))), scale)
        out = xp.multiply(numbers, scale)
    else:
        half = 0.0 if source.kind == "u" else (most - least + 1) / 2.0
        scale = xp.divide(xp.subtract(high, low), float(most - least))
        out = xp.add(xp.multiply(xp.add(numbers, half), scale), low)
    return xp.astype(out, dtype)


@rule("QuantizeV2")
def quantize_v2(
    xp: Backend, x: Array, low: Array, high: Array, *, T: np.dtype, mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO", narrow_range: bool = False, axis: int = -1,
    ensure_minimum_range: float = 0.01,
) -> list[Array]:  # fmt: skip
    least, most = _limits(T)
    low = xp.minimum(xp.zeros_like(low), low)
    size = xp.maximum(xp.maximum(xp.abs(low), xp.abs(high)), xp.ones_like(low))
    high = xp.maximum(high, xp.add(low, xp.multiply(size, ensure_minimum_range)))
    high = xp.maximum(high, xp.zeros_like(high))
    if mode == "SCALED":
        first = least + int(narrow_range) if T.kind == "i" else 0
        top = float(most)
        by_high = xp.where(xp.greater(high, 0), xp.divide(top, _positive(xp, high)), xp.full_like(high, 3e38))
        by_low = xp.full_like(low, 3e38)
        if first:
            by_low = xp.where(
                xp.less(low, 0),
                xp.divide(float(first), xp.where(xp.less(low, 0), low, xp.full_like(low, -1))),
                by_low,
            )
        scale = xp.minimum(by_high, by_low)
        low, high = xp.divide(float(first), scale), xp.divide(top, scale)
        scaled = xp.multiply(x, _channels(xp, scale, x, axis))
        out = _away(xp, scaled) if round_mode == "HALF_AWAY_FROM_ZERO" else xp.round(scaled)
    else:
        scale = xp.divide(float(most - least), xp.subtract(high, low))
        a, b, s = (_channels(xp, v, x, axis) for v in (low, high, scale))
        if mode == "MIN_FIRST":
            first = _away(xp, xp.multiply(a, s))
            out = xp.add(xp.subtract(_away(xp, xp.multiply(x, s)), first), float(least))
        else:
            held = xp.minimum(xp.maximum(x, a), b)
            out = xp.multiply(xp.subtract(held, a), s)
            if T.kind == "i":
                out = xp.subtract(out, (most - least + 1) / 2.0)
            out = _away(xp, out)
    out = xp.clip(xp.astype(out, dtypes.float64), float(least), float(most))
    return [xp.astype(out, T), low, high]


def _positive(xp: Backend, x: Array) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.ones_like(x))
