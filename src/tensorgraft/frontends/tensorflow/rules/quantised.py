"""Fake quantisation, and local response normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any


def _range(xp: Backend, low: Array, high: Array, bits: int, narrow: bool) -> tuple[Array, Array, Array]:
    """(the least value, the greatest, the step), moved so that 0 is one of the values."""
    first, last = float(narrow), float((1 << bits) - 1)
    step = xp.divide(xp.subtract(high, low), last - first)
    zero = xp.subtract(first, xp.divide(low, step))
    zero = xp.floor(xp.add(xp.clip(zero, first, last), 0.5))
    return xp.multiply(xp.subtract(first, zero), step), xp.multiply(xp.subtract(last, zero), step), step


def _quantised(xp: Backend, x: Array, low: Array, high: Array, bits: int, narrow: bool) -> Array:
    least, greatest, step = _range(xp, low, high, bits, narrow)
    inside = xp.minimum(xp.maximum(x, least), greatest)
    codes = xp.floor(xp.add(xp.divide(xp.subtract(inside, least), step), 0.5))
    return xp.add(xp.multiply(codes, step), least)


def _bounds(xp: Backend, x: Array, low: float, high: float) -> tuple[Array, Array]:
    dtype = xp.dtype_of(x)
    return xp.full((), low, dtype), xp.full((), high, dtype)


@rule("FakeQuantWithMinMaxArgs")
def fake_quant_args(
    xp: Backend, x: Array, *, min: float = -6, max: float = 6, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _quantised(xp, x, *_bounds(xp, x, min, max), num_bits, narrow_range)


@rule("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant_vars(
    xp: Backend, x: Array, low: Array, high: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _quantised(xp, x, low, high, num_bits, narrow_range)


@rule("FakeQuantWithMinMaxArgsGradient")
def fake_quant_args_gradient(
    xp: Backend, d: Array, x: Array, *, min: float = -6, max: float = 6, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    least, greatest, _ = _range(xp, *_bounds(xp, x, min, max), num_bits, narrow_range)
    inside = xp.logical_and(xp.greater_equal(x, least), xp.less_equal(x, greatest))
    return xp.where(inside, d, xp.zeros_like(d))


@rule("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient")
def fake_quant_vars_gradient(
    xp: Backend, d: Array, x: Array, low: Array, high: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> list[Array]:
    least, greatest, _ = _range(xp, low, high, num_bits, narrow_range)
    below, above = xp.less(x, least), xp.greater(x, greatest)
    zero = xp.zeros_like(d)
    axes = tuple(range(xp.ndim(x) - xp.ndim(low)))

    def total(where: Array) -> Array:
        return xp.sum(xp.where(where, d, zero), axis=axes)

    return [xp.where(xp.logical_or(below, above), zero, d), total(below), total(above)]


# ---- local response normalisation ------------------------------------------------------------------------------------


def _nearby(xp: Backend, x: Array, radius: int) -> Array:
    """Sums over neighbouring channels."""
    n = xp.ndim(x)
    window = (1,) * (n - 1) + (2 * radius + 1,)
    around = [(0, 0)] * (n - 1) + [(radius, radius)]
    return xp.reduce_window(x, "sum", window, (1,) * n, around, (1,) * n)


@rule("LRN")
def lrn(xp: Backend, x: Array, *, depth_radius: int = 5, bias: float = 1, alpha: float = 1, beta: float = 0.5) -> Array:
    norm = xp.add(xp.multiply(_nearby(xp, xp.square(x), depth_radius), alpha), bias)
    return xp.multiply(x, xp.pow(norm, xp.full_like(norm, -beta)))


@rule("LRNGrad")
def lrn_grad(
    xp: Backend,
    d: Array,
    x: Array,
    y: Array,
    *,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
) -> Array:
    norm = xp.add(xp.multiply(_nearby(xp, xp.square(x), depth_radius), alpha), bias)
    direct = xp.multiply(d, xp.pow(norm, xp.full_like(norm, -beta)))
    spread = _nearby(xp, xp.divide(xp.multiply(d, y), norm), depth_radius)
    return xp.subtract(direct, xp.multiply(xp.multiply(x, spread), np.float64(2 * alpha * beta).item()))
