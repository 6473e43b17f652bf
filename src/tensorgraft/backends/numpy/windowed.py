"""Convolution as one matrix product over strided windows; windowed reductions, an axis at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorgraft.backends.numpy.precision import widen
from tensorgraft.backends.numpy.products import matmul
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.windowed import window_count

Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]

_BLOCK = 1 << 25  # bytes of windows that are copied out at a time
_SMALL = 64  # below so many outputs an image, the batch is multiplied as one matrix


def _correlate(windows: Array, w: Array, channels_last: bool) -> Array:
    """(g, n, c, out..., k...) with (g, o, c, k...) -> (g, n, o, prod(out)), by one batched product."""
    groups, n, c = windows.shape[:3]
    d = w.ndim - 3
    out, taps = windows.shape[3 : 3 + d], windows.shape[3 + d :]
    weights = w.reshape(groups, w.shape[1], c * math.prod(taps))
    spatial = tuple(range(3, 3 + d))
    kernel = tuple(range(3 + d, 3 + 2 * d))
    if channels_last:
        rows = windows.transpose(0, 1, *spatial, 2, *kernel).reshape(groups, n * math.prod(out), weights.shape[2])
        products = matmul(rows, weights.swapaxes(1, 2)).reshape(groups, n, math.prod(out), w.shape[1])
        return products.swapaxes(2, 3)
    columns = windows.transpose(0, 1, 2, *kernel, *spatial).reshape(groups, n, weights.shape[2], math.prod(out))
    return matmul(weights[:, None], columns)


class NumpyWindowed:
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
        dtype = x.dtype
        x, w = widen(x), widen(w)
        config = [(0, 0, 0)] * 2 + [(*p, interior - 1) for p, interior in zip(padding, lhs_dilation, strict=True)]
        if any(map(any, config)):
            x = self.pad(x, 0, config)  # type: ignore[attr-defined]
        x = np.ascontiguousarray(x)
        group_count = groups * batch_groups
        n, c = x.shape[0] // batch_groups, x.shape[1] // groups
        # groups of channels, or of the batch, come first: (g, n, c, spatial...)
        x = x.reshape(batch_groups, n, groups, c, *x.shape[2:]).swapaxes(1, 2).reshape(group_count, n, c, *x.shape[2:])
        w = w.reshape(group_count, w.shape[0] // group_count, *w.shape[1:])
        taps = w.shape[3:]
        out = tuple(map(window_count, x.shape[3:], taps, strides, rhs_dilation))
        out_rows = np.zeros((n, group_count, w.shape[1], math.prod(out)), x.dtype)
        if out_rows.size and w.size:
            s = x.strides
            windows = as_strided(
                x,
                (group_count, n, c, *out, *taps),
                (
                    *s[:3],
                    *(a * b for a, b in zip(s[3:], strides, strict=True)),
                    *(a * b for a, b in zip(s[3:], rhs_dilation, strict=True)),
                ),
                writeable=False,
            )
            bytes_per_image = windows.size // n * x.itemsize
            step = max(_BLOCK // bytes_per_image, 1)
            last = math.prod(out) < _SMALL
            for at in range(0, n, step):
                piece = _correlate(windows[:, at : at + step], w, last)
                out_rows[at : at + step] = piece.swapaxes(0, 1)
        return out_rows.reshape(n, group_count * w.shape[1], *out).astype(dtype, copy=False)

    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
    ) -> Array:
        dtype = x.dtype
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        identity = {"sum": lambda _: 0, "max": dtypes.lowest, "min": dtypes.highest}[kind]
        x = widen(x)
        if any(map(any, padding)):
            x = self.pad(x, identity(x.dtype), [(*p, 0) for p in padding])  # type: ignore[attr-defined]
        # rectangular windows are separable: the sum of the extents in passes, not their product
        for axis, (k, stride, window_step) in enumerate(zip(window, strides, window_dilation, strict=True)):
            if k == 1 and stride == 1:
                continue
            n = window_count(x.shape[axis], k, stride, window_step)
            lead = (slice(None),) * axis
            reduced = None
            for at in range(0, k * window_step, window_step):
                piece = x[(*lead, slice(at, at + (n - 1) * stride + 1 if n else at, stride))]
                reduced = piece.copy() if reduced is None else combine(reduced, piece, out=reduced)
            x = reduced
        return x.astype(dtype, copy=False)
