"""Normalisation over neighbours, morphology, pooling that says where."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints, Pads, inside_of, pads, positions
from tensorgraft.frontends.tensorflow.rules.neural.pooling import max_pool_grad
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

# ---- local response --------------------------------------------------------------------------------------------------


def _window_sums(xp: Any, x: AnyArray, radius: int) -> AnyArray:
    leading_ndim: int = xp.ndim(x) - 1
    window = (*(1,) * leading_ndim, 2 * radius + 1)
    unit_steps = (1,) * len(window)
    return xp.reduce_window(x, "sum", window, unit_steps, [*[(0, 0)] * leading_ndim, (radius, radius)], unit_steps)


def _scale(xp: ValueBackend, x: Value, radius: int, bias: float, alpha: float) -> Value:
    wide = xp.astype(x, dtypes.accumulator(x.dtype))
    return _window_sums(xp, xp.square(wide), radius) * alpha + bias


@rule("LRN")
@with_operators
def lrn(
    xp: ValueBackend, x: Value, *, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
) -> Value:
    scale = _scale(xp, x, depth_radius, bias, alpha)
    out = xp.astype(x, scale.dtype) * scale ** xp.full_like(scale, -beta)
    return xp.astype(out, x.dtype)


@rule("LRNGrad")
@with_operators
def lrn_grad(
    xp: ValueBackend, d: Value, x: Value, y: Value, *, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0,
    beta: float = 0.5,
) -> Value:  # fmt: skip
    scale = _scale(xp, x, depth_radius, bias, alpha)
    dtype, wide = x.dtype, scale.dtype
    d, x, y = (xp.astype(v, wide) for v in (d, x, y))
    direct = d * scale ** xp.full_like(scale, -beta)
    shared = _window_sums(xp, d * y / scale, depth_radius)
    out = direct - x * shared * (2 * alpha * beta)
    return xp.astype(out, dtype)


# ---- morphology ------------------------------------------------------------------------------------------------------


def _sums(xp: Backend, x: Array, weights: Array, strides: Ints, rates: Ints, padding: str) -> Any:
    """Yield, for each tap, (its position, the sum of it and the elements that it reads, the begin of these)."""
    taps, strides, rates, pad_widths = _layout(xp, x, weights, strides, rates, padding)
    lowest = dtypes.lowest(xp.dtype_of(x))
    padded = xp.pad(x, 0, [(0, 0, 0), *[(a, b, 0) for a, b in pad_widths], (0, 0, 0)])
    n, h, w, c = xp.shape(padded)
    out = [(m - r * (k - 1) - 1) // s + 1 for m, k, s, r in zip((h, w), taps, strides, rates, strict=True)]
    for at in positions(tuple(taps)):
        low = [p * r for p, r in zip(at, rates, strict=True)]
        stop = [b + (o - 1) * s + 1 for b, o, s in zip(low, out, strides, strict=True)]
        sums = xp.add(xp.slice(padded, (0, *low, 0), (n, *stop, c), (1, *strides, 1)), _tap(xp, weights, at))
        in_bounds = inside_of(xp.shape(x)[1:3], low, out, strides, pad_widths)[:, :, None]
        if not in_bounds.all():
            sums = xp.where(xp.asarray(in_bounds), sums, xp.full_like(sums, lowest))
        yield at, sums, (low, out, (h, w))


def _tap(xp: Backend, w: Array, at: Ints) -> Array:
    c = xp.shape(w)[2]
    return xp.reshape(xp.slice(w, (*at, 0), (at[0] + 1, at[1] + 1, c), (1, 1, 1)), (c,))


def _layout(xp: Backend, x: Array, w: Array, strides: Ints, rates: Ints, padding: str) -> tuple[Ints, Ints, Ints, Pads]:
    taps, s, r = tuple(xp.shape(w)[:2]), tuple(strides[1:3]), tuple(rates[1:3])
    return taps, s, r, pads(xp.shape(x)[1:3], taps, s, r, padding)


@rule("Dilation2D")
def dilation(xp: Backend, x: Array, w: Array, *, strides: Ints, rates: Ints, padding: str) -> Array:
    greatest: Any = None
    for _, sums, _ in _sums(xp, x, w, strides, rates, padding):
        greatest = sums if greatest is None else xp.maximum(greatest, sums)
    return greatest


def _winners(xp: Backend, x: Array, w: Array, d: Array, strides: Ints, rates: Ints, padding: str) -> Any:
    """Yield, for each tap, (its position, the derivative where it was the first maximum, where its slice begins)."""
    rows = list(_sums(xp, x, w, strides, rates, padding))
    greatest = rows[0][1]
    for _, sums, _ in rows[1:]:
        greatest = xp.maximum(greatest, sums)
    free, zero = xp.full(xp.shape(greatest), True, dtypes.bool_), xp.zeros_like(d)
    for at, sums, where in rows:
        is_winner = xp.logical_and(free, xp.equal(sums, greatest))
        free = xp.logical_and(free, xp.logical_not(is_winner))
        yield at, xp.where(is_winner, d, zero), where


@rule("Dilation2DBackpropInput")
def dilation_input(xp: Backend, x: Array, w: Array, d: Array, *, strides: Ints, rates: Ints, padding: str) -> Array:
    total: Any = None
    _, s, _, pad_widths = _layout(xp, x, w, strides, rates, padding)
    for _, share, (low, out, extents) in _winners(xp, x, w, d, strides, rates, padding):
        config = [(a, n - a - ((o - 1) * t + 1), t - 1) for a, n, o, t in zip(low, extents, out, s, strict=True)]
        part = xp.pad(share, 0, [(0, 0, 0), *config, (0, 0, 0)])
        total = part if total is None else xp.add(total, part)
    for axis, (a, _) in enumerate(pad_widths, 1):
        total = xp.take_slice(total, axis, a, a + xp.shape(x)[axis])
    return total


@rule("Dilation2DBackpropFilter")
def dilation_filter(xp: Backend, x: Array, w: Array, d: Array, *, strides: Ints, rates: Ints, padding: str) -> Array:
    sums = [xp.sum(share, axis=(0, 1, 2)) for _, share, _ in _winners(xp, x, w, d, strides, rates, padding)]
    return xp.reshape(xp.stack(sums, axis=0), xp.shape(w))


# ---- pooling ---------------------------------------------------------------------------------------------------------


def _windows(
    xp: Backend, shape: Ints, ksize: Ints, strides: Ints, padding: str, with_batch: bool
) -> tuple[np.ndarray, np.ndarray, Pads]:
    """Return, for each tap and result, (the flat position of the element that it reads, a mask of existing ones), and
    the padding."""
    pad_widths = pads(shape, ksize, strides, (1,) * len(shape), padding)
    flat = np.arange(int(np.prod(shape))).reshape(shape)
    flat = flat if with_batch else flat % max(int(np.prod(shape[1:])), 1)
    padded = np.pad(flat, pad_widths, constant_values=-1)
    out = [(n - k) // s + 1 for n, k, s in zip(padded.shape, ksize, strides, strict=True)]
    sources = [
        padded[tuple(slice(i, i + (o - 1) * s + 1, s) for i, o, s in zip(at, out, strides, strict=True))]
        for at in positions(ksize)
    ]
    return np.stack(sources), np.stack(sources) >= 0, pad_widths


@rule("MaxPoolWithArgmax")
def max_pool_with_argmax(
    xp: Backend, x: Array, *, ksize: Ints, strides: Ints, padding: str, Targmax: np.dtype = dtypes.int64,
    include_batch_in_index: bool = False,
) -> list[Array]:  # fmt: skip
    """Return the maxima of windows and their positions; of equal values the first one counts."""
    shape = tuple(xp.shape(x))
    positions, in_bounds, _ = _windows(xp, shape, tuple(ksize), tuple(strides), padding, True)
    flat = xp.reshape(x, (xp.size(x),))
    windows = xp.gather(flat, (xp.asarray(np.maximum(positions, 0)),))
    dtype, is_element = xp.dtype_of(x), xp.asarray(in_bounds)
    windows = xp.where(is_element, windows, xp.full_like(windows, dtypes.lowest(dtype)))
    if dtypes.is_integer(dtype):  # the lowest integer may be a value
        greatest = xp.equal(windows, xp.max(windows, axis=0, keepdims=True))
        winner = xp.argmax(xp.astype(xp.logical_and(greatest, is_element), dtypes.int32), axis=0, keepdims=True)
    else:
        winner = xp.argmax(windows, axis=0, keepdims=True)
    at = xp.squeeze(xp.take_along_axis(xp.asarray(np.maximum(positions, 0)), winner, 0), 0)
    if not include_batch_in_index:
        at = xp.remainder(at, xp.full_like(at, int(np.prod(shape[1:]))))
    return [xp.max(windows, axis=0), xp.astype(at, Targmax)]


def _with_batch(xp: Backend, positions: Array, shape: Ints, included: bool) -> Array:
    positions = xp.astype(positions, dtypes.int64)
    if included:
        return positions
    batch = xp.shape(positions)[0]
    offsets = xp.multiply(xp.iota(batch, dtypes.int64), int(np.prod(shape[1:])))
    return xp.add(positions, xp.reshape(offsets, (batch, *[1] * (xp.ndim(positions) - 1))))


@rule("MaxPoolGradWithArgmax")
def max_pool_grad_with_argmax(
    xp: Backend, x: Array, d: Array, positions: Array, *, include_batch_in_index: bool = False
) -> Array:
    shape = tuple(xp.shape(x))
    at = _with_batch(xp, positions, shape, include_batch_in_index)
    flat = xp.scatter(xp.zeros((xp.size(x),), xp.dtype_of(d)), (at,), d, mode="add")
    return xp.reshape(flat, shape)


@rule("MaxPoolGradV2", known=("ksize", "strides"))
def max_pool_grad_v2(
    xp: Backend, x: Array, y: Array, d: Array, ksize: np.ndarray, strides: np.ndarray, *, padding: str
) -> Array:
    return max_pool_grad(xp, x, y, d, ksize=ints(ksize), strides=ints(strides), padding=padding)


@rule("MaxPoolGradGrad", "MaxPool3DGradGrad")
def max_pool_grad_grad(xp: Backend, x: Array, y: Array, d: Array, *, ksize: Ints, strides: Ints, padding: str) -> Array:
    """Return the element of `d` at the position of each window's maximum."""
    _, at = max_pool_with_argmax(xp, x, ksize=ksize, strides=strides, padding=padding, include_batch_in_index=True)
    return xp.gather(xp.reshape(d, (xp.size(d),)), (at,))


@rule("MaxPoolGradGradV2", known=("ksize", "strides"))
def max_pool_grad_grad_v2(
    xp: Backend, x: Array, y: Array, d: Array, ksize: np.ndarray, strides: np.ndarray, *, padding: str
) -> Array:
    return max_pool_grad_grad(xp, x, y, d, ksize=ints(ksize), strides=ints(strides), padding=padding)
