"""Images made larger and smaller: products with one matrix for each axis, whose transposes are the derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any
Weights = Callable[[int, int, bool, bool], np.ndarray]  # (extent, new extent, corners, centres) -> (new, old)
_TABLE = 1024  # steps between two pixels for which TensorFlow's cubic kernel keeps its weights


def _positions(n: int, out: int, corners: bool, centres: bool) -> np.ndarray:
    """Where the new pixels lie among the old ones."""
    scale = np.float32((n - 1) / (out - 1) if corners and out > 1 else n / out)
    at = np.arange(out, dtype=np.float32)
    return (at + np.float32(0.5)) * scale - np.float32(0.5) if centres else at * scale


def _linear(n: int, out: int, corners: bool, centres: bool) -> np.ndarray:
    at = _positions(n, out, corners, centres)
    weights = np.zeros((out, n), np.float32)
    low = np.floor(at)
    part = at - low
    rows = np.arange(out)
    np.add.at(weights, (rows, np.maximum(low, 0).astype(int)), 1 - part)
    np.add.at(weights, (rows, np.minimum(np.ceil(at), n - 1).astype(int)), part)
    return weights


def _cubic(n: int, out: int, corners: bool, centres: bool) -> np.ndarray:
    a = -0.5 if centres else -0.75
    at = _positions(n, out, corners, centres)
    low = np.floor(at).astype(int)
    step = np.rint((at - low) * _TABLE)
    weights = np.zeros((out, n), np.float32)
    for i, offset in enumerate((-1, 0, 1, 2)):
        x = np.abs(step / _TABLE - offset)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        w = near if i in (1, 2) else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        place = low + offset
        if centres:
            w = np.where((place < 0) | (place >= n), 0, w)
        np.add.at(weights, (np.arange(out), np.clip(place, 0, n - 1)), w.astype(np.float32))
    if centres:
        weights /= weights.sum(1, keepdims=True)
    return weights


def _nearest(n: int, out: int, corners: bool, centres: bool) -> np.ndarray:
    """The number of the old pixel."""
    at = _positions(n, out, corners, False)
    if centres:
        at = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * np.float32(n / out)
    return np.minimum(np.floor(at + 0.5) if corners else np.floor(at), n - 1).astype(int)


def _product(xp: Backend, x: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    """(batch, h, w, c) by (new h, h) and (new w, w)."""
    dtype = xp.dtype_of(x)
    rows, columns = (xp.asarray(m.astype(dtype)) for m in (rows, columns))
    x = xp.dot_general(x, rows, ((1,), (1,)))  # (batch, w, c, new h)
    x = xp.dot_general(x, columns, ((1,), (1,)))  # (batch, c, new h, new w)
    return xp.permute_dims(x, (0, 2, 3, 1))


def _resize(weights: Weights) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def forward(
        xp: Backend,
        x: Array,
        size: np.ndarray,
        *,
        align_corners: bool = False,
        half_pixel_centers: bool = False,
    ) -> Array:
        _, h, w, _ = xp.shape(x)
        new = ints(size)
        how = (align_corners, half_pixel_centers)
        wide = xp.astype(x, dtypes.float32)
        return _product(xp, wide, weights(h, new[0], *how), weights(w, new[1], *how))

    def backward(
        xp: Backend, d: Array, x: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
    ) -> Array:
        _, h, w, _ = xp.shape(x)
        new = xp.shape(d)[1:3]
        how = (align_corners, half_pixel_centers)
        rows, columns = weights(h, new[0], *how), weights(w, new[1], *how)
        return xp.astype(_product(xp, d, rows.T, columns.T), xp.dtype_of(x))

    return forward, backward


for _name, _weights in (("Bilinear", _linear), ("Bicubic", _cubic)):
    _forward, _backward = _resize(_weights)
    rule(f"Resize{_name}", known=("size",))(_forward)
    rule(f"Resize{_name}Grad")(_backward)


@rule("ResizeNearestNeighbor", known=("size",))
def resize_nearest(
    xp: Backend, x: Array, size: np.ndarray, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    for axis, new in zip((1, 2), ints(size), strict=True):
        at = _nearest(xp.shape(x)[axis], new, align_corners, half_pixel_centers)
        x = xp.take(x, xp.asarray(at.astype(np.int64)), axis)
    return x


@rule("ResizeNearestNeighborGrad", known=("size",))
def resize_nearest_grad(
    xp: Backend, d: Array, size: np.ndarray, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    matrices = []
    for n, new in zip(ints(size), xp.shape(d)[1:3], strict=True):
        one = np.zeros((n, new), np.float32)
        one[_nearest(n, new, align_corners, half_pixel_centers), np.arange(new)] = 1
        matrices.append(one)
    return _product(xp, d, matrices[0], matrices[1])
