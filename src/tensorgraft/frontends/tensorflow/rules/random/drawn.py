"""Random operations that draw one number after the other, on the host: crops, regions of fractional pooling, truncated
normal numbers, positions of a permutation that is not stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import FailedCheckError
from tensorgraft.frontends.tensorflow.rules.flow.hosted import by_host
from tensorgraft.frontends.tensorflow.rules.random import philox
from tensorgraft.frontends.tensorflow.rules.random.seeded import reserve_numbers
from tensorgraft.frontends.tensorflow.rules.random.stream import WordStream
from tensorgraft.frontends.tensorflow.values import VariableCell, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

F32 = np.float32
Box = tuple[int, int, int, int]  # left, top, right, bottom


# ---- crops -----------------------------------------------------------------------------------------------------------


def _rounded(x: Any) -> int:
    return int(np.rint(F32(x)))


def _crop(stream: WordStream, width: int, height: int, areas: Sequence[float], ratio: np.float32) -> Box | None:
    """Return a crop of this aspect ratio whose area is between two fractions of the image, or None if there is none."""
    least, most = (F32(F32(F32(a) * F32(width)) * F32(height)) for a in areas)
    if most <= 0 or ratio <= 0 or width <= 0 or height <= 0 or least > most:
        return None
    h, tallest = (_rounded(np.sqrt(a / ratio)) for a in (least, most))
    if _rounded(F32(tallest) * ratio) > width:
        tallest = int((width + 0.5 - float(F32(1e-7))) / float(ratio))
        if _rounded(F32(tallest) * ratio) > width:
            tallest -= 1
    tallest = min(tallest, height)
    h = min(h, tallest)
    if h < tallest:
        h += stream.below(tallest - h + 1)
    w = _rounded(F32(h) * ratio)
    if F32(w * h) < least:
        h += 1
        w = _rounded(F32(h) * ratio)
    if F32(w * h) > most:
        h -= 1
        w = _rounded(F32(h) * ratio)
    if not least <= F32(w * h) <= most or w > width or h > height or w <= 0 or h <= 0:
        return None
    top = stream.below(height - h) if h < height else 0
    left = stream.below(width - w) if w < width else 0
    return left, top, left + w, top + h


def _area(box: Box) -> np.float32:
    return F32((box[2] - box[0]) * (box[3] - box[1]))


def _covers(crop: Box, boxes: Sequence[Box], share: np.float32) -> bool:
    if _area(crop) < 1:
        return False
    for box in boxes:
        low = max(crop[0], box[0]), max(crop[1], box[1])
        high = min(crop[2], box[2]), min(crop[3], box[3])
        shared = F32(0) if low[0] > high[0] or low[1] > high[1] else _area((*low, *high))
        if _area(box) >= 1 and shared / _area(box) >= share:
            return True
    return False


def _distorted(
    xp: Backend, node: GraphNode, size: Any, boxes: Any, share: Any, key: Array, counter: Array
) -> list[Array]:
    attributes = node.attributes
    ratios = [F32(r) for r in attributes.get("aspect_ratio_range", (0.75, 1.33))]
    areas = attributes.get("area_range", (0.05, 1.0))
    dtype = np.dtype(size.dtype)

    def on_arrays(
        size: np.ndarray, boxes: np.ndarray, share: np.ndarray, key: np.ndarray, counter: np.ndarray
    ) -> list[np.ndarray]:
        height, width = int(size[0]), int(size[1])
        scale = np.asarray([height, width, height, width], F32)
        object_boxes = [(int(b[1]), int(b[0]), int(b[3]), int(b[2])) for b in boxes.reshape(-1, 4) * scale]
        if not object_boxes and not attributes.get("use_image_if_no_bounding_boxes", False):
            raise FailedCheckError(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to not"
                " provide any bounding boxes."
            )
        full_image = (0, 0, width, height)
        stream, best_crop = WordStream(key, counter), full_image
        for _ in range(attributes.get("max_attempts", 100)):
            ratio = F32(stream.number() * (ratios[1] - ratios[0]) + ratios[0])
            crop = _crop(stream, width, height, areas, ratio)
            if crop is not None and _covers(crop, object_boxes or [full_image], F32(share)):
                best_crop = crop
                break
        left, top, right, bottom = best_crop
        relative = np.asarray([top, left, bottom, right], F32) / scale
        begin, extent = [top, left, 0], [bottom - top, right - left, -1]
        return [np.asarray(begin, dtype), np.asarray(extent).astype(dtype), relative.reshape(1, 1, 4)]

    specs = [ShapeDtype((3,), dtype), ShapeDtype((3,), dtype), ShapeDtype((1, 1, 4), dtypes.float32)]
    return by_host(xp, node, on_arrays, (size, boxes, share, key, counter), specs)


@rule("SampleDistortedBoundingBoxV2", either=(0, 1, 2), writes=True)
def distorted_box(
    xp: Backend, size: Any, boxes: Any, share: Any, cell: VariableCell, *, max_attempts: int = 100, node: GraphNode
) -> list[Array]:
    return _distorted(xp, node, size, boxes, share, *reserve_numbers(xp, cell, max_attempts))


@rule("SampleDistortedBoundingBox", either=(0, 1), writes=True)
def distorted_box_v1(
    xp: Backend, size: Any, boxes: Any, cell: VariableCell, *, min_object_covered: float = 0.1,
    max_attempts: int = 100, node: GraphNode,
) -> list[Array]:  # fmt: skip
    return _distorted(xp, node, size, boxes, F32(min_object_covered), *reserve_numbers(xp, cell, max_attempts))


@rule("StatelessSampleDistortedBoundingBox", either=(0, 1, 2), folds=False)
def stateless_distorted_box(
    xp: Backend, size: Any, boxes: Any, share: Any, seed: Array, *, node: GraphNode
) -> list[Array]:
    return _distorted(xp, node, size, boxes, share, *philox.key_and_counter(xp, seed))


# ---- fractional pooling ----------------------------------------------------------------------------------------------


def _regions(n: int, count: int, pseudo: bool, stream: WordStream) -> np.ndarray:
    """Return the starts of the regions of an axis, and the end of the last (Graham, "Fractional max-pooling", 2014)."""
    k = n // count
    if pseudo:
        alpha = n / count
        most = min((k + 2) / alpha - 1, (n + 1 - k) / alpha - (count - 1))
        u = stream.double() * most
        return np.asarray([0, *(math.ceil(alpha * (i + u)) - 1 for i in range(1, count)), n], np.int64)
    sizes = [k + (i < n % count) for i in range(count)]
    for i in range(count - 1):
        other = i + stream.word() % (count - i)
        sizes[i], sizes[other] = sizes[other], sizes[i]
    return np.cumsum([0, *sizes])


def _pooled(name: str, reduce: Callable[[np.ndarray], np.ndarray]) -> None:
    @rule(name, either=(0,), writes=True)
    def pool(
        xp: Backend, x: Any, cell: VariableCell, *, pooling_ratio: tuple[float, ...], pseudo_random: bool = False,
        overlapping: bool = False, deterministic: bool = False, node: GraphNode,
    ) -> list[Array]:  # fmt: skip
        """Return (the pooled array, the starts of rows, the starts of columns)."""
        n, height, width, depth = x.shape
        counts = [math.floor(m / F32(r)) for m, r in zip((height, width), pooling_ratio[1:3], strict=True)]
        state = cell.value
        starts = [reserve_numbers(xp, cell, 1 if pseudo_random else -(-count // 4)) for count in counts]
        if deterministic:
            cell.value = state  # the first regions are those of every call

        def on_arrays(x: np.ndarray, *keys: np.ndarray) -> list[np.ndarray]:
            rows, columns = (
                _regions(m, count, pseudo_random, WordStream(key, counter))
                for m, count, key, counter in zip((height, width), counts, keys[::2], keys[1::2], strict=True)
            )
            overlap = int(overlapping)
            cells = [
                reduce(x[:, a : b + overlap, c : d + overlap].reshape(n, -1, depth))
                for a, b in itertools.pairwise(rows)
                for c, d in itertools.pairwise(columns)
            ]
            return [np.stack(cells, 1).reshape(n, *counts, depth), rows, columns]

        dtype = np.dtype(node.dtypes[0])
        specs = [ShapeDtype((n, *counts, depth), dtype), *(ShapeDtype((c + 1,), dtypes.int64) for c in counts)]
        return by_host(xp, node, on_arrays, (x, *(a for start in starts for a in start)), specs)


def _mean(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x.mean(1)
    return np.trunc(x.sum(1, dtype=np.float64) / x.shape[1]).astype(x.dtype)


_pooled("FractionalMaxPool", lambda x: x.max(1))
_pooled("FractionalAvgPool", _mean)


# ---- normal numbers between bounds -----------------------------------------------------------------------------------

_INSIDE = 1.3  # deviations of the mean from a bound, from which on normal numbers are drawn and thrown away
_TRIES = 1000


def _bounded(
    stream: WordStream, count: int, dtype: np.dtype, mean: Any, deviation: Any, low: Any, high: Any
) -> np.ndarray:
    """Draw truncated normal numbers by one of three methods of rejection (Robert, 1995), chosen as TensorFlow does."""
    if not (deviation > 0 and low < high and (np.isfinite(low) or np.isfinite(high))):
        raise FailedCheckError("Invalid parameters")
    if (np.isinf(low) and low < 0) or high < mean:
        low, high, deviation = high, low, -deviation
    scalar = dtype.type
    low, high = scalar((low - mean) / deviation), scalar((high - mean) / deviation)
    root = scalar(np.sqrt(low * low + scalar(4)))
    cutoff = scalar(2) * scalar(np.exp(scalar(0.5) + (low * (low - root)) / scalar(4))) / (low + root)
    span = scalar(high - low)
    alpha = scalar((low + root) / scalar(2))
    accepted: list[Any] = []
    while len(accepted) < count:
        if (low < -_INSIDE and high >= 0) or (high > _INSIDE and low <= 0):
            numbers = stream.normals(dtype)
            accepted += [z for z in numbers if low <= z <= high]
        elif span < cutoff:
            z = (stream.uniforms(dtype) * span + low).astype(dtype)
            g = ((scalar(0) if low < 0 else low * low) - z * z) / scalar(2)
            accepted += [v for v, keep in zip(z, stream.uniforms(dtype) <= np.exp(g), strict=True) if keep]
        else:
            numbers = stream.uniforms(dtype)
            z = -np.log(numbers[::2]) / alpha + low
            x = alpha - z if low < alpha else np.full_like(z, low - alpha)
            keep = (numbers[1::2] <= np.exp(-x * x / scalar(2))) & (z < high)
            accepted += [v for v, k in zip(z, keep, strict=True) if k]
    return (np.asarray(accepted[:count], dtype) * deviation + mean).astype(dtype)


def _parameters(parameters: Sequence[np.ndarray], shape: tuple[int, ...]) -> list[np.ndarray]:
    return [np.broadcast_to(p, shape).ravel() for p in parameters]


@rule("ParameterizedTruncatedNormal", known=("shape",), either=(1, 2, 3, 4), writes=True)
def truncated(
    xp: Backend, shape: np.ndarray, mean: Any, deviation: Any, low: Any, high: Any, cell: VariableCell, *,
    node: GraphNode,
) -> Array:  # fmt: skip
    """Draw truncated normal numbers as one thread of TensorFlow's does. A parameter is one for all, or for each row."""
    extents, dtype = ints(shape), np.dtype(node.dtypes[0])
    rows, row_size = extents[0], math.prod(extents[1:])
    if all(math.prod(x.shape) == 1 for x in (mean, deviation)) and not any(x.ndim for x in (low, high)):
        rows, row_size = -(-(rows * row_size) // 100), 100
    total = math.prod(extents)

    def on_arrays(*operands: np.ndarray) -> list[np.ndarray]:
        *parameters, key, counter = operands
        stream, blocks = WordStream(key, counter), []
        for b, row in enumerate(zip(*_parameters([p.reshape(-1) for p in parameters], (rows,)), strict=True)):
            blocks.append(_bounded(stream, min(row_size, total - b * row_size), dtype, *row))
        return [np.concatenate(blocks).reshape(extents)]

    key, counter = reserve_numbers(xp, cell, rows * 2 * _TRIES * (row_size + 3) // 4)
    operands = (mean, deviation, low, high, key, counter)
    return by_host(xp, node, on_arrays, operands, [ShapeDtype(extents, dtype)])[0]


@rule("StatelessParameterizedTruncatedNormal", known=("shape",), either=(2, 3, 4, 5), folds=False)
def stateless_truncated(
    xp: Backend, shape: np.ndarray, seed: Array, mean: Any, deviation: Any, low: Any, high: Any, *, node: GraphNode
) -> Array:
    """Draw truncated normal numbers as one thread of TensorFlow's does. Parameters have the last axes."""
    extents, dtype = ints(shape), np.dtype(node.dtypes[0])

    def on_arrays(*operands: np.ndarray) -> list[np.ndarray]:
        *parameters, key, counter = operands
        batch = np.broadcast_shapes(*(p.shape for p in parameters))
        count = math.prod(batch)
        size = math.prod(extents) // max(count, 1)
        stream = WordStream(key, counter)
        columns = [_bounded(stream, size, dtype, *row) for row in zip(*_parameters(parameters, batch), strict=True)]
        return [np.stack(columns, 1).reshape(extents) if columns and size else np.zeros(extents, dtype)]

    operands = (mean, deviation, low, high, *philox.key_and_counter(xp, lifted(xp, seed)))
    return by_host(xp, node, on_arrays, operands, [ShapeDtype(extents, dtype)])[0]
