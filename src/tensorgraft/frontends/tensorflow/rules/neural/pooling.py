"""Pooling, and its derivatives. Windows have one entry an axis, batch and channels among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.neural.convolution import (
    Ints,
    Pads,
    inside_of,
    pads,
    positions,
    window_counts,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _pad_widths(shape: Ints, ksize: Ints, strides: Ints, padding: str, explicit: Ints = ()) -> Pads:
    if padding == "EXPLICIT":
        return [(explicit[i], explicit[i + 1]) for i in range(0, len(explicit), 2)]
    return pads(shape, ksize, strides, (1,) * len(shape), padding)


def _pooled(xp: Backend, x: Array, kind: str, ksize: Ints, strides: Ints, pad_widths: Pads) -> Array:
    return xp.reduce_window(x, kind, ksize, strides, pad_widths, (1,) * len(ksize))


@rule("MaxPool", "MaxPool3D")
def max_pool(xp: Backend, x: Array, *, ksize: Ints, strides: Ints, padding: str, explicit_paddings: Ints = ()) -> Array:
    return _pooled(xp, x, "max", ksize, strides, _pad_widths(xp.shape(x), ksize, strides, padding, explicit_paddings))


@rule("MaxPoolV2", known=("ksize", "strides"))
def max_pool_v2(xp: Backend, x: Array, ksize: np.ndarray, strides: np.ndarray, *, padding: str) -> Array:
    return max_pool(xp, x, ksize=ints(ksize), strides=ints(strides), padding=padding)


@rule("AvgPool", "AvgPool3D")
def avg_pool(xp: Backend, x: Array, *, ksize: Ints, strides: Ints, padding: str) -> Array:
    pad_widths = _pad_widths(xp.shape(x), ksize, strides, padding)
    dtype = xp.dtype_of(x)
    wide = xp.astype(x, dtypes.accumulator(dtype))
    total = _pooled(xp, wide, "sum", ksize, strides, pad_widths)
    counts = window_counts(xp.shape(x), ksize, strides, pad_widths)
    return xp.astype(xp.divide(total, _numbers(xp, counts, xp.dtype_of(wide))), dtype)


def _numbers(xp: Backend, counts: np.ndarray, dtype: np.dtype) -> Array:
    """Return counts as an array, or as a 0-d array if they are all equal."""
    if counts.size and (counts == counts.flat[0]).all():
        return xp.full((), float(counts.flat[0]), dtype)
    return xp.asarray(counts.astype(dtype))


@rule("AvgPoolGrad", "AvgPool3DGrad", known=("shape",))
def avg_pool_grad(xp: Backend, shape: np.ndarray, d: Array, *, ksize: Ints, strides: Ints, padding: str) -> Array:
    """Spread by the strides, then summed over the windows that an element was in."""
    extents = ints(shape)
    pad_widths = _pad_widths(extents, ksize, strides, padding)
    share = xp.divide(d, _numbers(xp, window_counts(extents, ksize, strides, pad_widths), xp.dtype_of(d)))
    config = []
    for n, o, k, s, (low, _) in zip(extents, xp.shape(d), ksize, strides, pad_widths, strict=True):
        before = k - 1 - low
        config.append((before, n + k - 1 - before - ((o - 1) * s + 1), s - 1))
    padded_share = xp.pad(share, 0, config)
    return _pooled(xp, padded_share, "sum", ksize, (1,) * len(ksize), [(0, 0)] * len(ksize))


@rule("MaxPoolGrad", "MaxPool3DGrad")
def max_pool_grad(
    xp: Backend, x: Array, y: Array, d: Array, *, ksize: Ints, strides: Ints, padding: str, explicit_paddings: Ints = ()
) -> Array:
    """Pass gradients to the first maximum of each window. It is not found by comparing with `y`, since a compiler that
    recomputes `x` may round it in another way."""
    pad_widths = _pad_widths(xp.shape(x), ksize, strides, padding, explicit_paddings)
    dtype = xp.dtype_of(x)
    lowest = dtypes.lowest(dtype)
    padded = xp.pad(x, lowest, [(low, high, 0) for low, high in pad_widths])
    extents, out = xp.shape(padded), xp.shape(y)
    total: Any = None
    greatest: Array | None = None
    winner, zero = xp.zeros(out, dtypes.int32), xp.zeros_like(d)
    only_padding = np.ones(out, bool) if dtypes.is_integer(dtype) and any(map(any, pad_widths)) else None
    for k, at in enumerate(positions(ksize)):
        stop = tuple(i + (o - 1) * s + 1 for i, o, s in zip(at, out, strides, strict=True))
        window_values = xp.slice(padded, at, stop, strides)
        in_bounds = inside_of(xp.shape(x), at, out, strides, pad_widths)
        if greatest is not None:
            better = xp.greater(window_values, greatest)
            if (
                only_padding is not None and (first := only_padding & in_bounds).any()
            ):  # integers have no value below all others
                better = xp.logical_or(better, xp.asarray(first))
            winner = xp.where(better, k, winner)
        greatest = window_values if greatest is None else xp.where(better, window_values, greatest)
        only_padding = None if only_padding is None else only_padding & ~in_bounds
    for k, at in enumerate(positions(ksize)):
        is_winner = xp.equal(winner, k)
        config = [(i, n - i - ((o - 1) * s + 1), s - 1) for i, n, o, s in zip(at, extents, out, strides, strict=True)]
        part = xp.pad(xp.where(is_winner, d, zero), 0, config)
        total = part if total is None else xp.add(total, part)
    low = tuple(b for b, _ in pad_widths)
    return xp.slice(total, low, tuple(b + n for b, n in zip(low, xp.shape(x), strict=True)), (1,) * len(low))
