"""Images of other extents: along each axis a result is a weighted sum of a few places (`Taps`), and derivatives go the
same way back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Taps = tuple[np.ndarray, np.ndarray]  # places (out, k), weights (out, k)
F32 = np.float32


def _scale(n: int, out: int, align_corners: bool) -> np.float32:
    return F32((n - 1) / (out - 1)) if align_corners and out > 1 else F32(F32(n) / F32(out))


def _centres(n: int, out: int, align_corners: bool, half_pixel: bool) -> np.ndarray:
    scale, at = _scale(n, out, align_corners), np.arange(out, dtype=F32)
    return (at + F32(0.5)) * scale - F32(0.5) if half_pixel else at * scale


def nearest(n: int, out: int, align_corners: bool, half_pixel: bool) -> Taps:
    scale, at = _scale(n, out, align_corners), np.arange(out, dtype=F32)
    at = (at + F32(0.5)) * scale if half_pixel else at * scale
    at = np.floor(at + F32(0.5)) if align_corners else np.floor(at)
    return np.clip(at.astype(np.int64), 0, n - 1)[:, None], np.ones((out, 1), F32)


def linear(n: int, out: int, align_corners: bool, half_pixel: bool) -> Taps:
    at = _centres(n, out, align_corners, half_pixel)
    low = np.floor(at)
    rest = (at - low).astype(F32)
    source = np.stack([np.maximum(low, 0), np.minimum(np.ceil(at), n - 1)], 1).astype(np.int64)
    return source, np.stack([1 - rest, rest], 1)


_TABLE = 1024


def cubic(n: int, out: int, align_corners: bool, half_pixel: bool) -> Taps:
    """Weights come from a table, of Keys's kernel with -1/2 (half pixels) or -3/4."""
    a = -0.5 if half_pixel else -0.75
    x = np.arange(_TABLE + 1) / _TABLE
    inner = (((a + 2) * x - (a + 3)) * x * x + 1).astype(F32)
    x = x + 1
    outer = (((a * x - 5 * a) * x + 8 * a) * x - 4 * a).astype(F32)
    at = _centres(n, out, align_corners, half_pixel)
    low = np.floor(at)
    offset = np.round((at - low) * _TABLE).astype(np.int64)
    weights = np.stack([outer[offset], inner[offset], inner[_TABLE - offset], outer[_TABLE - offset]], 1)
    source = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    clamped = np.clip(source, 0, n - 1)
    if half_pixel:
        weights = np.where(clamped == source, weights, F32(0))
        weights = weights * (F32(1) / weights.sum(1, keepdims=True))
    return clamped, weights.astype(F32)


def area(n: int, out: int, align_corners: bool) -> Taps:
    scale, at = _scale(n, out, align_corners), np.arange(out, dtype=F32)
    first, last = at * scale, (at + 1) * scale
    start, end = np.floor(first).astype(np.int64), np.ceil(last).astype(np.int64)
    source = start[:, None] + np.arange(max(int((end - start).max(initial=1)), 1))
    covered = np.minimum(source + 1, last[:, None]) - np.maximum(source, first[:, None])
    weights = np.where(source < end[:, None], covered, 0) / scale
    return np.clip(source, 0, n - 1), weights.astype(F32)


def _sinc_window(radius: float) -> Callable[[np.ndarray], np.ndarray]:
    def weight(x: np.ndarray) -> np.ndarray:
        return np.where(x > radius, 0, np.sinc(x) * np.sinc(x / radius))

    return weight


def _mitchell(x: np.ndarray) -> np.ndarray:
    near = ((7 * x / 6 - 2) * x) * x + 8 / 9
    far = ((-7 * x / 18 + 2) * x - 10 / 3) * x + 16 / 9
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _keys(x: np.ndarray) -> np.ndarray:
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


KERNELS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    **{f"lanczos{r}": (float(r), _sinc_window(r)) for r in (1, 3, 5)},
    "gaussian": (1.5, lambda x: np.where(x >= 1.5, 0, np.exp(-x * x / 0.5))),
    "box": (0.5, lambda x: np.where(x < 0.5, 1.0, np.where(x == 0.5, 0.5, 0.0))),
    "triangle": (1.0, lambda x: np.maximum(1 - x, 0)),
    "keyscubic": (2.0, _keys),
    "mitchellcubic": (2.0, _mitchell),
}


