"""Convolution and windowed reductions. Channels first: x (N, C, spatial...), weights (O, C / groups, spatial...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.hub.primitive import primitive

Array = Any
Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]


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
        """lax.conv_general_dilated (cross-correlation) in the layout above; one entry a spatial axis, of which there
        may be any number; padding may be negative. With `batch_groups` the batch is split, and the outputs with it.
        Accumulated in at least float32."""
        raise NotImplementedError

    @primitive
    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
    ) -> Array:
        """`kind`: sum, max (NaN wins) or min over windows; one entry an axis of `x`; padded with the identity."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def window_patches(self, x: Array, window: Ints, strides: Ints, window_dilation: Ints) -> Array:
        """(..., spatial) -> (..., prod(window), out spatial): what each window over the last axes sees, row-major."""
        n = len(window)
        shape = self.shape(x)
        lead, spatial = shape[:-n], shape[-n:]
        out = tuple(
            (s - d * (k - 1) - 1) // t + 1 for s, k, t, d in zip(spatial, window, strides, window_dilation, strict=True)
        )
        zeros = (0,) * len(lead)
        ones = (1,) * len(lead)
        pieces = []
        for at in _positions(window):
            start = tuple(p * d for p, d in zip(at, window_dilation, strict=True))
            stop = tuple(b + (o - 1) * t + 1 for b, o, t in zip(start, out, strides, strict=True))
            pieces.append(self.slice(x, zeros + start, lead + stop, ones + tuple(strides)))
        return self.stack(pieces, axis=len(lead))


def _positions(window: Ints) -> list[Ints]:
    found: list[Ints] = [()]
    for n in window:
        found = [(*p, i) for p in found for i in range(n)]
    return found
