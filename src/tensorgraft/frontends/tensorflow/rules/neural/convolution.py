"""Convolutions, and their gradients, which are operations of TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Ints = tuple[int, ...]
Pads = list[tuple[int, int]]


def spatial(per_axis: Sequence[int], data_format: str) -> Ints:
    """Return the entries for the spatial axes of a sequence that has a number for each axis."""
    return tuple(per_axis[2:] if data_format.startswith("NC") else per_axis[1:-1])


def pads(
    extents: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], padding: str,
    explicit: Sequence[int] = (), data_format: str = "NHWC",
) -> Pads:  # fmt: skip
    """Return the padding (before, after) of each spatial axis."""
    if padding == "VALID":
        return [(0, 0)] * len(extents)
    if padding == "EXPLICIT":
        pairs = [(explicit[i], explicit[i + 1]) for i in range(0, len(explicit), 2)]
        return pairs[2:] if data_format.startswith("NC") else pairs[1:-1]
    pad_widths = []
    for n, k, s, d in zip(extents, window, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pad_widths.append((total // 2, total - total // 2))
    return pad_widths


def channels_first(xp: Backend, x: Array, data_format: str) -> Array:
    n = xp.ndim(x)
    return x if data_format.startswith("NC") else xp.permute_dims(x, (0, n - 1, *range(1, n - 1)))


def channels_as(xp: Backend, x: Array, data_format: str) -> Array:
    n = xp.ndim(x)
    return x if data_format.startswith("NC") else xp.permute_dims(x, (0, *range(2, n), 1))


def _filters(xp: Backend, w: Array) -> Array:
    """Return filters (taps, in, out) as (out, in, taps)."""
    n = xp.ndim(w)
    return xp.permute_dims(w, (n - 1, n - 2, *range(n - 2)))


def _filters_back(xp: Backend, w: Array) -> Array:
    n = xp.ndim(w)
    return xp.permute_dims(w, (*range(2, n), 1, 0))


class ConvolutionForm:
    """Strides, dilations and padding of a convolution, from its attributes."""

    def __init__(
        self, extents: Sequence[int], window: Sequence[int], strides: Ints, dilations: Ints, padding: str,
        explicit: Ints, data_format: str,
    ) -> None:  # fmt: skip
        self.extents, self.window = tuple(extents), tuple(window)
        self.strides = spatial(strides, data_format)
        self.dilations = spatial(dilations, data_format) if dilations else (1,) * len(self.strides)
        self.pads = pads(self.extents, self.window, self.strides, self.dilations, padding, explicit, data_format)

    def apply(self, xp: Backend, x: Array, w: Array, groups: int) -> Array:
        return xp.convolution(x, w, self.strides, self.pads, (1,) * len(self.strides), self.dilations, groups)

    def inputs(self, xp: Backend, w: Array, d: Array, groups: int) -> Array:
        """Return the derivative in the images: `d` spread by the strides, convolved with the mirrored filters."""
        o, c, *taps = xp.shape(w)
        n = len(taps)
        parts = xp.swapaxes(xp.reshape(w, (groups, o // groups, c, *taps)), 1, 2)
        mirrored = xp.flip(xp.reshape(parts, (groups * c, o // groups, *taps)), tuple(range(2, n + 2)))
        pad_widths = []
        rows = zip(self.extents, xp.shape(d)[2:], taps, self.strides, self.dilations, self.pads, strict=True)
        for size, out, k, s, dilation, (low, _) in rows:
            extent = dilation * (k - 1)
            pad_widths.append((extent - low, size - ((out - 1) * s + 1) + low))
        return xp.convolution(d, mirrored, (1,) * n, pad_widths, self.strides, self.dilations, groups)

    def weights(self, xp: Backend, x: Array, d: Array, groups: int) -> Array:
        low = tuple(low for low, _ in self.pads)
        return xp.convolution_weights(x, d, self.window, self.strides, low, self.dilations, groups)


def _form(
    x_shape: Sequence[int], w_shape: Sequence[int], strides: Ints, dilations: Ints, padding: str, explicit: Ints,
    data_format: str,
) -> ConvolutionForm:  # fmt: skip
    return ConvolutionForm(
        spatial(x_shape, data_format), w_shape[:-2], strides, dilations, padding, explicit, data_format
    )


def _channels(shape: Sequence[int], data_format: str) -> int:
    return shape[1] if data_format.startswith("NC") else shape[-1]


@rule("Conv2D", "Conv3D")
def convolution(
    xp: Backend, x: Array, w: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    form = _form(xp.shape(x), xp.shape(w), strides, dilations, padding, explicit_paddings, data_format)
    groups = _channels(xp.shape(x), data_format) // xp.shape(w)[-2]
    out = form.apply(xp, channels_first(xp, x, data_format), _filters(xp, w), groups)
    return channels_as(xp, out, data_format)


@rule("Conv")
def convolution_of_any_rank(
    xp: Backend, x: Array, w: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "CHANNELS_LAST", batch_dims: int = 1, groups: int = 1,
) -> Array:  # fmt: skip
    batch_shape = xp.shape(x)[:batch_dims]
    x = xp.reshape(x, (math.prod(batch_shape), *xp.shape(x)[batch_dims:]))
    form = "NHWC" if data_format == "CHANNELS_LAST" else "NCHW"
    out = convolution(
        xp, x, w, strides=strides, padding=padding, dilations=dilations, explicit_paddings=explicit_paddings,
        data_format=form,
    )  # fmt: skip
    return xp.reshape(out, (*batch_shape, *xp.shape(out)[1:]))


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", known=("sizes",))
def convolution_inputs(
    xp: Backend, sizes: np.ndarray, w: Array, d: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    shape = ints(sizes)
    if len(shape) < xp.ndim(d):  # the spatial extents alone
        batch_size, channels = xp.shape(d)[0], xp.shape(w)[-2]
        shape = (batch_size, channels, *shape) if data_format.startswith("NC") else (batch_size, *shape, channels)
    form = _form(shape, xp.shape(w), strides, dilations, padding, explicit_paddings, data_format)
    groups = _channels(shape, data_format) // xp.shape(w)[-2]
    out = form.inputs(xp, _filters(xp, w), channels_first(xp, d, data_format), groups)
    return channels_as(xp, out, data_format)


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", known=("sizes",))
def convolution_filters(
    xp: Backend, x: Array, sizes: np.ndarray, d: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    shape = ints(sizes)
    form = _form(xp.shape(x), shape, strides, dilations, padding, explicit_paddings, data_format)
    groups = _channels(xp.shape(x), data_format) // shape[-2]
    out = form.weights(xp, channels_first(xp, x, data_format), channels_first(xp, d, data_format), groups)
    return _filters_back(xp, out)


# ---- each channel by itself ------------------------------------------------------------------------------------------


def _depthwise(xp: Backend, w: Array) -> Array:
    """Return depthwise filters (h, w, channels, several) as (channels * several, 1, h, w)."""
    h, width, c, m = xp.shape(w)
    return xp.reshape(xp.permute_dims(w, (2, 3, 0, 1)), (c * m, 1, h, width))


@rule("DepthwiseConv2dNative")
def depthwise(
    xp: Backend, x: Array, w: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    form = _form(xp.shape(x), xp.shape(w), strides, dilations, padding, explicit_paddings, data_format)
    out = form.apply(xp, channels_first(xp, x, data_format), _depthwise(xp, w), xp.shape(w)[2])
    return channels_as(xp, out, data_format)


@rule("DepthwiseConv2dNativeBackpropInput", known=("sizes",))
def depthwise_inputs(
    xp: Backend, sizes: np.ndarray, w: Array, d: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    form = _form(ints(sizes), xp.shape(w), strides, dilations, padding, explicit_paddings, data_format)
    out = form.inputs(xp, _depthwise(xp, w), channels_first(xp, d, data_format), xp.shape(w)[2])
    return channels_as(xp, out, data_format)


@rule("DepthwiseConv2dNativeBackpropFilter", known=("sizes",))
def depthwise_filters(
    xp: Backend, x: Array, sizes: np.ndarray, d: Array, *, strides: Ints, padding: str, dilations: Ints = (),
    explicit_paddings: Ints = (), data_format: str = "NHWC",
) -> Array:  # fmt: skip
    h, width, c, m = ints(sizes)
    form = _form(xp.shape(x), (h, width, c, m), strides, dilations, padding, explicit_paddings, data_format)
    out = form.weights(xp, channels_first(xp, x, data_format), channels_first(xp, d, data_format), c)
    return xp.permute_dims(xp.reshape(out, (c, m, h, width)), (2, 3, 0, 1))


def window_counts(extents: Sequence[int], window: Ints, strides: Ints, pad_widths: Pads) -> np.ndarray:
    """Return the number of elements in each window that are no padding."""
    counts = np.ones((), np.int64)
    for n, k, s, (low, high) in zip(extents, window, strides, pad_widths, strict=True):
        first = np.arange((n + low + high - k) // s + 1) * s - low
        counts = np.multiply.outer(counts, np.minimum(first + k, n) - np.maximum(first, 0))
    return counts


def inside_of(
    extents: Sequence[int], starts: Sequence[int], out: Sequence[int], strides: Sequence[int], pad_widths: Pads
) -> np.ndarray:
    """Return a mask of the results for which a tap at `starts` in the padded array sees no padding: (*out,)."""
    mask = np.ones((), bool)
    for n, i, o, s, (low, _) in zip(extents, starts, out, strides, pad_widths, strict=True):
        at = i + np.arange(o) * s - low
        mask = np.logical_and.outer(mask, (at >= 0) & (at < n))
    return mask


def positions(window: Ints) -> list[Ints]:
    return [tuple(int(i) for i in at) for at in np.ndindex(*window)] if math.prod(window) else []