def spans(n: int, out: int, scale: float, translation: float, kind: str, antialias: bool) -> Taps:
    """Return the taps of a kernel around the position in the image that corresponds to each pixel of the result."""
    radius, kernel = KERNELS[kind]
    inverse = F32(1) / F32(scale)
    wide = max(inverse, F32(1)) if antialias else F32(1)
    at = (np.arange(out, dtype=F32) + F32(0.5)) * inverse - inverse * F32(translation)
    first = np.clip(np.ceil(at - F32(radius) * wide - F32(0.5)), 0, n - 1).astype(np.int64)
    last = np.clip(np.floor(at + F32(radius) * wide - F32(0.5)), 0, n - 1).astype(np.int64) + 1
    source = first[:, None] + np.arange(max(int((last - first).max(initial=1)), 1))
    weights = kernel(np.abs(source + 0.5 - at[:, None]) / wide)
    is_used = (source < last[:, None]) & (at[:, None] >= 0) & (at[:, None] <= n)
    weights = np.where(is_used, weights, 0)
    total = weights.sum(1, keepdims=True)
    solid = np.abs(total) >= 1000 * np.finfo(F32).tiny
    return np.clip(source, 0, n - 1), np.where(solid, weights / np.where(solid, total, 1), 0).astype(F32)


def read(xp: Backend, x: Array, axis: int, taps: Taps) -> Array:
    """Return the weighted sums of places along an axis."""
    total: Any = None
    shape = tuple(-1 if a == axis else 1 for a in range(xp.ndim(x)))
    for source, weights in zip(taps[0].T, taps[1].T, strict=True):
        part = xp.take(x, xp.asarray(np.ascontiguousarray(source)), axis)
        if (weights != 1).any():
            column = xp.asarray(np.ascontiguousarray(weights).reshape(shape).astype(xp.dtype_of(x)))
            # a weight of 0 suppresses infinity and NaN
            part = xp.where(xp.not_equal(column, 0), xp.multiply(part, column), xp.zeros_like(part))
        total = part if total is None else xp.add(total, part)
    return total


def scatter_taps(xp: Backend, d: Array, axis: int, taps: Taps, n: int) -> Array:
    """Compute the transpose of `read`."""
    d = xp.moveaxis(d, axis, 0)
    total = xp.zeros((n, *xp.shape(d)[1:]), xp.dtype_of(d))
    for source, weights in zip(taps[0].T, taps[1].T, strict=True):
        column = weights.reshape((-1, *[1] * (xp.ndim(d) - 1))).astype(xp.dtype_of(d))
        part = xp.multiply(d, xp.asarray(column)) if (weights != 1).any() else d
        total = xp.scatter(total, (xp.asarray(np.ascontiguousarray(source)),), part, mode="add")
    return xp.moveaxis(total, 0, axis)


def _resized(xp: Backend, x: Array, taps: Sequence[Taps], dtype: np.dtype = dtypes.float32) -> Array:
    x = xp.astype(x, dtype)
    for axis, axis_taps in zip((2, 1), taps[::-1], strict=True):
        x = read(xp, x, axis, axis_taps)
    return x


def _returned(xp: Backend, d: Array, taps: Sequence[Taps], shape: Sequence[int], dtype: np.dtype) -> Array:
    d = xp.astype(d, dtype if dtype.itemsize > 4 else dtypes.float32)
    for axis, axis_taps, n in zip((1, 2), taps, shape, strict=True):
        d = scatter_taps(xp, d, axis, axis_taps, n)
    return xp.astype(d, dtype)


def _returned_in_double(xp: Backend, d: Array, taps: Sequence[Taps], shape: Sequence[int]) -> Array:
    """Return the derivative in the image, summing products of float32 in float64: for the linear kernel alone."""
    parts = []
    for pair in itertools.product(*(zip(source.T, weights.T, strict=True) for source, weights in taps)):
        part = d
        for axis, (_, weights) in zip((1, 2), pair, strict=True):
            column = weights.reshape([-1 if a == axis else 1 for a in range(4)])
            part = xp.multiply(part, xp.asarray(np.ascontiguousarray(column)))
        part = xp.astype(part, dtypes.float64)
        for axis, (source, weights), n in zip((1, 2), pair, shape, strict=True):
            part = scatter_taps(xp, part, axis, (source[:, None], np.ones_like(weights)[:, None]), n)
        parts.append(part)
    return functools.reduce(xp.add, parts)


_LINEAR = {"ResizeBilinear": linear, "ResizeBicubic": cubic}


