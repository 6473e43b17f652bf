"""Rules that read images at other places: resizing, sampling on grids, regions of interest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.shape import axes_of, ints
from tensorgraft.hub import dtypes


@rule("Upsample", known=("scales",))
def upsample(xp: Any, x: Any, scales: Any, *, mode: str = "nearest") -> Any:
    return _resized(xp, x, None, scales, None, {"mode": mode, "coordinates": "asymmetric", "nearest": "floor"})


@rule("Resize", known=("roi", "scales", "sizes"))
def resize(
    xp: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
    axes: tuple[int, ...] = (), coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest", nearest_mode: str = "round_prefer_floor", opset: int,
) -> Any:  # fmt: skip
    if opset < 11:  # inputs are x and scales
        settings = {"mode": mode, "coordinates": "asymmetric", "nearest": "floor"}
        return _resized(xp, x, None, roi, None, settings)
    settings = {
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
            x = xp.take(x, xp.asarray(_nearest(at, n, settings["nearest"])), axis)
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
    rounded = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
        "simple": np.trunc,
    }[mode](at)
    return np.clip(rounded, 0, n - 1).astype(np.int64)


def _weights(at: np.ndarray, n: int, scale: float, settings: dict[str, Any]) -> np.ndarray:
    """Return the matrix (m, n) of linear or cubic interpolation, whose places outside are those at the edge."""
    cubic = settings["mode"] == "cubic"
    stretch = min(scale, 1.0) if settings.get("antialias") else 1.0
    reach = math.ceil((2 if cubic else 1) / stretch)
    first = np.floor(at).astype(np.int64) - reach + 1
    places = first[:, None] + np.arange(2 * reach)
    distance = np.abs(at[:, None] - places) * stretch
    values = _cubic(distance, settings.get("a", -0.75)) if cubic else np.maximum(1 - distance, 0)
    if settings.get("exclude"):
        values = np.where((places >= 0) & (places < n), values, 0)
    if settings.get("exclude") or stretch < 1:
        values = values / values.sum(1, keepdims=True)
    matrix = np.zeros((len(at), n))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(places, 0, n - 1)), values)
    return matrix


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


# ---- sampling --------------------------------------------------------------------------------------------------------


def at_places(xp: Any, images: Any, places: list[Any], valid: Any = None) -> Any:
    """Return images (N, C, spatial...) at integer places (N, ...) along each spatial axis, zero where not `valid`:
    (N, C, ...)."""
    n, _, *spatial = images.shape
    rank = len(places[0].shape)
    row = xp.reshape(xp.iota(n, dtypes.int64), (n, *(1,) * (rank - 1)))
    at = [xp.astype(xp.clip(p, 0, size - 1), dtypes.int64) for p, size in zip(places, spatial, strict=True)]
    read = xp.gather(xp.moveaxis(images, 1, -1), (row, *at))
    if valid is not None:
        read = xp.where(xp.expand_dims(valid, -1), read, xp.zeros_like(read))
    return xp.moveaxis(read, -1, 1)


def _inside(xp: Any, places: list[Any], spatial: Any) -> Any:
    inside = None
    for p, size in zip(places, spatial, strict=True):
        here = xp.logical_and(xp.greater_equal(p, 0), xp.less_equal(p, size - 1))
        inside = here if inside is None else xp.logical_and(inside, here)
    return inside


def bilinear_at(xp: Any, images: Any, y: Any, x: Any) -> Any:
    """Return images (N, C, H, W) at places (N, ...), between the four pixels around each; outside they are zero."""
    return _linear_at(xp, images, [y, x], None)


def _linear_at(xp: Any, images: Any, places: list[Any], reflect: Any) -> Any:
    low = [xp.floor(p) for p in places]
    total = None
    for corner in np.ndindex(*(2,) * len(places)):
        at = [xp.add(p, float(c)) for p, c in zip(low, corner, strict=True)]
        weight = None
        for p, base, c in zip(places, low, corner, strict=True):
            part = xp.subtract(p, base)
            part = part if c else xp.subtract(1.0, part)
            weight = part if weight is None else xp.multiply(weight, part)
        if reflect is None:
            values = at_places(xp, images, at, _inside(xp, at, images.shape[2:]))
        else:
            values = at_places(xp, images, reflect(at))
        values = xp.multiply(values, xp.expand_dims(weight, 1))
        total = values if total is None else xp.add(total, values)
    return total


@rule("GridSample")
def grid_sample(
    xp: Any, x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    spatial = x.shape[2:]
    dtype = xp.dtype_of(x)
    parts = [xp.astype(p, dtypes.float64 if dtype == dtypes.float64 else dtypes.float32) for p in xp.unstack(grid, -1)]
    places = []
    for p, n in zip(reversed(parts), spatial, strict=True):
        half = (n - 1) / 2 if align_corners else n / 2
        place = xp.multiply(xp.add(p, 1.0), half)
        places.append(place if align_corners else xp.subtract(place, 0.5))

    def handled(at: list[Any]) -> list[Any]:
        if padding_mode == "border":
            return [xp.clip(p, 0.0, n - 1.0) for p, n in zip(at, spatial, strict=True)]
        return [_reflected(xp, p, n, bool(align_corners)) for p, n in zip(at, spatial, strict=True)]

    reflect = None if padding_mode == "zeros" else handled
    if mode == "nearest":
        at = [xp.round(p) for p in places]
        if reflect is None:
            return at_places(xp, x, at, _inside(xp, at, spatial))
        return at_places(xp, x, reflect(at))
    if mode in ("linear", "bilinear"):
        return xp.astype(_linear_at(xp, x, places, reflect), dtype)
    return xp.astype(_cubic_at(xp, x, places, reflect), dtype)


def _reflected(xp: Any, p: Any, n: int, corners: bool) -> Any:
    low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
    span = high - low
    if not span:
        return xp.zeros_like(p)
    distance = xp.remainder(xp.subtract(p, low), 2 * span)
    distance = xp.minimum(distance, xp.subtract(2 * span, distance))
    return xp.clip(xp.add(distance, low), 0.0, n - 1.0)


def _cubic_at(xp: Any, images: Any, places: list[Any], reflect: Any) -> Any:
    low = [xp.floor(p) for p in places]
    rates = [_cubic_rates(xp, xp.subtract(p, b)) for p, b in zip(places, low, strict=True)]
    total = None
    for corner in np.ndindex(*(4,) * len(places)):
        at = [xp.add(b, float(c - 1)) for b, c in zip(low, corner, strict=True)]
        weight = None
        for r, c in zip(rates, corner, strict=True):
            weight = r[c] if weight is None else xp.multiply(weight, r[c])
        if reflect is None:
            values = at_places(xp, images, at, _inside(xp, at, images.shape[2:]))
        else:
            values = at_places(xp, images, reflect(at))
        values = xp.multiply(values, xp.expand_dims(weight, 1))
        total = values if total is None else xp.add(total, values)
    return total


def _cubic_rates(xp: Any, t: Any, a: float = -0.75) -> list[Any]:
    """Return the weights of the four places around one, `t` after the second (Keys 1981)."""

    def near(x: Any) -> Any:
        return xp.add(xp.multiply(xp.multiply(xp.subtract(xp.multiply(x, a + 2), a + 3), x), x), 1.0)

    def far(x: Any) -> Any:
        inner = xp.subtract(xp.multiply(xp.add(xp.multiply(xp.subtract(x, 5.0), x), 8.0), x), 4.0)
        return xp.multiply(inner, a)

    return [far(xp.add(t, 1.0)), near(t), near(xp.subtract(1.0, t)), far(xp.subtract(2.0, t))]


@rule("RoiAlign")
def roi_align(
    xp: Any, x: Any, rois: Any, batch_indices: Any, *, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0, opset: int,
) -> Any:  # fmt: skip
    """Pool regions (K, 4) of images (N, C, H, W) to one size, from values between the pixels (He and others 2017)."""
    half = 0.5 if opset >= 16 and coordinate_transformation_mode == "half_pixel" else 0.0
    boxes = xp.subtract(xp.multiply(rois, spatial_scale), half)
    x1, y1, x2, y2 = xp.unstack(boxes, 1)
    width, height = xp.subtract(x2, x1), xp.subtract(y2, y1)
    if not half:
        width, height = xp.maximum(width, 1.0), xp.maximum(height, 1.0)
    if sampling_ratio <= 0:
        raise NotImplementedError("RoiAlign with sampling_ratio 0 takes as many samples as a region is large")
    images = xp.take(x, xp.astype(batch_indices, dtypes.int64), 0)
    ys = _samples(xp, y1, height, output_height, sampling_ratio)
    xs = _samples(xp, x1, width, output_width, sampling_ratio)
    k, (h, w) = rois.shape[0], x.shape[2:]
    grid_y = xp.broadcast_to(xp.expand_dims(ys, 2), (k, ys.shape[1], xs.shape[1]))
    grid_x = xp.broadcast_to(xp.expand_dims(xs, 1), (k, ys.shape[1], xs.shape[1]))
    valid = xp.logical_and(
        xp.logical_and(xp.greater_equal(grid_y, -1.0), xp.less_equal(grid_y, float(h))),
        xp.logical_and(xp.greater_equal(grid_x, -1.0), xp.less_equal(grid_x, float(w))),
    )
    places = [xp.clip(grid_y, 0.0, h - 1.0), xp.clip(grid_x, 0.0, w - 1.0)]
    corners = _corner_values(xp, images, places, valid)
    split = (k, x.shape[1], output_height, sampling_ratio, output_width, sampling_ratio)
    if mode == "avg":
        total = corners[0]
        for c in corners[1:]:
            total = xp.add(total, c)
        return xp.mean(xp.reshape(total, split), (3, 5))
    best = corners[0]
    for c in corners[1:]:
        best = xp.maximum(best, c)
    return xp.max(xp.reshape(best, split), (3, 5))


def _samples(xp: Any, start: Any, extent: Any, bins: int, ratio: int) -> Any:
    at = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
    rates = xp.asarray(at.astype(xp.dtype_of(start)))
    return xp.add(xp.expand_dims(start, 1), xp.multiply(xp.expand_dims(extent, 1), rates))


def _corner_values(xp: Any, images: Any, places: list[Any], valid: Any) -> list[Any]:
    """Return the values of the four pixels around each place, times their shares."""
    low = [xp.floor(p) for p in places]
    values = []
    for corner in np.ndindex(2, 2):
        at = [xp.add(p, float(c)) for p, c in zip(low, corner, strict=True)]
        weight = None
        for p, base, c in zip(places, low, corner, strict=True):
            part = xp.subtract(p, base)
            part = part if c else xp.subtract(1.0, part)
            weight = part if weight is None else xp.multiply(weight, part)
        read = at_places(xp, images, at, valid)
        values.append(xp.multiply(read, xp.expand_dims(weight, 1)))
    return values


@rule("MaxRoiPool", known=("rois",))
def max_roi_pool(xp: Any, x: Any, rois: Any, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Any:
    """Return the largest values in the parts of regions (K, 5: image, x1, y1, x2, y2)."""
    out = []
    for row in np.asarray(rois):
        x1, y1, x2, y2 = (int(math.floor(float(v) * spatial_scale + 0.5)) for v in row[1:])
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
