"""Rules for convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.quantized import along, requantized, shifted
from tensorgraft.frontends.onnx.rules.shape import ints
from tensorgraft.hub import dtypes

Pads = tuple[tuple[int, int], ...]


@dataclass(kw_only=True)
class Windows:
    """The attributes that operators of windows over the spatial axes of (N, C, spatial...) have in common."""

    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def over(self, x: Any, kernel: Sequence[int]) -> tuple[Pads, tuple[int, ...], tuple[int, ...]]:
        """Return padding, strides and dilations."""
        step, gaps, padding = self.of(len(kernel))
        if self.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            amounts = []
            for size, k, s, d in zip(x.shape[2:], kernel, step, gaps, strict=True):
                total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
                less = total // 2
                amounts.append((less, total - less) if self.auto_pad == "SAME_UPPER" else (total - less, less))
            padding = tuple(amounts)
        return padding, step, gaps

    def of(self, n: int) -> tuple[tuple[int, ...], tuple[int, ...], Pads]:
        """Return strides, dilations and stated padding of `n` axes."""
        flat = tuple(self.pads) or (0,) * (2 * n)
        ones = (1,) * n
        return self.strides or ones, self.dilations or ones, tuple((flat[i], flat[i + n]) for i in range(n))

    def pooled(self, x: Any) -> tuple[Pads, Pads, tuple[int, ...], tuple[int, ...]]:
        """Return (padding, the padding with which the last window is whole, strides, dilations)."""
        padding, step, gaps = self.over(x, self.kernel_shape)
        whole = []
        for size, k, s, d, (low, high) in zip(x.shape[2:], self.kernel_shape, step, gaps, padding, strict=True):
            reach = d * (k - 1) + 1
            span = size + low + high - reach
            count = (-(-span // s) if self.ceil_mode else span // s) + 1
            if self.ceil_mode and (count - 1) * s >= size + low:  # a window that begins in the padding at the end
                count -= 1
            whole.append((low, max((count - 1) * s + reach - size - low, high if not self.ceil_mode else 0)))
        return padding, tuple(whole), step, gaps


@rule("Conv", like=[Windows])
def conv(xp: Any, x: Any, w: Any, b: Any = None, *, group: int = 1, **options: Any) -> Any:
    padding, step, gaps = Windows(**options).over(x, w.shape[2:])
    return xp.conv(x, w, b, step, padding, gaps, group)


@rule("ConvTranspose", like=[Windows])
def conv_transpose(
    xp: Any, x: Any, w: Any, b: Any = None, *, group: int = 1, output_padding: tuple[int, ...] = (),
    output_shape: tuple[int, ...] = (), **options: Any,
) -> Any:  # fmt: skip
    windows = Windows(**options)
    auto_pad = windows.auto_pad
    kernel = w.shape[2:]
    n = len(kernel)
    step, gaps, padding = windows.of(n)
    extra, amounts = tuple(output_padding) or (0,) * n, list(padding)
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(output_shape)[-n:] or tuple(m * s for m, s in zip(x.shape[2:], step, strict=True))
        for i in range(n):
            total = max(step[i] * (x.shape[i + 2] - 1) + extra[i] + (kernel[i] - 1) * gaps[i] + 1 - wanted[i], 0)
            less = total // 2
            amounts[i] = (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)
            missing = wanted[i] - (step[i] * (x.shape[i + 2] - 1) + extra[i] + (kernel[i] - 1) * gaps[i] + 1 - total)
            extra = tuple(e + (missing if j == i else 0) for j, e in enumerate(extra))
    low = tuple(a for a, _ in amounts)
    ends = tuple(e + a - z for e, (a, z) in zip(extra, amounts, strict=True))
    if all(e >= 0 for e in ends):
        return xp.conv_transpose(x, w, b, step, low, ends, gaps, group)
    y = xp.conv_transpose(x, w, b, step, low, tuple(max(e, 0) for e in ends), gaps, group)
    return xp.pad(y, 0, [(0, 0, 0)] * 2 + [(0, min(e, 0), 0) for e in ends])


@rule("ConvInteger", like=[Windows])
def conv_integer(
    xp: Any, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, *, group: int = 1, **options: Any
) -> Any:
    padding, step, gaps = Windows(**options).over(x, w.shape[2:])
    x, w = shifted(xp, x, x_zero, 1), shifted(xp, w, w_zero, 0)
    return xp.convolution(x, w, step, padding, (1,) * len(step), gaps, group)


@rule("QLinearConv", state=("x_scale", "w_scale", "y_scale"), like=[("", "ConvInteger")])
def qlinear_conv(
    xp: Any, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any,
    b: Any = None, **attributes: Any,
) -> Any:  # fmt: skip
    total, rank = conv_integer(xp, x, w, x_zero, w_zero, **attributes), len(x.shape)
    total = total if b is None else xp.add(total, along(xp, xp.astype(b, dtypes.int32), 1, rank))
    x_scale, w_scale, y_scale = (along(xp, s, 1, rank) for s in (x_scale, w_scale, y_scale))
    return requantized(xp, total, x_scale, w_scale, y_scale, y_zero)


# ---- pooling ---------------------------------------------------------------------------------------------------------


@rule("MaxPool", like=[Windows])
def max_pool(xp: Any, x: Any, *, storage_order: int = 0, node: Any = None, **options: Any) -> Any:
    windows = Windows(**options)
    kernel = windows.kernel_shape
    _, whole, step, gaps = windows.pooled(x)
    if len(node.outputs) < 2:
        return xp.max_pool(x, kernel, step, whole, gaps)
    low = dtypes.lowest(xp.dtype_of(x))
    padded = xp.pad(x, low, [(0, 0, 0)] * 2 + [(a, b, 0) for a, b in whole])
    patches = xp.window_patches(padded, kernel, step, gaps)
    positions = _positions(x.shape[2:], storage_order)
    at = np.pad(positions, [*whole], constant_values=-1)
    places = xp.window_patches(xp.asarray(at), kernel, step, gaps)
    valid = xp.where(xp.greater_equal(places, 0), patches, xp.full((), low, xp.dtype_of(x)))
    best = xp.argmax(valid, 2, True)
    n, c = x.shape[:2]
    spread = xp.broadcast_to(places, (n, c, *places.shape))
    at_best = xp.squeeze(xp.take_along_axis(spread, best, 2), 2)
    size = math.prod(x.shape[2:])
    planes = xp.reshape(xp.multiply(xp.iota(n * c, dtypes.int64), size), (n, c, *(1,) * len(kernel)))
    return [xp.max(valid, 2), xp.add(at_best, planes)]


def _positions(spatial: Sequence[int], storage_order: int) -> np.ndarray:
    at = np.arange(math.prod(spatial), dtype=np.int64)
    if storage_order:
        return np.transpose(at.reshape(tuple(reversed(spatial))))
    return at.reshape(tuple(spatial))


@rule("AveragePool", like=[Windows])
def average_pool(xp: Any, x: Any, *, count_include_pad: int = 0, **options: Any) -> Any:
    windows = Windows(**options)
    window = windows.kernel_shape
    padding, whole, step, gaps = windows.pooled(x)
    if set(gaps) == {1} and (whole == padding or not count_include_pad):
        return xp.avg_pool(x, window, step, whole, bool(count_include_pad))
    return _average(xp, x, window, step, gaps, padding, whole, bool(count_include_pad))


def _average(
    xp: Any, x: Any, window: tuple[int, ...], step: tuple[int, ...], gaps: tuple[int, ...], padding: Pads, whole: Pads,
    counts_padding: bool,
) -> Any:  # fmt: skip
    """Return means of which the padding counts that the operator has, and not what makes the last window whole."""
    ones = (1, 1)
    none = ((0, 0), (0, 0))
    total = xp.reduce_window(x, "sum", ones + window, ones + step, none + whole, ones + gaps)
    within = np.ones(x.shape[2:])
    counted = np.pad(within, padding, constant_values=float(counts_padding))
    rest = [(w[0] - p[0], w[1] - p[1]) for w, p in zip(whole, padding, strict=True)]
    counted = np.pad(counted, [(max(a, 0), max(b, 0)) for a, b in rest])
    cut = tuple(slice(None, b if b < 0 else None) for _, b in rest)
    counts = xp.reduce_window(
        xp.asarray(counted[cut].astype(np.float32)), "sum", window, step, ((0, 0),) * len(window), gaps
    )
    return xp.divide(total, xp.astype(counts, xp.dtype_of(x)))


@rule("LpPool", like=[Windows])
def lp_pool(xp: Any, x: Any, *, p: int = 2, **options: Any) -> Any:
    windows = Windows(**options)
    _, whole, step, gaps = windows.pooled(x)
    ones, none = (1, 1), ((0, 0), (0, 0))
    powers = xp.pow(xp.abs(x), p)
    total = xp.reduce_window(powers, "sum", ones + windows.kernel_shape, ones + step, none + whole, ones + gaps)
    return xp.pow(total, 1 / p)


@rule("MaxUnpool", known=("output_shape",), like=[Windows])
def max_unpool(xp: Any, x: Any, indices: Any, output_shape: Any = None, **options: Any) -> Any:
    windows = Windows(**options)
    step, _, padding = windows.of(len(windows.kernel_shape))
    natural = tuple(
        (n - 1) * s + k - low - high
        for n, s, k, (low, high) in zip(x.shape[2:], step, windows.kernel_shape, padding, strict=True)
    )
    shape = (*x.shape[:2], *natural)
    flat = xp.zeros((math.prod(shape),), xp.dtype_of(x))
    at = xp.reshape(xp.astype(indices, dtypes.int64), (math.prod(x.shape),))
    out = xp.reshape(xp.scatter(flat, (at,), xp.reshape(x, (math.prod(x.shape),))), shape)
    if output_shape is None:
        return out
    return xp.pad(out, 0, [(0, m - n, 0) for n, m in zip(shape, ints(output_shape), strict=True)])


@rule("Col2Im", known=("image_shape", "block_shape"), like=[Windows])
def col2im(xp: Any, x: Any, image_shape: Any, block_shape: Any, **options: Any) -> Any:
    """Add the columns of blocks at their places in images."""
    image, block = ints(image_shape), ints(block_shape)
    n = len(image)
    step, gaps, padding = Windows(**options).of(n)
    padded = tuple(size + low + high for size, (low, high) in zip(image, padding, strict=True))
    at = np.arange(math.prod(padded), dtype=np.int64).reshape(padded)
    counts = [(p - d * (k - 1) - 1) // s + 1 for p, d, k, s in zip(padded, gaps, block, step, strict=True)]
    grids = np.ix_(*[
        (np.arange(k)[:, None] * d + np.arange(c)[None] * s).ravel()
        for k, d, c, s in zip(block, gaps, counts, step, strict=True)
    ])  # fmt: skip
    places = at[grids].reshape([v for k, c in zip(block, counts, strict=True) for v in (k, c)])
    places = places.transpose([*range(0, 2 * n, 2), *range(1, 2 * n, 2)]).ravel()
    batch, columns = x.shape[0], x.shape[1] // math.prod(block)
    values = xp.moveaxis(xp.reshape(x, (batch * columns, math.prod(block) * math.prod(counts))), 0, 1)
    out = xp.zeros((math.prod(padded), batch * columns), xp.dtype_of(x))
    out = xp.scatter(out, (xp.asarray(places),), values, mode="add")
    out = xp.reshape(xp.moveaxis(out, 0, 1), (batch, columns, *padded))
    low = tuple(a for a, _ in padding)
    stop = tuple(a + b for a, b in zip(low, image, strict=True))
    return xp.slice(out, (0, 0, *low), (batch, columns, *stop), (1,) * (n + 2))


@rule("DeformConv", like=[Windows])
def deform_conv(
    xp: Any, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None, *, group: int = 1, offset_group: int = 1,
    **options: Any,
) -> Any:  # fmt: skip
    """Convolve (N, C, H, W) with taps moved by offsets, read bilinearly (Dai and others 2017)."""
    from tensorgraft.frontends.onnx.rules.resize import bilinear_at

    step, gaps, padding = Windows(**options).of(2)
    batch, channels, height, width = x.shape
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    offsets = xp.reshape(offset, (batch, offset_group, kh * kw, 2, oh, ow))
    base = np.stack(np.broadcast_arrays(
        (np.arange(kh) * gaps[0])[:, None, None, None] + (np.arange(oh) * step[0] - padding[0][0])[:, None],
        (np.arange(kw) * gaps[1])[None, :, None, None] + (np.arange(ow) * step[1] - padding[1][0]),
    )).reshape(2, kh * kw, oh, ow).transpose(1, 0, 2, 3)  # fmt: skip
    at = xp.add(offsets, xp.asarray(base.astype(xp.dtype_of(x))))
    rows = xp.reshape(x, (batch * offset_group, channels // offset_group, height, width))
    places = xp.reshape(at, (batch * offset_group, kh * kw, 2, oh, ow))
    y, z = xp.squeeze(xp.take_slice(places, 2, 0, 1), 2), xp.squeeze(xp.take_slice(places, 2, 1, 2), 2)
    read = bilinear_at(xp, rows, y, z)  # (N G, C / G, taps, oh, ow)
    if mask is not None:
        weights = xp.reshape(mask, (batch * offset_group, 1, kh * kw, oh, ow))
        read = xp.multiply(read, weights)
    columns = xp.reshape(read, (batch, group, channels // group * kh * kw, oh * ow))
    filters = xp.reshape(w, (group, w.shape[0] // group, channels // group * kh * kw))
    out = xp.reshape(xp.matmul(filters, columns), (batch, w.shape[0], oh, ow))
    return out if b is None else xp.add(out, xp.reshape(b, (w.shape[0], 1, 1)))
