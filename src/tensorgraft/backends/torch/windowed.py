"""Convolution and windowed reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from tensorgraft.backends.torch.linalg import dot_general
from tensorgraft.backends.torch.precision import INTEGERS, NUMPY, as_bits, from_bits, from_ordered, full, ordered, widen
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.windowed import window_count

Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]
Tensor = torch.Tensor

_CONV: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_GREAT = 64  # elements of a window from which a convolution is computed as the weight gradient of another one


def _windows(x: Tensor, axis: int, window: int, stride: int, dilation: int) -> Tensor:
    """Return a view in which `axis` counts windows, and a new last axis the places in each."""
    return x.unfold(axis, dilation * (window - 1) + 1, stride)[..., ::dilation]


def _by_windows(x: Tensor, w: Tensor, strides: Ints, dilation: Ints, groups: int) -> Tensor:
    """Compute a convolution as one product, for the dtypes and numbers of axes that PyTorch has no convolution of."""
    n, channels = x.shape[:2]
    x = x.unflatten(1, (groups, channels // groups))  # (n, g, c, spatial...)
    w = w.unflatten(0, (groups, w.shape[0] // groups))  # (g, o, c, taps...)
    d = w.ndim - 3
    for axis, (k, stride, dilation_) in enumerate(zip(w.shape[3:], strides, dilation, strict=True)):
        x = _windows(x, 3 + axis, k, stride, dilation_)
    out = x.shape[3 : 3 + d]
    taps = tuple(range(3, 3 + d))
    product = dot_general(w, x, ((2, *taps), (2, *(t + d for t in taps))), ((0,), (1,)), x.dtype)  # (g, o, n, out...)
    return product.movedim(2, 0).reshape(n, w.shape[0] * w.shape[1], *out)


def _transposed(x: Tensor, w: Tensor, padding: Pads, dilation: Ints, rhs_dilation: Ints, groups: int) -> Tensor:
    """Compute a convolution of stride 1 of a dilated image by PyTorch's transposed convolution."""
    taps = w.shape[2:]
    n = len(taps)
    w = w.flip(tuple(range(2, n + 2))).unflatten(0, (groups, w.shape[0] // groups)).transpose(1, 2).flatten(0, 1)
    # PyTorch's has full padding, reduced by the same number on both sides
    pads = [(d * (k - 1) - a, d * (k - 1) - b) for (a, b), k, d in zip(padding, taps, rhs_dilation, strict=True)]
    symmetric = tuple(max(min(a, b), 0) for a, b in pads)
    y = _TRANSPOSED[n](x, w, None, dilation, symmetric, 0, groups, rhs_dilation)
    ends = [(p - a, p - b) for (a, b), p in zip(pads, symmetric, strict=True)]
    if any(e > 0 for low_high in ends for e in low_high):
        y = torch.constant_pad_nd(y, [max(e, 0) for low_high in reversed(ends) for e in low_high])
    inner = (slice(max(-low, 0), m + min(high, 0)) for (low, high), m in zip(ends, y.shape[2:], strict=True))
    return y[(slice(None), slice(None), *inner)]


def _as_weights(x: Tensor, w: Tensor, out: Ints, strides: Ints, dilation: Ints, groups: int) -> Tensor:
    """Compute a convolution with a window larger than its output as the weight gradient of another convolution, which
    has a fast kernel: its channels are the batch here. `groups` divides the batch."""
    extents = [d * (k - 1) + 1 + s * (o - 1) for k, o, s, d in zip(w.shape[2:], out, strides, dilation, strict=True)]
    x = x[(slice(None), slice(None), *map(slice, extents))].transpose(0, 1)
    weights = full((w.shape[0], x.shape[1] // groups, *out), 0.0, dtype=x.dtype, device=x.device)
    n = len(out)
    gradient = torch.ops.aten.convolution_backward(
        w.transpose(0, 1), x, weights, None, dilation, (0,) * n, strides, False, (0,) * n, groups, (False, True, False)
    )[1]
    return gradient.transpose(0, 1)


class TorchWindowed:
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
        if dtype == torch.bool:  # a sum of ands is an or
            args = (strides, padding, lhs_dilation, rhs_dilation, groups, batch_groups)
            return self.convolution(x.to(torch.float32), w.to(torch.float32), *args) > 0
        if x.device.type == "cpu":  # narrow convolutions on the CPU are no faster, and some are less exact
            x, w = widen(x), widen(w)
        x, w = as_bits(x), as_bits(w)
        native = x.dtype.is_floating_point and 1 <= w.ndim - 2 <= 3 and x.numel() > 0 < w.numel()
        extents = tuple((n - 1) * d + 1 + sum(p) for n, d, p in zip(x.shape[2:], lhs_dilation, padding, strict=True))
        out = tuple(map(window_count, extents, w.shape[2:], strides, rhs_dilation))
        native = native and all(out)
        if native and batch_groups == 1 and max(lhs_dilation) > 1 == max(strides):
            return _transposed(x, w, padding, tuple(lhs_dilation), tuple(rhs_dilation), groups).to(dtype)
        config = [(0, 0, 0)] * 2 + [(*p, interior - 1) for p, interior in zip(padding, lhs_dilation, strict=True)]
        if any(map(any, config)):
            x = self.pad(x, 0, config)  # type: ignore[attr-defined]
        if native and groups == 1 and math.prod(w.shape[2:]) >= max(4 * math.prod(out), _GREAT):
            return _as_weights(x, w, out, tuple(strides), tuple(rhs_dilation), batch_groups).to(dtype)
        if batch_groups > 1:  # groups of the batch are groups of channels
            x = x.unflatten(0, (batch_groups, x.shape[0] // batch_groups)).movedim(0, 1).flatten(1, 2)
            groups = batch_groups
        out = tuple(map(window_count, x.shape[2:], w.shape[2:], strides, rhs_dilation))
        shape = (x.shape[0], w.shape[0], *out)
        if not math.prod(shape) or not w.numel():
            y = torch.zeros(shape, dtype=x.dtype, device=x.device)
        elif x.dtype in INTEGERS or len(out) > 3:
            y = _by_windows(x, w, strides, rhs_dilation, groups)
        elif not out:
            y = functional.conv1d(x.unsqueeze(2), w.unsqueeze(2), groups=groups).squeeze(2)
        else:
            y = _CONV[len(out)](x, w, None, strides, 0, rhs_dilation, groups)
        return from_bits(y, dtype) if dtype in INTEGERS else y.to(dtype)

    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
    ) -> Array:
        dtype = x.dtype
        if kind == "sum":
            operand = widen(as_bits(x))
            operand = self._windowed(
                operand, lambda v: torch.sum(v, -1, dtype=v.dtype), 0, window, strides, padding, window_dilation
            )
            return from_bits(operand, dtype) if dtype in INTEGERS else operand.to(dtype)
        operand = ordered(x)
        reduce, bound = (torch.amax, dtypes.lowest) if kind == "max" else (torch.amin, dtypes.highest)
        identity = bound(NUMPY[operand.dtype])
        operand = self._windowed(operand, lambda v: reduce(v, -1), identity, window, strides, padding, window_dilation)
        return from_ordered(operand, dtype)

    def _windowed(
        self,
        x: Tensor,
        reduce: Callable[[Tensor], Tensor],
        identity: Any,
        window: Ints,
        strides: Ints,
        padding: Pads,
        window_dilation: Ints,
    ) -> Tensor:
        """Rectangular windows are separable: one reduction an axis."""
        if any(map(any, padding)):
            x = self.pad(x, identity, [(*p, 0) for p in padding])  # type: ignore[attr-defined]
        out = tuple(map(window_count, x.shape, window, strides, window_dilation))
        if 0 in out:
            return x.new_zeros(out)
        for axis, (k, stride, dilation_) in enumerate(zip(window, strides, window_dilation, strict=True)):
            if k > 1 or stride > 1:
                x = reduce(_windows(x, axis, k, stride, dilation_))
        return x
