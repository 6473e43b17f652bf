"""Colours, patches, and images moved by projective maps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.hosted import on_host
from tensorgraft.frontends.tensorflow.rules.neural.convolution import Ints, pads
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# ---- colours ---------------------------------------------------------------------------------------------------------


@rule("RGBToHSV")
def rgb_to_hsv(xp: Backend, x: Array) -> Array:
    r, g, b = xp.unstack(x, -1)
    value = xp.max(x, axis=-1)
    span = xp.subtract(value, xp.min(x, axis=-1))
    zero = xp.zeros_like(value)
    saturation = xp.where(xp.greater(value, 0), xp.divide(span, _positive(xp, value)), zero)
    norm = xp.divide(1.0, xp.multiply(_positive(xp, span), 6))
    hue = xp.where(  # by what is larger: a compiler that computes a channel twice may round it in two ways
        xp.logical_and(xp.greater_equal(r, g), xp.greater_equal(r, b)),
        xp.multiply(norm, xp.subtract(g, b)),
        xp.where(
            xp.greater_equal(g, b),
            xp.add(xp.multiply(norm, xp.subtract(b, r)), 2 / 6),
            xp.add(xp.multiply(norm, xp.subtract(r, g)), 4 / 6),
        ),
    )
    hue = xp.where(xp.greater(span, 0), hue, zero)
    return xp.stack([xp.where(xp.less(hue, 0), xp.add(hue, 1), hue), saturation, value], axis=-1)


def _positive(xp: Backend, x: Array) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.ones_like(x))


@rule("HSVToRGB")
def hsv_to_rgb(xp: Backend, x: Array) -> Array:
    h, s, v = xp.unstack(x, -1)
    sixths = xp.multiply(h, 6)
    third = [
        xp.clip(xp.subtract(xp.abs(xp.subtract(sixths, 3)), 1), 0, 1),
        xp.clip(xp.subtract(2, xp.abs(xp.subtract(sixths, 2))), 0, 1),
        xp.clip(xp.subtract(2, xp.abs(xp.subtract(sixths, 4))), 0, 1),
    ]
    return xp.stack([xp.multiply(xp.add(xp.subtract(1, s), xp.multiply(s, d)), v) for d in third], axis=-1)


@rule("AdjustContrastv2", "AdjustContrast")
def adjust_contrast(xp: Backend, x: Array, factor: Array) -> Array:
    dtype = xp.dtype_of(x)
    wide = xp.astype(x, dtypes.float32)
    mean = xp.mean(wide, axis=(-3, -2), keepdims=True)
    return xp.astype(xp.add(xp.multiply(xp.subtract(wide, mean), xp.astype(factor, dtypes.float32)), mean), dtype)


@rule("AdjustSaturation")
def adjust_saturation(xp: Backend, x: Array, scale: Array) -> Array:
    h, s, v = xp.unstack(rgb_to_hsv(xp, xp.astype(x, dtypes.float32)), -1)
    out = hsv_to_rgb(xp, xp.stack([h, xp.clip(xp.multiply(s, scale), 0.0, 1.0), v], axis=-1))
    return xp.astype(out, xp.dtype_of(x))


@rule("AdjustHue")
def adjust_hue(xp: Backend, x: Array, delta: Array) -> Array:
    h, s, v = xp.unstack(rgb_to_hsv(xp, xp.astype(x, dtypes.float32)), -1)
    turned = xp.add(h, delta)
    turned = xp.subtract(turned, xp.floor(turned))
    return xp.astype(hsv_to_rgb(xp, xp.stack([turned, s, v], axis=-1)), xp.dtype_of(x))


# ---- patches ---------------------------------------------------------------------------------------------------------


def _patches(xp: Backend, x: Array, window: Ints, strides: Ints, rates: Ints, padding: str) -> Array:
    """(batch, out..., taps * channels)."""
    extents = xp.shape(x)[1:-1]
    around = pads(extents, window, strides, rates, padding)
    x = xp.pad(x, 0, [(0, 0, 0), *[(low, high, 0) for low, high in around], (0, 0, 0)])
    n, c = xp.ndim(x), xp.shape(x)[-1]
    seen = xp.window_patches(xp.permute_dims(x, (0, n - 1, *range(1, n - 1))), window, strides, rates)
    seen = xp.permute_dims(seen, (0, *range(3, n + 1), 2, 1))
    return xp.reshape(seen, (*xp.shape(seen)[:-2], math.prod(window) * c))


@rule("ExtractImagePatches")
def extract_image_patches(xp: Backend, x: Array, *, ksizes: Ints, strides: Ints, rates: Ints, padding: str) -> Array:
    return _patches(xp, x, tuple(ksizes[1:-1]), tuple(strides[1:-1]), tuple(rates[1:-1]), padding)


@rule("ExtractVolumePatches")
def extract_volume_patches(xp: Backend, x: Array, *, ksizes: Ints, strides: Ints, padding: str) -> Array:
    return _patches(xp, x, tuple(ksizes[1:-1]), tuple(strides[1:-1]), (1, 1, 1), padding)


# ---- projective maps -------------------------------------------------------------------------------------------------


def _mapped(xp: Backend, at: Array, n: int, mode: str) -> Array:
    """A coordinate beyond the image as one of it; `CONSTANT` leaves it where it is."""
    if mode == "CONSTANT":
        return at
    if mode == "REFLECT" and n > 1:
        low = xp.add(at, xp.multiply(xp.trunc(xp.divide(xp.negative(at), 2 * n)), 2 * n))
        low = xp.where(xp.less(low, -n), xp.add(low, 2 * n), xp.subtract(xp.negative(low), 1))
        high = xp.subtract(at, xp.multiply(xp.trunc(xp.divide(at, 2 * n)), 2 * n))
        high = xp.where(xp.greater_equal(high, n), xp.subtract(xp.subtract(2 * n, high), 1), high)
        at = xp.where(xp.less(at, 0), low, xp.where(xp.greater(at, n - 1), high, at))
    elif mode == "WRAP" and n > 1:
        low = xp.add(at, xp.multiply(xp.add(xp.trunc(xp.divide(xp.negative(at), n - 1)), 1), n))
        high = xp.subtract(at, xp.multiply(xp.trunc(xp.divide(at, n - 1)), n))
        at = xp.where(xp.less(at, 0), low, xp.where(xp.greater(at, n - 1), high, at))
    elif mode in ("REFLECT", "WRAP"):
        return xp.zeros_like(at)
    return xp.clip(at, 0.0, float(n - 1))


def _pixels(xp: Backend, x: Array, row: Array, column: Array, fill: Array) -> Array:
    """Those at float positions (batch, out rows, out columns); `fill` beyond."""
    batch, h, w, _ = xp.shape(x)
    inside = xp.logical_and(xp.greater_equal(row, 0), xp.less(row, h))
    inside = xp.logical_and(inside, xp.logical_and(xp.greater_equal(column, 0), xp.less(column, w)))
    lead = xp.reshape(xp.iota(batch, dtypes.int64), (batch, 1, 1))
    places = [xp.astype(xp.where(inside, v, xp.zeros_like(v)), dtypes.int64) for v in (row, column)]
    return xp.where(xp.expand_dims(inside, -1), xp.gather(x, (lead, *places)), fill)


@rule("ImageProjectiveTransformV3", "ImageProjectiveTransformV2", known=("size",))
def projective_transform(
    xp: Backend, x: Array, transforms: Array, size: np.ndarray, fill: Any = 0.0, *,
    interpolation: str, fill_mode: str = "CONSTANT",
) -> Array:  # fmt: skip
    rows, columns = ints(size)
    batch, h, w, _ = xp.shape(x)
    dtype = xp.dtype_of(x)
    fill = xp.full((), fill, dtype) if isinstance(fill, float) else xp.astype(fill, dtype)
    t = [xp.reshape(v, (xp.shape(transforms)[0], 1, 1)) for v in xp.unstack(transforms, 1)]
    across = xp.reshape(xp.astype(xp.iota(columns, dtypes.int64), dtypes.float32), (1, 1, columns))
    down = xp.reshape(xp.astype(xp.iota(rows, dtypes.int64), dtypes.float32), (1, rows, 1))

    def line(a: Array, b: Array, c: Any) -> Array:
        return xp.add(xp.add(xp.multiply(a, across), xp.multiply(b, down)), c)

    k = line(t[6], t[7], 1.0)
    nothing = xp.equal(k, 0)
    k = xp.where(nothing, xp.ones_like(k), k)
    full = (batch, rows, columns)
    column = xp.broadcast_to(_mapped(xp, xp.divide(line(t[0], t[1], t[2]), k), w, fill_mode), full)
    row = xp.broadcast_to(_mapped(xp, xp.divide(line(t[3], t[4], t[5]), k), h, fill_mode), full)
    if interpolation == "NEAREST":
        out = _pixels(xp, x, _rounded(xp, row), _rounded(xp, column), fill)
    else:
        top, left = xp.floor(row), xp.floor(column)
        parts = []
        for r in (top, xp.add(top, 1)):
            a, b = (xp.astype(_pixels(xp, x, r, v, fill), dtypes.float32) for v in (left, xp.add(left, 1)))
            parts.append(_between(xp, a, b, xp.expand_dims(xp.subtract(column, left), -1)))
        out = xp.astype(_between(xp, parts[0], parts[1], xp.expand_dims(xp.subtract(row, top), -1)), dtype)
    return xp.where(xp.expand_dims(xp.broadcast_to(nothing, full), -1), fill, out)


def _rounded(xp: Backend, x: Array) -> Array:
    """Halves away from zero."""
    away = xp.floor(xp.add(xp.abs(x), 0.5))
    return xp.where(xp.less(x, 0), xp.negative(away), away)


def _between(xp: Backend, a: Array, b: Array, t: Array) -> Array:
    return xp.add(xp.multiply(a, xp.subtract(1, t)), xp.multiply(b, t))


# ---- drawing ---------------------------------------------------------------------------------------------------------

_COLOURS = np.asarray(
    [(1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1), (0.5, 0.5, 0, 1), (0.5, 0, 0, 1),
     (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1)],
    np.float32,
)  # fmt: skip


@on_host("DrawBoundingBoxes", "DrawBoundingBoxesV2")
def draw_bounding_boxes(images: np.ndarray, boxes: np.ndarray, colours: Any = None) -> np.ndarray:
    out = images.copy()
    _, h, w, depth = images.shape
    palette = _COLOURS.copy() if colours is None or not colours.size else colours
    if depth == 1:
        palette = np.ones_like(palette)
    for b, some in enumerate(boxes):
        for i, box in enumerate(some):
            colour = palette[i % len(palette)][:depth].astype(images.dtype)
            scale = np.asarray([h - 1, w - 1, h - 1, w - 1], np.float32)
            y0, x0, y1, x1 = (int(v) for v in box.astype(np.float32) * scale)
            if y0 > y1 or x0 > x1 or y0 >= h or y1 < 0 or x0 >= w or x1 < 0:
                continue
            rows, columns = slice(max(y0, 0), min(y1, h - 1) + 1), slice(max(x0, 0), min(x1, w - 1) + 1)
            for y in (y0, y1):
                if 0 <= y < h:
                    out[b, y, columns] = colour
            for x in (x0, x1):
                if 0 <= x < w:
                    out[b, rows, x] = colour
    return out
