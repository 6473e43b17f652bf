"""Colours, patches, and images moved by projective maps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints, pads
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

# ---- colours ---------------------------------------------------------------------------------------------------------


@rule("RGBToHSV")
@with_operators
def rgb_to_hsv(xp: ValueBackend, x: Value) -> Value:
    r, g, b = xp.unstack(x, -1)
    value = xp.max(x, axis=-1)
    span = value - xp.min(x, axis=-1)
    zero = xp.zeros_like(value)
    saturation = xp.where(value > 0, span / _positive(xp, value), zero)
    norm = 1.0 / (_positive(xp, span) * 6)
    hue = xp.where(  # by comparisons: a compiler that computes a channel twice may round it in two ways
        (r >= g) & (r >= b), norm * (g - b), xp.where(g >= b, norm * (b - r) + 2 / 6, norm * (r - g) + 4 / 6)
    )
    hue = xp.where(span > 0, hue, zero)
    return xp.stack([xp.where(hue < 0, hue + 1, hue), saturation, value], axis=-1)


def _positive(xp: Any, x: AnyArray) -> AnyArray:
    return xp.where(xp.greater(x, 0), x, xp.ones_like(x))


@rule("HSVToRGB")
@with_operators
def hsv_to_rgb(xp: ValueBackend, x: Value) -> Value:
    h, s, v = xp.unstack(x, -1)
    sixths = h * 6
    third = [xp.clip(abs(sixths - 3) - 1, 0, 1), xp.clip(2 - abs(sixths - 2), 0, 1), xp.clip(2 - abs(sixths - 4), 0, 1)]
    return xp.stack([(1 - s + s * d) * v for d in third], axis=-1)


@rule("AdjustContrastv2", "AdjustContrast")
@with_operators
def adjust_contrast(xp: ValueBackend, x: Value, factor: Value) -> Value:
    dtype = x.dtype
    wide = xp.astype(x, dtypes.float32)
    mean = xp.mean(wide, axis=(-3, -2), keepdims=True)
    return xp.astype((wide - mean) * xp.astype(factor, dtypes.float32) + mean, dtype)


@rule("AdjustSaturation")
def adjust_saturation(xp: Backend, x: Array, scale: Array) -> Array:
    h, s, v = xp.unstack(rgb_to_hsv(xp, xp.astype(x, dtypes.float32)), -1)
    out = hsv_to_rgb(xp, xp.stack([h, xp.clip(xp.multiply(s, scale), 0.0, 1.0), v], axis=-1))
    return xp.astype(out, xp.dtype_of(x))


@rule("AdjustHue")
def adjust_hue(xp: Backend, x: Array, delta: Array) -> Array:
    h, s, v = xp.unstack(rgb_to_hsv(xp, xp.astype(x, dtypes.float32)), -1)
    new_hue = xp.add(h, delta)
    new_hue = xp.subtract(new_hue, xp.floor(new_hue))
    return xp.astype(hsv_to_rgb(xp, xp.stack([new_hue, s, v], axis=-1)), xp.dtype_of(x))


# ---- patches ---------------------------------------------------------------------------------------------------------


def _patches(xp: Backend, x: Array, window: Ints, strides: Ints, rates: Ints, padding: str) -> Array:
    """Return (batch, out..., taps * channels)."""
    extents = xp.shape(x)[1:-1]
    pad_widths = pads(extents, window, strides, rates, padding)
    x = xp.pad(x, 0, [(0, 0, 0), *[(low, high, 0) for low, high in pad_widths], (0, 0, 0)])
    n, c = xp.ndim(x), xp.shape(x)[-1]
    patches = xp.window_patches(xp.permute_dims(x, (0, n - 1, *range(1, n - 1))), window, strides, rates)
    patches = xp.permute_dims(patches, (0, *range(3, n + 1), 2, 1))
    return xp.reshape(patches, (*xp.shape(patches)[:-2], math.prod(window) * c))


@rule("ExtractImagePatches")
def extract_image_patches(xp: Backend, x: Array, *, ksizes: Ints, strides: Ints, rates: Ints, padding: str) -> Array:
    return _patches(xp, x, tuple(ksizes[1:-1]), tuple(strides[1:-1]), tuple(rates[1:-1]), padding)


@rule("ExtractVolumePatches")
def extract_volume_patches(xp: Backend, x: Array, *, ksizes: Ints, strides: Ints, padding: str) -> Array:
    return _patches(xp, x, tuple(ksizes[1:-1]), tuple(strides[1:-1]), (1, 1, 1), padding)


# ---- projective maps -------------------------------------------------------------------------------------------------


@with_operators
def _mapped(xp: ValueBackend, at: Value, n: int, mode: str) -> Value:
    """Return a coordinate beyond the image as one of it; `CONSTANT` leaves it where it is."""
    if mode == "CONSTANT":
        return at
    if mode == "REFLECT" and n > 1:
        low = at + xp.trunc(-at / (2 * n)) * (2 * n)
        low = xp.where(low < -n, low + 2 * n, -low - 1)
        high = at - xp.trunc(at / (2 * n)) * (2 * n)
        high = xp.where(high >= n, 2 * n - high - 1, high)
        at = xp.where(at < 0, low, xp.where(at > n - 1, high, at))
    elif mode == "WRAP" and n > 1:
        low = at + (xp.trunc(-at / (n - 1)) + 1) * n
        high = at - xp.trunc(at / (n - 1)) * n
        at = xp.where(at < 0, low, xp.where(at > n - 1, high, at))
    elif mode in ("REFLECT", "WRAP"):
        return xp.zeros_like(at)
    return xp.clip(at, 0.0, float(n - 1))


@with_operators
def _pixels(xp: ValueBackend, x: Value, row: Value, column: Value, fill: Value) -> Value:
    """Return the pixels at float positions (batch, out rows, out columns), or `fill` outside of the image."""
    batch, h, w, _ = x.shape
    in_image = (row >= 0) & (row < h)
    in_image = in_image & ((column >= 0) & (column < w))
    batch_index = xp.reshape(xp.iota(batch, dtypes.int64), (batch, 1, 1))
    pixel_indices = [xp.astype(xp.where(in_image, v, xp.zeros_like(v)), dtypes.int64) for v in (row, column)]
    return xp.where(xp.expand_dims(in_image, -1), xp.gather(x, (batch_index, *pixel_indices)), fill)


@rule("ImageProjectiveTransformV3", "ImageProjectiveTransformV2", known=("size",))
@with_operators
def projective_transform(
    xp: ValueBackend, x: Value, transforms: Value, size: np.ndarray, fill: Any = 0.0, *,
    interpolation: str, fill_mode: str = "CONSTANT",
) -> Value:  # fmt: skip
    rows, columns = ints(size)
    batch, h, w, _ = x.shape
    dtype = x.dtype
    fill = xp.full((), fill, dtype) if isinstance(fill, float) else xp.astype(fill, dtype)
    t = [xp.reshape(v, (transforms.shape[0], 1, 1)) for v in xp.unstack(transforms, 1)]
    x_coordinates = xp.reshape(xp.astype(xp.iota(columns, dtypes.int64), dtypes.float32), (1, 1, columns))
    down = xp.reshape(xp.astype(xp.iota(rows, dtypes.int64), dtypes.float32), (1, rows, 1))

    def line(a: Value, b: Value, c: Any) -> Value:
        return a * x_coordinates + b * down + c

    k = line(t[6], t[7], 1.0)
    is_degenerate = k == 0
    k = xp.where(is_degenerate, xp.ones_like(k), k)
    full = (batch, rows, columns)
    column = xp.broadcast_to(_mapped(xp, line(t[0], t[1], t[2]) / k, w, fill_mode), full)
    row = xp.broadcast_to(_mapped(xp, line(t[3], t[4], t[5]) / k, h, fill_mode), full)
    if interpolation == "NEAREST":
        out = _pixels(xp, x, _rounded(xp, row), _rounded(xp, column), fill)
    else:
        top, left = xp.floor(row), xp.floor(column)
        parts = []
        for r in (top, top + 1):
            a, b = (xp.astype(_pixels(xp, x, r, v, fill), dtypes.float32) for v in (left, left + 1))
            parts.append(_interpolated(xp, a, b, xp.expand_dims(column - left, -1)))
        out = xp.astype(_interpolated(xp, parts[0], parts[1], xp.expand_dims(row - top, -1)), dtype)
    return xp.where(xp.expand_dims(xp.broadcast_to(is_degenerate, full), -1), fill, out)


@with_operators
def _rounded(xp: ValueBackend, x: Value) -> Value:
    """Halves away from zero."""
    rounded_size = xp.floor(abs(x) + 0.5)
    return xp.where(x < 0, -rounded_size, rounded_size)


@with_operators
def _interpolated(xp: ValueBackend, a: Value, b: Value, t: Value) -> Value:
    return a * (1 - t) + b * t
