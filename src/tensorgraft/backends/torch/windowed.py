"""Convolution and windowed reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from tensorgraft.backends.torch.linalg import dot_general
from tensorgraft.backends.torch.precision import INTEGERS, NUMPY, as_bits, from_bits, from_ordered, ordered, widen
from tensorgraft.hub import dtypes

Array = Any
Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]
Tensor = torch.Tensor

_CONV: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _extent(n: int, window: int, stride: int, dilation: int) -> int:
    """How many windows fit on an axis of `n`."""
    return max((n - dilation * (window - 1) - 1) // stride + 1, 0)


def _windows(x: Tensor, axis: int, window: int, stride: int, dilation: int) -> Tensor:
    """A view in which `axis` counts windows, and a new last axis the places in each."""
    return x.unfold(axis, dilation * (window - 1) + 1, stride)[..., ::dilation]


def _by_windows(x: Tensor, w: Tensor, strides: Ints, dilation: Ints, groups: int) -> Tensor:
    """A convolution as one product, for the dtypes and numbers of axes that PyTorch has no convolution of."""
    n, channels = x.shape[:2]
    x = x.unflatten(1, (groups, channels // groups))  # (n, g, c, spatial...)
    w = w.unflatten(0, (groups, w.shape[0] // groups))  # (g, o, c, taps...)
    d = w.ndim - 3
    for axis, (k, stride, gap) in enumerate(zip(w.shape[3:], strides, dilation, strict=True)):
        x = _windows(x, 3 + axis, k, stride, gap)
    out = x.shape[3 : 3 + d]
    taps = tuple(range(3, 3 + d))
    found = dot_general(w, x, ((2, *taps), (2, *(t + d for t in taps))), ((0,), (1,)), x.dtype)  # (g, o, n, out...)
    return found.movedim(2, 0).reshape(n, w.shape[0] * w.shape[1], *out)


def _sum(x: Tensor) -> Tensor:
    return torch.sum(x, -1, dtype=x.dtype)


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
        if x.device.type == "cpu":  # whose narrow convolutions are no faster, and some of them less exact
            x, w = widen(x), widen(w)
        x, w = as_bits(x), as_bits(w)
        config = [(0, 0, 0)] * 2 + [(*p, gap - 1) for p, gap in zip(padding, lhs_dilation, strict=True)]
        if any(map(any, config)):
            x = self.pad(x, 0, config)  # type: ignore[attr-defined]
        if batch_groups > 1:  # groups of the batch are groups of channels
            x = x.unflatten(0, (batch_groups, x.shape[0] // batch_groups)).movedim(0, 1).flatten(1, 2)
            groups = batch_groups
        out = tuple(map(_extent, x.shape[2:], w.shape[2:], strides, rhs_dilation))
        shape = (x.shape[0], w.shape[0], *out)
        if not math.prod(shape) or not w.numel():
            found = torch.zeros(shape, dtype=x.dtype, device=x.device)
        elif x.dtype in INTEGERS or len(out) > 3:
            found = _by_windows(x, w, strides, rhs_dilation, groups)
        elif not out:
            found = functional.conv1d(x.unsqueeze(2), w.unsqueeze(2), groups=groups).squeeze(2)
        else:
            found = _CONV[len(out)](x, w, None, strides, 0, rhs_dilation, groups)
        return from_bits(found, dtype) if dtype in INTEGERS else found.to(dtype)

    def reduce_window(
        self, x: Array, /, kind: str, window: Ints, strides: Ints, padding: Pads, window_dilation: Ints
    ) -> Array:
        dtype = x.dtype
        if kind == "sum":
            found = widen(as_bits(x))
            found = self._windowed(
                found, lambda v: torch.sum(v, -1, dtype=v.dtype), 0, window, strides, padding, window_dilation
            )
            return from_bits(found, dtype) if dtype in INTEGERS else found.to(dtype)
        found = ordered(x)
        reduce, bound = (torch.amax, dtypes.lowest) if kind == "max" else (torch.amin, dtypes.highest)
        identity = bound(NUMPY[found.dtype])
        found = self._windowed(found, lambda v: reduce(v, -1), identity, window, strides, padding, window_dilation)
        return from_ordered(found, dtype)

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
        out = tuple(map(_extent, x.shape, window, strides, window_dilation))
        if 0 in out:
            return x.new_zeros(out)
        for axis, (k, stride, gap) in enumerate(zip(window, strides, window_dilation, strict=True)):
            if k > 1 or stride > 1:
                x = reduce(_windows(x, axis, k, stride, gap))
        return x
