"""Rules of convolution and of windowed reductions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.hub.array import Array

Ints = tuple[int, ...]


def _convolution(
    xp: Any,
    y: Array,
    g: Array,
    x: Array,
    w: Array,
    strides: Ints,
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    groups: int = 1,
    batch_groups: int = 1,
) -> list[Any]:
    if batch_groups != 1:  # groups of the batch are groups of channels of a smaller batch
        batch, c, *spatial = xp.shape(x)
        parts = xp.reshape(x, (batch_groups, batch // batch_groups, c, *spatial))
        wide = xp.reshape(xp.swapaxes(parts, 0, 1), (batch // batch_groups, batch_groups * c, *spatial))
        of_images, of_weights = _convolution(
            xp, y, g, wide, w, strides, padding, lhs_dilation, rhs_dilation, batch_groups
        )

        def batched() -> Array:
            images = xp.reshape(of_images(), (batch // batch_groups, batch_groups, c, *spatial))
            return xp.reshape(xp.swapaxes(images, 0, 1), (batch, c, *spatial))

        return [batched, of_weights]
    n = len(strides)
    spans = []  # for each axis: dilated input, dilated window, dilated output
    for i, k, o, s, ld, rd in zip(
        xp.shape(x)[2:], xp.shape(w)[2:], xp.shape(g)[2:], strides, lhs_dilation, rhs_dilation, strict=True
    ):
        spans.append(((i - 1) * ld + 1, (k - 1) * rd + 1, (o - 1) * s + 1))

    def images() -> Array:
        o, c = xp.shape(w)[:2]
        taps = xp.shape(w)[2:]
        parts = xp.reshape(w, (groups, o // groups, c, *taps))
        transposed = xp.reshape(xp.swapaxes(parts, 1, 2), (groups * c, o // groups, *taps))
        transposed = xp.flip(transposed, tuple(range(2, n + 2)))
        pads = []
        for (low, _), (i, k, out) in zip(padding, spans, strict=True):
            before = k - low - 1
            pads.append((before, i + k - 1 - out - before))
        return xp.convolution(g, transposed, lhs_dilation, pads, strides, rhs_dilation, groups)

    def weights() -> Array:
        pads = [(low, k + out - i - low - 1) for (low, _), (i, k, out) in zip(padding, spans, strict=True)]
        lhs, rhs = xp.swapaxes(x, 0, 1), xp.swapaxes(g, 0, 1)
        return xp.swapaxes(xp.convolution(lhs, rhs, rhs_dilation, pads, lhs_dilation, strides, 1, groups), 0, 1)

    return [images, weights]


def _reduce_window(
    xp: Any,
    y: Array,
    g: Array,
    x: Array,
    kind: str,
    window: Ints,
    strides: Ints,
    padding: Sequence[tuple[int, int]],
    window_dilation: Ints,
) -> list[Any]:
    shape, dtype = xp.shape(x), xp.dtype_of(x)
    zero = xp.full((), 0, dtype)

    def from_sum() -> Array:
        config = []
        for n, o, k, s, (low, _), d in zip(shape, xp.shape(g), window, strides, padding, window_dilation, strict=True):
            extent = (k - 1) * d
            before = extent - low
            config.append((before, n + extent - before - ((o - 1) * s + 1), s - 1))
        wide = xp.pad(g, zero, config)
        return xp.reduce_window(wide, "sum", window, (1,) * len(shape), [(0, 0)] * len(shape), window_dilation)

    def from_extremum() -> Array:
        """Pass each window's cotangent to the first position of its extremum."""
        edge = [(low, high, 0) for low, high in padding]
        lowest = xp.full((), float("-inf" if kind == "max" else "inf"), dtype)
        padded = xp.pad(x, lowest, edge)
        total = xp.zeros_like(padded)
        left = g  # not given away yet
        for at in itertools.product(*map(range, window)):
            start = tuple(p * d for p, d in zip(at, window_dilation, strict=True))
            stop = tuple(b + (o - 1) * s + 1 for b, o, s in zip(start, xp.shape(g), strides, strict=True))
            window_elements = xp.slice(padded, start, stop, strides)
            is_extreme = xp.equal(window_elements, y)
            add = xp.where(is_extreme, left, zero)
            left = xp.where(is_extreme, zero, left)
            before = xp.slice(total, start, stop, strides)
            total = xp.slice_update(total, xp.add(before, add), start, strides)
        offsets = tuple(low for low, _ in padding)
        return xp.slice(total, offsets, tuple(a + n for a, n in zip(offsets, shape, strict=True)), (1,) * len(shape))

    return [from_sum if kind == "sum" else from_extremum]


RULES: dict[str, Callable[..., Any]] = {"convolution": _convolution, "reduce_window": _reduce_window}
