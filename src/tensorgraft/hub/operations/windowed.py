"""Convolution and windowed reductions. Channels first: x (N, C, spatial...), weights (O, C / groups, spatial...)."""

from __future__ import annotations

from collections.abc import Sequence

from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive

Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]


def window_count(n: int, window: int, stride: int, dilation: int) -> int:
    """Return the number of windows that fit on an axis of `n`."""
    return max((n - dilation * (window - 1) - 1) // stride + 1, 0)


class Windowed:
    @primitive
    def convolution(
        self,
        x: Array,
        w: Array,
        /,
        strides: Ints,
        padding: Pads,
        lhs_dilation: Ints,
        rhs_dilation: Ints,
        groups: int = 1,
        batch_groups: int = 1,
    ) -> Array:
        """Compute lax.conv_general_dilated (cross-correlation) in the layout above, with one entry for each spatial
        axis, of which there may be any number; padding may be negative. With `batch_groups` the batch is split, and the
        outputs with it. Accumulated in at least float32."""
        raise NotImplementedError

    @primitive
    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
    ) -> Array:
        """`kind`: sum, max (NaN wins) or min over windows; one entry an axis of `x`; padded with the identity."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def window_patches(self, x: Array, window: Ints, strides: Ints, window_dilation: Ints) -> Array:
        """Return (..., prod(window), out spatial) of (..., spatial): the elements that each window over the last axes
        reads, row-major."""
        n = len(window)
        shape = self.shape(x)
        lead, spatial = shape[:-n], shape[-n:]
        out = tuple(
            (s - d * (k - 1) - 1) // t + 1 for s, k, t, d in zip(spatial, window, strides, window_dilation, strict=True)
        )
        zeros = (0,) * len(lead)
        unit_steps = (1,) * len(lead)
        pieces = []
        for at in _positions(window):
            start = tuple(p * d for p, d in zip(at, window_dilation, strict=True))
            stop = tuple(b + (o - 1) * t + 1 for b, o, t in zip(start, out, strides, strict=True))
            pieces.append(self.slice(x, zeros + start, lead + stop, unit_steps + tuple(strides)))
        return self.stack(pieces, axis=len(lead))

    def transposed_convolution(
        self, x: Array, w: Array, /, strides: Ints, padding: Ints, dilation: Ints, output_padding: Ints, groups: int = 1
    ) -> Array:
        """Compute the transpose of a convolution with respect to its input: x (N, C, ...), w (C, O / groups, ...) ->
        (N, O, ...). Strides, padding (on both sides) and dilation are those of that convolution; `output_padding` is
        added at the end."""
        c, o, *taps = self.shape(w)
        n = len(taps)
        if groups > 1:
            parts = self.reshape(w, (groups, c // groups, o, *taps))
            swapped = self.reshape(self.swapaxes(parts, 1, 2), (groups * o, c // groups, *taps))
        else:
            swapped = self.swapaxes(w, 0, 1)
        swapped = self.flip(swapped, tuple(range(2, n + 2)))
        pads = []
        for k, d, p, extra in zip(taps, dilation, padding, output_padding, strict=True):
            pad_width = d * (k - 1) - p
            pads.append((pad_width, pad_width + extra))
        return self.convolution(x, swapped, (1,) * n, pads, strides, dilation, groups)

    def convolution_weights(
        self, x: Array, grad: Array, /, window: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int = 1
    ) -> Array:
        """Return the gradient with respect to the weights (O, C / groups, window) of a convolution of x (N, C, ...) to
        grad (N, O, ...): the convolution of the one with the other, channels in the place of the batch. Padding is that
        on both sides."""
        n = len(window)
        pads = []
        extents = zip(self.shape(x)[2:], self.shape(grad)[2:], window, strides, padding, dilation, strict=True)
        for i, o, k, s, p, d in extents:
            pads.append((p, s * (o - 1) + 1 + d * (k - 1) - i - p))
        lhs, rhs = self.swapaxes(x, 0, 1), self.swapaxes(grad, 0, 1)
        weights = self.convolution(lhs, rhs, dilation, pads, (1,) * n, strides, 1, groups)
        return self.swapaxes(weights, 0, 1)


def _positions(window: Ints) -> list[Ints]:
    positions: list[Ints] = [()]
    for n in window:
        positions = [(*p, i) for p in positions for i in range(n)]
    return positions
