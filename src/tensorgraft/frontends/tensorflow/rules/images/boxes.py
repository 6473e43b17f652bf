"""Crops of images by boxes, and which boxes to keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

# ---- crops -----------------------------------------------------------------------------------------------------------


class CropAxis:
    """The positions of the pixels of crops along an axis of the images: (boxes, pixels)."""

    def __init__(self, xp: Backend, low: Array, high: Array, n: int, out: int) -> None:
        low, high = xp.expand_dims(low, -1), xp.expand_dims(high, -1)
        if out > 1:
            self.along = (np.arange(out, dtype=np.float32) / np.float32(out - 1))[None]
            step = xp.divide(xp.multiply(xp.subtract(high, low), n - 1), out - 1)
            offsets = xp.multiply(step, xp.asarray(np.arange(out, dtype=np.float32)[None]))
            self.at = xp.add(xp.multiply(low, n - 1), offsets)
        else:
            self.along = np.full((1, 1), 0.5, np.float32)
            self.at = xp.multiply(xp.add(low, high), 0.5 * (n - 1))
        self.inside = xp.logical_and(xp.greater_equal(self.at, 0), xp.less_equal(self.at, n - 1))
        clamped = xp.where(self.inside, self.at, xp.zeros_like(self.at))
        low_at = xp.floor(clamped)
        self.rest = xp.subtract(clamped, low_at)
        self.first = xp.astype(low_at, dtypes.int64)
        self.last = xp.astype(xp.ceil(clamped), dtypes.int64)
        rounded_half_up = xp.floor(xp.add(clamped, 0.5))
        self.nearest = xp.astype(rounded_half_up, dtypes.int64)


def _axes(xp: Any, boxes: Array, extents: Any, crop: Any) -> tuple[CropAxis, CropAxis]:
    y0, x0, y1, x1 = xp.unstack(boxes, 1)
    return CropAxis(xp, y0, y1, extents[0], crop[0]), CropAxis(xp, x0, x1, extents[1], crop[1])


def _grid(xp: Any, box_index: Array, rows: Array, columns: Array) -> tuple[Array, Array, Array]:
    batch_index = xp.reshape(xp.astype(box_index, dtypes.int64), (xp.shape(box_index)[0], 1, 1))
    return batch_index, xp.expand_dims(rows, 2), xp.expand_dims(columns, 1)


def _in_image(xp: Any, y: CropAxis, x: CropAxis) -> Array:
    return xp.expand_dims(xp.logical_and(xp.expand_dims(y.inside, 2), xp.expand_dims(x.inside, 1)), -1)


def _weight(xp: Any, rest: Array, last: bool, axis: int) -> Array:
    share = rest if last else xp.subtract(1, rest)
    return xp.expand_dims(xp.expand_dims(share, axis), -1)


def _corners(xp: Any, box_index: Array, y: CropAxis, x: CropAxis) -> Any:
    """Yield, for each corner, (positions, weight, whether it is the last row, the last column)."""
    for down in (False, True):
        for right in (False, True):
            indices = _grid(xp, box_index, y.last if down else y.first, x.last if right else x.first)
            weight = xp.multiply(_weight(xp, y.rest, down, 2), _weight(xp, x.rest, right, 1))
            yield indices, weight, down, right


@rule("CropAndResize", known=("crop",))
@with_operators
def crop_and_resize(
    xp: ValueBackend, image: Value, boxes: Value, box_index: Value, crop: np.ndarray, *, method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Value:  # fmt: skip
    y, x = _axes(xp, boxes, image.shape[1:3], ints(crop))
    image = xp.astype(image, dtypes.float32)
    if method == "nearest":
        out = xp.gather(image, _grid(xp, box_index, y.nearest, x.nearest))
    else:
        parts = [xp.gather(image, indices) * w for indices, w, _, _ in _corners(xp, box_index, y, x)]
        out = parts[0] + parts[1] + (parts[2] + parts[3])
    return xp.where(_in_image(xp, y, x), out, xp.full_like(out, extrapolation_value))


@rule("CropAndResizeGradImage", known=("size",))
@with_operators
def crop_and_resize_grad_image(
    xp: ValueBackend,
    d: Value,
    boxes: Value,
    box_index: Value,
    size: np.ndarray,
    *,
    T: np.dtype,
    method: str = "bilinear",
) -> Value:
    shape = ints(size)
    y, x = _axes(xp, boxes, shape[1:3], d.shape[1:3])
    d = xp.where(_in_image(xp, y, x), d, xp.zeros_like(d))
    wide = T if T.itemsize > 4 else dtypes.float32
    total = xp.zeros(shape, wide)
    if method == "nearest":
        total = xp.scatter(total, _grid(xp, box_index, y.nearest, x.nearest), xp.astype(d, wide), mode="add")
    else:
        for indices, _, down, right in _corners(xp, box_index, y, x):
            part = _weight(xp, x.rest, right, 1) * (_weight(xp, y.rest, down, 2) * d)
            total = xp.scatter(total, indices, xp.astype(part, wide), mode="add")
    return xp.astype(total, T)


@rule("CropAndResizeGradBoxes")
def crop_and_resize_grad_boxes(
    xp: Backend, d: Array, image: Array, boxes: Array, box_index: Array, *, method: str = "bilinear"
) -> Array:
    extents, crop = xp.shape(image)[1:3], xp.shape(d)[1:3]
    y, x = _axes(xp, boxes, extents, crop)
    image = xp.astype(image, dtypes.float32)
    d = xp.where(_in_image(xp, y, x), d, xp.zeros_like(d))
    by_y = by_x = xp.zeros(xp.shape(d), dtypes.float32)
    for indices, _, down, right in _corners(xp, box_index, y, x):
        pixel = xp.multiply(xp.gather(image, indices), d)
        vertical = xp.multiply(pixel, _weight(xp, x.rest, right, 1))
        by_y = xp.add(by_y, vertical) if down else xp.subtract(by_y, vertical)
        horizontal = xp.multiply(pixel, _weight(xp, y.rest, down, 2))
        by_x = xp.add(by_x, horizontal) if right else xp.subtract(by_x, horizontal)
    box_gradients = []
    for part, axis, n, over in ((by_y, y, extents[0], 1), (by_x, x, extents[1], 2)):
        column = axis.along.reshape((1, -1, 1, 1) if over == 1 else (1, 1, -1, 1))
        scaled = xp.multiply(part, n - 1)
        for share in (1 - column, column):
            box_gradients.append(xp.sum(xp.multiply(scaled, xp.asarray(share.astype(np.float32))), axis=(1, 2, 3)))
    return xp.stack([box_gradients[0], box_gradients[2], box_gradients[1], box_gradients[3]], axis=1)
