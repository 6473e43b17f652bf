"""Rules that read images at other places: resizing, sampling on grids, regions of interest."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.shape import axes_of, ints
from tensorgraft.frontends.onnx.values import to_host
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators


@rule("Upsample", known=("scales",))
def upsample(xp: Any, x: Any, scales: Any, *, mode: str = "nearest") -> Any:
    """Resize as `Resize` did before opset 11."""
    return _resized(xp, x, None, scales, None, {"mode": mode, "coordinates": "asymmetric", "nearest": "simple"})


@rule("Resize", known=("roi", "scales", "sizes"))
def resize(
    xp: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
    axes: tuple[int, ...] = (), coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest", nearest_mode: str = "round_prefer_floor", opset: int,
) -> Any:  # fmt: skip
    if opset < 11:  # inputs are x and scales
        return upsample(xp, x, roi, mode=mode)
    settings: dict[str, Any] = {
        "mode": mode, "coordinates": coordinate_transformation_mode, "nearest": nearest_mode, "a": cubic_coeff_a,
        "outside": extrapolation_value, "exclude": bool(exclude_outside), "antialias": bool(antialias),
        "policy": keep_aspect_ratio_policy,
    }  # fmt: skip
    return _resized(xp, x, roi, scales, sizes, settings, axes)


def _resized(
    xp: Any, x: Any, roi: Any, scales: Any, sizes: Any, settings: dict[str, Any], axes: tuple[int, ...] = ()
) -> Any:
    rank = len(x.shape)
    along = axes_of(axes, rank) if axes else tuple(range(rank))
    lengths = [x.shape[a] for a in along]
    if sizes is not None and np.size(sizes):
        wanted = list(ints(sizes))
        factors = [m / n for m, n in zip(wanted, lengths, strict=True)]
        if settings.get("policy", "stretch") != "stretch":
            choose = max if settings["policy"] == "not_smaller" else min
            factors = [choose(factors)] * len(factors)
            wanted = [math.floor(f * n + 0.5) for f, n in zip(factors, lengths, strict=True)]
    else:
        factors = [float(s) for s in np.ravel(scales)]
        wanted = [math.floor(f * n) for f, n in zip(factors, lengths, strict=True)]
    region = [None] * len(along)
    if settings["coordinates"] == "tf_crop_and_resize":
        flat = np.ravel(roi)
        region = [(float(flat[i]), float(flat[i + len(along)])) for i in range(len(along))]  # type: ignore[misc]
    dtype = xp.dtype_of(x)
    outside: Any = None
    for i, axis in enumerate(along):
        n, m = lengths[i], wanted[i]
        if n == m and factors[i] == 1 and region[i] is None:
            continue
        at = _coordinates(n, m, factors[i], region[i], settings["coordinates"])
        if settings["mode"] == "nearest":
            rounding = settings["nearest"]
            if rounding == "simple":  # of a place that is skipped, the next one remains
                rounding = "ceil" if factors[i] < 1 else "floor"
            x = xp.take(x, xp.asarray(_nearest(at, n, rounding)), axis)
        else:
            weights = _weights(at, n, factors[i], settings)
            wide = dtype if dtypes.is_floating(dtype) else dtypes.float32
            product = xp.dot_general(xp.astype(x, wide), xp.asarray(weights.astype(wide)), ((axis,), (1,)))
            x = xp.moveaxis(product, -1, axis)
        if region[i] is not None:
            beyond = (at < 0) | (at > n - 1)
            shape = [1] * rank
            shape[axis] = m
            outside = beyond.reshape(shape) if outside is None else outside | beyond.reshape(shape)
    if not dtypes.is_floating(dtype) and settings["mode"] != "nearest":
        x = xp.astype(xp.clip(xp.round(x), float(dtypes.lowest(dtype)), float(dtypes.highest(dtype))), dtype)
    if outside is not None:
        x = xp.where(xp.asarray(outside), xp.full((), settings["outside"], dtype), x)
    return x


def _coordinates(n: int, m: int, scale: float, region: Any, mode: str) -> np.ndarray:
    """Return the places in an axis of `n` elements that the `m` elements of the resized one show."""
    i = np.arange(m, dtype=np.float64)
    if mode == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjusted = m / (scale * n)
        return n / 2 * (1 - adjusted) + (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if m > 1 else np.zeros(m)
    if mode == "align_corners":
        length = n * scale
        return np.zeros(m) if length == 1 else i * (n - 1) / (length - 1) if m > 1 else np.zeros(m)
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    start, end = region
    if m > 1:
        return start * (n - 1) + i * (end - start) * (n - 1) / (m - 1)
    return np.full(m, 0.5 * (start + end) * (n - 1))


def _nearest(at: np.ndarray, n: int, mode: str) -> np.ndarray:
    rounders: dict[str, Any] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return np.clip(rounders[mode](at), 0, n - 1).astype(np.int64)


def _weights(at: np.ndarray, n: int, scale: float, settings: dict[str, Any]) -> np.ndarray:
    """Return the matrix (m, n) of linear or cubic interpolation, whose places outside are those at the edge."""
    cubic = settings["mode"] == "cubic"
    stretch = min(scale, 1.0) if settings.get("antialias") else 1.0
    reach = math.ceil((2 if cubic else 1) / stretch)
    first = np.floor(at).astype(np.int64) - reach + 1
    places = first[:, None] + np.arange(2 * reach)
    distance = np.abs(at[:, None] - places) * stretch
    near, far = _cubic(distance, settings.get("a", -0.75)) if cubic else (np.maximum(1 - distance, 0), 0)
    values = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if settings.get("exclude"):
        values = np.where((places >= 0) & (places < n), values, 0)
    if settings.get("exclude") or stretch < 1:
        values = values / values.sum(1, keepdims=True)
    matrix = np.zeros((len(at), n))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(places, 0, n - 1)), values)
    return matrix


def _cubic(x: Any, a: float = -0.75) -> tuple[Any, Any]:
    """Return the share in cubic interpolation of an element x away (Keys 1981): (up to 1, between 1 and 2)."""
    return (x * (a + 2) - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a


# ---- sampling --------------------------------------------------------------------------------------------------------


def _at_places(xp: Any, images: Value, places: list[Value], valid: Value | None = None) -> Value:
    """Return images (N, C, spatial...) at integer places (N, ...) along each spatial axis, zero where not `valid`:
    (N, C, ...)."""
    n, _, *spatial = images.shape
    row = xp.reshape(xp.iota(n, dtypes.int64), (n, *(1,) * (places[0].ndim - 1)))
    at = [xp.astype(xp.clip(p, 0, size - 1), dtypes.int64) for p, size in zip(places, spatial, strict=True)]
    read = xp.gather(xp.moveaxis(images, 1, -1), (row, *at))
    if valid is not None:
        read = xp.where(xp.expand_dims(valid, -1), read, xp.zeros_like(read))
    return xp.moveaxis(read, -1, 1)


def _within(places: list[Value], spatial: Any) -> Value:
    """Return whether all of the places are in an image."""
    within = [(p >= 0) & (p <= size - 1) for p, size in zip(places, spatial, strict=True)]
    return functools.reduce(operator.and_, within)


def _corners(xp: Any, places: list[Value]) -> Iterator[tuple[list[Value], Value]]:
    """Yield (the places of each corner of the cell around a place, its share in linear interpolation)."""
    low = [xp.floor(p) for p in places]
    for corner in np.ndindex(*(2,) * len(places)):
        shares = [p - base if c else 1 - (p - base) for p, base, c in zip(places, low, corner, strict=True)]
        yield [base + float(c) for base, c in zip(low, corner, strict=True)], functools.reduce(operator.mul, shares)


@with_operators
def bilinear_at(xp: Any, images: Value, y: Value, x: Value) -> Value:
    """Return images (N, C, H, W) at places (N, ...), between the four pixels around each; outside they are zero."""
    return _interpolated(xp, images, _corners(xp, [y, x]), None)


def _interpolated(xp: Any, images: Value, corners: Iterable[tuple[list[Value], Value]], bounded: Any) -> Value:
    """Return the sum of pixels times their shares. `bounded` maps places into the image; None: outside is zero."""
    parts = []
    for at, share in corners:
        if bounded is None:
            values = _at_places(xp, images, at, _within(at, images.shape[2:]))
        else:
            values = _at_places(xp, images, bounded(at))
        parts.append(values * xp.expand_dims(share, 1))
    return functools.reduce(operator.add, parts)


@rule("GridSample")
@with_operators
def grid_sample(
    xp: Any, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    spatial, dtype = x.shape[2:], x.dtype
    parts = [xp.astype(p, dtypes.float64 if dtype == dtypes.float64 else dtypes.float32) for p in xp.unstack(grid, -1)]
    places = [
        (p + 1) * ((n - 1) / 2) if align_corners else (p + 1) * (n / 2) - 0.5
        for p, n in zip(reversed(parts), spatial, strict=True)
    ]

    def bounded(at: list[Value]) -> list[Value]:
        if padding_mode == "border":
            return [xp.clip(p, 0.0, n - 1.0) for p, n in zip(at, spatial, strict=True)]
        return [_reflected(xp, p, n, bool(align_corners)) for p, n in zip(at, spatial, strict=True)]

    map_places = None if padding_mode == "zeros" else bounded
    if mode == "nearest":
        at = [xp.round(p) for p in places]
        return _at_places(xp, x, at, _within(at, spatial)) if map_places is None else _at_places(xp, x, bounded(at))
    corners = _corners(xp, places) if mode in ("linear", "bilinear") else _cubic_corners(xp, places)
    return xp.astype(_interpolated(xp, x, corners, map_places), dtype)


def _reflected(xp: Any, p: Value, n: int, corners: bool) -> Value:
    low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
    span = high - low
    if not span:
        return xp.zeros_like(p)
    distance = (p - low) % (2 * span)
    return xp.clip(xp.minimum(distance, 2 * span - distance) + low, 0.0, n - 1.0)


def _cubic_corners(xp: Any, places: list[Value]) -> Iterator[tuple[list[Value], Value]]:
    """Yield (places, their share in cubic interpolation) of the four pixels along each axis around a place."""
    low = [xp.floor(p) for p in places]
    after = [p - base for p, base in zip(places, low, strict=True)]
    shares = [[_cubic(t + 1)[1], _cubic(t)[0], _cubic(1 - t)[0], _cubic(2 - t)[1]] for t in after]
    for corner in np.ndindex(*(4,) * len(places)):
        at = [base + float(c - 1) for base, c in zip(low, corner, strict=True)]
        yield at, functools.reduce(operator.mul, [s[c] for s, c in zip(shares, corner, strict=True)])


@rule("RoiAlign")
def roi_align(
    xp: Any, x: Any, rois: Any, batch_indices: Any, *, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0, opset: int,
) -> Any:  # fmt: skip
    """Pool regions (K, 4) of images (N, C, H, W) to one size, from values between the pixels (He and others 2017).
    Without a ratio, regions have as many samples as they are large, which their values have to be known for."""
    half = 0.5 if opset >= 16 and coordinate_transformation_mode == "half_pixel" else 0.0
    bins, most = (output_height, output_width), (sampling_ratio,) * 2
    if sampling_ratio <= 0:
        try:
            corners = np.asarray(to_host(xp, rois))
        except TracedValueError:
            raise TracedValueError(
                "RoiAlign with sampling_ratio 0 takes as many samples as a region is large, and the regions are not"
                " known while a program is compiled: call it without compiling it, or set sampling_ratio"
            ) from None
        corners = corners * corners.dtype.type(spatial_scale) - corners.dtype.type(half)
        extents = [corners[:, i + 2] - corners[:, i] for i in (1, 0)]
        extents = extents if half else [np.maximum(e, 1) for e in extents]
        most = tuple(max(math.ceil(np.max(e / n, initial=1)), 1) for e, n in zip(extents, bins, strict=True))
    images = xp.take(x, xp.astype(batch_indices, dtypes.int64), 0)
    return _aligned(xp, images, rois, bins, most, sampling_ratio <= 0, half, spatial_scale, mode)


@with_operators
def _aligned(
    xp: Any, images: Value, rois: Value, bins: tuple[int, ...], most: tuple[int, ...], is_adaptive: bool, half: float,
    scale: float, mode: str,
) -> Value:  # fmt: skip
    """Pool an image for each region, from up to `most` samples of a bin along each axis."""
    x1, y1, x2, y2 = xp.unstack(rois * scale - half, 1)
    extents = [y2 - y1, x2 - x1] if half else [xp.maximum(y2 - y1, 1.0), xp.maximum(x2 - x1, 1.0)]
    numbers: Any = [xp.ceil(e / n) for e, n in zip(extents, bins, strict=True)] if is_adaptive else [None, None]
    parts = [_samples(xp, *v) for v in zip((y1, x1), extents, bins, most, numbers, strict=True)]
    (k, channels, h, w), shape = images.shape, (rois.shape[0], *(at.shape[1] for at, _ in parts))
    y, z = (xp.broadcast_to(xp.expand_dims(at, 2 - i), shape) for i, (at, _) in enumerate(parts))
    valid = (y >= -1.0) & (y <= float(h)) & (z >= -1.0) & (z <= float(w))
    places = [xp.clip(y, 0.0, h - 1.0), xp.clip(z, 0.0, w - 1.0)]
    values = [_at_places(xp, images, at, valid) * xp.expand_dims(share, 1) for at, share in _corners(xp, places)]
    pooled = functools.reduce(operator.add if mode == "avg" else xp.maximum, values)
    cells = (k, channels, bins[0], most[0], bins[1], most[1])
    if not is_adaptive:
        return (xp.mean if mode == "avg" else xp.max)(xp.reshape(pooled, cells), (3, 5))
    count = xp.reshape(xp.maximum(numbers[0], 0.0) * xp.maximum(numbers[1], 0.0), (k, 1, 1, 1))
    is_sample = xp.expand_dims(xp.expand_dims(parts[0][1], 2) & xp.expand_dims(parts[1][1], 1), 1)
    if mode == "avg":
        return xp.sum(xp.reshape(xp.where(is_sample, pooled, 0.0), cells), (3, 5)) / xp.maximum(count, 1.0)
    largest = xp.max(xp.reshape(xp.where(is_sample, pooled, -math.inf), cells), (3, 5))
    return xp.where(count > 0, largest, 0.0)


def _samples(xp: Any, start: Value, extent: Value, bins: int, most: int, number: Value | None) -> tuple[Value, Any]:
    """Return (the places of samples (K, bins * most) in regions, which of them count). `number`: how many of a bin of
    each region do (K,), if not all."""
    start, extent = xp.expand_dims(start, 1), xp.expand_dims(extent, 1)
    bin_, sample = np.divmod(np.arange(bins * most), most)
    if number is None:
        return start + extent * xp.asarray(((bin_ + (sample + 0.5) / most) / bins).astype(start.dtype)), None
    number = xp.expand_dims(number, 1)
    within = xp.asarray((sample + 0.5).astype(start.dtype)) / xp.maximum(number, 1.0)
    rates = (xp.asarray(bin_.astype(start.dtype)) + within) / bins
    return start + extent * rates, xp.asarray(sample.astype(start.dtype)) < number


@rule("MaxRoiPool", known=("rois",))
def max_roi_pool(xp: Any, x: Any, rois: Any, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Any:
    """Return the largest values in the parts of regions (K, 5: image, x1, y1, x2, y2)."""
    out = []
    for row in np.asarray(rois):
        x1, y1, x2, y2 = (math.floor(float(v) * spatial_scale + 0.5) for v in row[1:])
        image = xp.take_slice(x, 0, int(row[0]), int(row[0]) + 1)
        spans = [(y1, max(y2 - y1 + 1, 1), x.shape[2]), (x1, max(x2 - x1 + 1, 1), x.shape[3])]
        edges = [
            [(min(max(s + math.floor(i * e / m), 0), n), min(max(s + math.ceil((i + 1) * e / m), 0), n))
             for i in range(m)]
            for (s, e, n), m in zip(spans, pooled_shape, strict=True)
        ]  # fmt: skip
        cells = [
            xp.max(xp.take_slice(xp.take_slice(image, 2, *rows), 3, *columns), (2, 3))
            if rows[1] > rows[0] and columns[1] > columns[0]
            else xp.zeros(tuple(image.shape[:2]), xp.dtype_of(x))
            for rows in edges[0]
            for columns in edges[1]
        ]
        out.append(xp.reshape(xp.stack(cells, axis=2), (1, x.shape[1], *pooled_shape)))
    return xp.concat(out, axis=0)
