"""Crops of images by boxes, and which boxes to keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.hosted import on_host
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# ---- crops -----------------------------------------------------------------------------------------------------------


class CropAxis:
    """The positions of the pixels of crops along an axis of the images: (boxes, pixels)."""

    def __init__(self, xp: Backend, low: Array, high: Array, n: int, out: int) -> None:
        low, high = xp.expand_dims(low, -1), xp.expand_dims(high, -1)
        if out > 1:
            self.along = (np.arange(out, dtype=np.float32) / np.float32(out - 1))[None]
            step = xp.divide(xp.multiply(xp.subtract(high, low), n - 1), out - 1)
            along = xp.multiply(step, xp.asarray(np.arange(out, dtype=np.float32)[None]))
            self.at = xp.add(xp.multiply(low, n - 1), along)
        else:
            self.along = np.full((1, 1), 0.5, np.float32)
            self.at = xp.multiply(xp.add(low, high), 0.5 * (n - 1))
        self.inside = xp.logical_and(xp.greater_equal(self.at, 0), xp.less_equal(self.at, n - 1))
        held = xp.where(self.inside, self.at, xp.zeros_like(self.at))
        low_at = xp.floor(held)
        self.rest = xp.subtract(held, low_at)
        self.first = xp.astype(low_at, dtypes.int64)
        self.last = xp.astype(xp.ceil(held), dtypes.int64)
        away = xp.floor(xp.add(held, 0.5))
        self.nearest = xp.astype(away, dtypes.int64)


def _axes(xp: Backend, boxes: Array, extents: Any, crop: Any) -> tuple[CropAxis, CropAxis]:
    y0, x0, y1, x1 = xp.unstack(boxes, 1)
    return CropAxis(xp, y0, y1, extents[0], crop[0]), CropAxis(xp, x0, x1, extents[1], crop[1])


def _grid(xp: Backend, which: Array, rows: Array, columns: Array) -> tuple[Array, Array, Array]:
    lead = xp.reshape(xp.astype(which, dtypes.int64), (xp.shape(which)[0], 1, 1))
    return lead, xp.expand_dims(rows, 2), xp.expand_dims(columns, 1)


def _seen(xp: Backend, y: CropAxis, x: CropAxis) -> Array:
    return xp.expand_dims(xp.logical_and(xp.expand_dims(y.inside, 2), xp.expand_dims(x.inside, 1)), -1)


def _weight(xp: Backend, rest: Array, last: bool, axis: int) -> Array:
    share = rest if last else xp.subtract(1, rest)
    return xp.expand_dims(xp.expand_dims(share, axis), -1)


def _corners(xp: Backend, which: Array, y: CropAxis, x: CropAxis) -> Any:
    """Yield, for each corner, (positions, weight, whether it is the last row, the last column)."""
    for down in (False, True):
        for right in (False, True):
            places = _grid(xp, which, y.last if down else y.first, x.last if right else x.first)
            weight = xp.multiply(_weight(xp, y.rest, down, 2), _weight(xp, x.rest, right, 1))
            yield places, weight, down, right


@rule("CropAndResize", known=("crop",))
def crop_and_resize(
    xp: Backend, image: Array, boxes: Array, which: Array, crop: np.ndarray, *, method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Array:  # fmt: skip
    y, x = _axes(xp, boxes, xp.shape(image)[1:3], ints(crop))
    image = xp.astype(image, dtypes.float32)
    if method == "nearest":
        out = xp.gather(image, _grid(xp, which, y.nearest, x.nearest))
    else:
        parts = [xp.multiply(xp.gather(image, places), w) for places, w, _, _ in _corners(xp, which, y, x)]
        out = xp.add(xp.add(parts[0], parts[1]), xp.add(parts[2], parts[3]))
    return xp.where(_seen(xp, y, x), out, xp.full_like(out, extrapolation_value))


@rule("CropAndResizeGradImage", known=("size",))
def crop_and_resize_grad_image(
    xp: Backend, d: Array, boxes: Array, which: Array, size: np.ndarray, *, T: np.dtype, method: str = "bilinear"
) -> Array:
    shape = ints(size)
    y, x = _axes(xp, boxes, shape[1:3], xp.shape(d)[1:3])
    d = xp.where(_seen(xp, y, x), d, xp.zeros_like(d))
    wide = T if T.itemsize > 4 else dtypes.float32
    total = xp.zeros(shape, wide)
    if method == "nearest":
        total = xp.scatter(total, _grid(xp, which, y.nearest, x.nearest), xp.astype(d, wide), mode="add")
    else:
        for places, _, down, right in _corners(xp, which, y, x):
            part = xp.multiply(_weight(xp, x.rest, right, 1), xp.multiply(_weight(xp, y.rest, down, 2), d))
            total = xp.scatter(total, places, xp.astype(part, wide), mode="add")
    return xp.astype(total, T)


@rule("CropAndResizeGradBoxes")
def crop_and_resize_grad_boxes(
    xp: Backend, d: Array, image: Array, boxes: Array, which: Array, *, method: str = "bilinear"
) -> Array:
    extents, crop = xp.shape(image)[1:3], xp.shape(d)[1:3]
    y, x = _axes(xp, boxes, extents, crop)
    image = xp.astype(image, dtypes.float32)
    d = xp.where(_seen(xp, y, x), d, xp.zeros_like(d))
    by_y = by_x = xp.zeros(xp.shape(d), dtypes.float32)
    for places, _, down, right in _corners(xp, which, y, x):
        pixel = xp.multiply(xp.gather(image, places), d)
        vertical = xp.multiply(pixel, _weight(xp, x.rest, right, 1))
        by_y = xp.add(by_y, vertical) if down else xp.subtract(by_y, vertical)
        horizontal = xp.multiply(pixel, _weight(xp, y.rest, down, 2))
        by_x = xp.add(by_x, horizontal) if right else xp.subtract(by_x, horizontal)
    found = []
    for part, axis, n, over in ((by_y, y, extents[0], 1), (by_x, x, extents[1], 2)):
        column = axis.along.reshape((1, -1, 1, 1) if over == 1 else (1, 1, -1, 1))
        scaled = xp.multiply(part, n - 1)
        for share in (1 - column, column):
            found.append(xp.sum(xp.multiply(scaled, xp.asarray(share.astype(np.float32))), axis=(1, 2, 3)))
    return xp.stack([found[0], found[2], found[1], found[3]], axis=1)


# ---- which to keep ---------------------------------------------------------------------------------------------------


def _overlaps(boxes: np.ndarray) -> np.ndarray:
    """Intersection over union, of each with each."""
    boxes = boxes.astype(np.float32)
    low = np.minimum(boxes[:, :2], boxes[:, 2:])
    high = np.maximum(boxes[:, :2], boxes[:, 2:])
    areas = np.prod(high - low, axis=1)
    sides = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    common = np.prod(np.maximum(sides, 0), axis=2)
    union = areas[:, None] + areas - common
    empty = (areas[:, None] <= 0) | (areas <= 0)
    return np.where(empty, 0, common / np.where(empty, 1, union)).astype(np.float32)


def suppressed(
    overlaps: np.ndarray, scores: np.ndarray, most: int, limit: float, least: float, sigma: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """(boxes kept, their scores), greedily from the best; with `sigma` scores fall instead (Bodla et al., 2017)."""
    current = scores.astype(np.float32).copy()
    waiting = [i for i in range(len(current)) if current[i] > least]
    begun = dict.fromkeys(waiting, 0)  # up to which of the kept boxes a score counts
    kept: list[int] = []
    found: list[float] = []
    scale = -0.5 / sigma if sigma > 0 else 0.0
    while waiting and len(kept) < most:
        best = max(waiting, key=lambda i: (current[i], -i))
        waiting.remove(best)
        before, out = current[best], False
        for j in range(len(kept) - 1, begun[best] - 1, -1):
            shared = overlaps[best, kept[j]]
            if sigma <= 0 and shared > limit:
                out = True
                break
            if sigma > 0:
                weight = np.exp(np.float32(scale) * shared * shared) if shared <= limit else 0
                current[best] *= weight
                if shared >= limit:
                    out = True
                    break
                if current[best] <= least:
                    break
        begun[best] = len(kept)
        if out:
            continue
        if current[best] == before:
            kept.append(best)
            found.append(current[best])
        elif current[best] > least:
            waiting.append(best)
    return np.asarray(kept, np.int32), np.asarray(found, np.float32)


def _number(x: Any, otherwise: float) -> float:
    return otherwise if x is None else float(x)


@on_host("NonMaxSuppression")
def non_max_suppression(
    boxes: np.ndarray, scores: np.ndarray, most: np.ndarray, *, iou_threshold: float = 0.5
) -> np.ndarray:
    return suppressed(_overlaps(boxes), scores, int(most), iou_threshold, -np.inf)[0]


@on_host("NonMaxSuppressionV2", "NonMaxSuppressionV3")
def non_max_suppression_v3(
    boxes: np.ndarray, scores: np.ndarray, most: np.ndarray, limit: np.ndarray, least: Any = None
) -> np.ndarray:
    return suppressed(_overlaps(boxes), scores, int(most), float(limit), _number(least, -np.inf))[0]


@on_host("NonMaxSuppressionWithOverlaps")
def non_max_suppression_with_overlaps(
    overlaps: np.ndarray, scores: np.ndarray, most: np.ndarray, limit: np.ndarray, least: np.ndarray
) -> np.ndarray:
    return suppressed(overlaps, scores, int(most), float(limit), float(least))[0]


@on_host("NonMaxSuppressionV4")
def non_max_suppression_v4(
    boxes: np.ndarray, scores: np.ndarray, most: np.ndarray, limit: np.ndarray, least: np.ndarray, *,
    pad_to_max_output_size: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    kept, _ = suppressed(_overlaps(boxes), scores, int(most), float(limit), float(least))
    padded = np.pad(kept, (0, int(most) - kept.size)) if pad_to_max_output_size else kept
    return [padded, np.asarray(kept.size, np.int32)]


@on_host("NonMaxSuppressionV5")
def non_max_suppression_v5(
    boxes: np.ndarray, scores: np.ndarray, most: np.ndarray, limit: np.ndarray, least: np.ndarray, sigma: np.ndarray,
    *, pad_to_max_output_size: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    kept, found = suppressed(_overlaps(boxes), scores, int(most), float(limit), float(least), float(sigma))
    count = np.asarray(kept.size, np.int32)
    if pad_to_max_output_size:
        kept, found = (np.pad(x, (0, int(most) - x.size)) for x in (kept, found))
    return [kept, found.astype(scores.dtype), count]


@on_host("CombinedNonMaxSuppression")
def combined_non_max_suppression(
    boxes: np.ndarray, scores: np.ndarray, per_class: np.ndarray, total: np.ndarray, limit: np.ndarray,
    least: np.ndarray, *, pad_per_class: bool = False, clip_boxes: bool = True,
) -> list[np.ndarray]:  # fmt: skip
    """Select boxes in each class by itself, then the best of all."""
    classes, most, each = scores.shape[2], int(total), int(per_class)
    if pad_per_class:
        most = min(most, each * classes)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = []
    for some, points in zip(boxes, scores, strict=True):
        found = []
        for c in range(classes):
            own = some[:, c if some.shape[1] > 1 else 0]
            kept, values = suppressed(_overlaps(own), points[:, c], each, float(limit), float(least))
            found += [(-v, c, k, own[i]) for k, (v, i) in enumerate(zip(values, kept, strict=True))]
        best = sorted(found, key=lambda row: row[:3])[:most]
        out = np.zeros((most, 4), np.float32)
        values, labels = np.zeros(most, np.float32), np.zeros(most, np.float32)
        for k, (v, c, _, box) in enumerate(best):
            out[k], values[k], labels[k] = (np.clip(box, 0, 1) if clip_boxes else box), -v, c
        rows.append((out, values, labels, len(best)))
    return [*(np.stack([r[i] for r in rows]) for i in range(3)), np.asarray([r[3] for r in rows], np.int32)]