def _resizes(kind: Callable[..., Taps]) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def forward(
        xp: Backend, x: Array, size: np.ndarray, *, align_corners: bool = False, half_pixel_centers: bool = False
    ) -> Array:
        taps = [
            kind(n, o, align_corners, half_pixel_centers) for n, o in zip(xp.shape(x)[1:3], ints(size), strict=True)
        ]
        wide = dtypes.float64 if xp.dtype_of(x) == dtypes.float64 and kind is linear else dtypes.float32
        return xp.astype(_resized(xp, x, taps, wide), dtypes.float32)

    def backward(
        xp: Backend, d: Array, x: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
    ) -> Array:
        extents = xp.shape(x)[1:3]
        taps = [kind(n, o, align_corners, half_pixel_centers) for n, o in zip(extents, xp.shape(d)[1:3], strict=True)]
        if kind is linear and xp.dtype_of(x) == dtypes.float64:
            return _returned_in_double(xp, d, taps, extents)
        return _returned(xp, d, taps, extents, xp.dtype_of(x))

    return forward, backward


for _name, _kind in _LINEAR.items():
    _forward, _backward = _resizes(_kind)
    rule(_name, known=("size",))(_forward)
    rule(f"{_name}Grad")(_backward)


@rule("ResizeNearestNeighbor", known=("size",))
def resize_nearest(
    xp: Backend, x: Array, size: np.ndarray, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    for axis, out in zip((1, 2), ints(size), strict=True):
        x = read(xp, x, axis, nearest(xp.shape(x)[axis], out, align_corners, half_pixel_centers))
    return x


@rule("ResizeNearestNeighborGrad", known=("size",))
def resize_nearest_grad(
    xp: Backend, d: Array, size: np.ndarray, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    for axis, n in zip((1, 2), ints(size), strict=True):
        d = scatter_taps(xp, d, axis, nearest(n, xp.shape(d)[axis], align_corners, half_pixel_centers), n)
    return d


@rule("ResizeArea", known=("size",))
def resize_area(xp: Backend, x: Array, size: np.ndarray, *, align_corners: bool = False) -> Array:
    return _resized(xp, x, [area(n, o, align_corners) for n, o in zip(xp.shape(x)[1:3], ints(size), strict=True)])


def _spans(
    extents: Sequence[int], size: Sequence[int], scale: np.ndarray, translation: np.ndarray, kind: str, antialias: bool
) -> list[Taps]:
    rows = zip(extents, size, scale.tolist(), translation.tolist(), strict=True)
    return [spans(n, o, s, t, kind, antialias) for n, o, s, t in rows]


@rule("ScaleAndTranslate", known=("size", "scale", "translation"))
def scale_and_translate(
    xp: Backend, x: Array, size: np.ndarray, scale: np.ndarray, translation: np.ndarray, *,
    kernel_type: str = "lanczos3", antialias: bool = True,
) -> Array:  # fmt: skip
    taps_by_axis = _spans(xp.shape(x)[1:3], ints(size), scale, translation, kernel_type, antialias)
    return _resized(xp, x, taps_by_axis)


@rule("ScaleAndTranslateGrad", known=("scale", "translation"))
def scale_and_translate_grad(
    xp: Backend, d: Array, x: Array, scale: np.ndarray, translation: np.ndarray, *,
    kernel_type: str = "lanczos3", antialias: bool = True,
) -> Array:  # fmt: skip
    extents = xp.shape(x)[1:3]
    taps_by_axis = _spans(extents, xp.shape(d)[1:3], scale, translation, kernel_type, antialias)
    return _returned(xp, d, taps_by_axis, extents, xp.dtype_of(d))


@rule("FusedPadConv2D", known=("paddings",))
def fused_pad_convolution(
    xp: Backend, x: Array, paddings: np.ndarray, w: Array, *, mode: str, strides: tuple[int, ...], padding: str
) -> Array:
    from tensorgraft.frontends.tensorflow.rules.arrays.shape import mirror_pad
    from tensorgraft.frontends.tensorflow.rules.neural.convolution import convolution

    return convolution(xp, mirror_pad(xp, x, paddings, mode=mode), w, strides=strides, padding=padding)


@rule("FusedResizeAndPadConv2D", known=("size", "paddings"))
def fused_resize_and_pad_convolution(
    xp: Backend, x: Array, size: np.ndarray, paddings: np.ndarray, w: Array, *, mode: str,
    strides: tuple[int, ...], padding: str, resize_align_corners: bool = False,
) -> Array:  # fmt: skip
    taps = [linear(n, o, resize_align_corners, False) for n, o in zip(xp.shape(x)[1:3], ints(size), strict=True)]
    x = _resized(xp, x, taps, xp.dtype_of(x))
    return fused_pad_convolution(xp, x, paddings, w, mode=mode, strides=strides, padding=padding)
