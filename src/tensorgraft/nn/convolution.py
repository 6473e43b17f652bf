"""Convolutions over any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorgraft.array_api as xp
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.extensions import neural
from tensorgraft.nn import initial
from tensorgraft.transforms.module import Module, field

Ints = int | Sequence[int]
Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]
_MODES = {"ZEROS": None, "REFLECT": "reflect", "REPLICATE": "edge", "CIRCULAR": "wrap"}


class Conv(Module):
    """Cross-correlation, for x (in_channels, spatial...) or a batch of them.

    Weights are uniform in +-1/sqrt(in_channels / groups * kernel elements).
    """

    num_spatial_dims: int = field(static=True)
    weight: Array  # (out_channels, in_channels / groups, *kernel_size)
    bias: Array | None  # (out_channels, 1, ...)
    in_channels: int = field(static=True)
    out_channels: int = field(static=True)
    kernel_size: tuple[int, ...] = field(static=True)
    stride: tuple[int, ...] = field(static=True)
    padding: str | tuple[tuple[int, int], ...] = field(static=True)
    dilation: tuple[int, ...] = field(static=True)
    groups: int = field(static=True)
    use_bias: bool = field(static=True)
    padding_mode: str = field(static=True)

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: Array,
    ) -> None:
        """
        Arguments:
            padding: "SAME", "SAME_LOWER", "VALID"; an int, one for each axis, or a pair for each.
            padding_mode: "ZEROS", "REFLECT", "REPLICATE" or "CIRCULAR".
        """
        n = num_spatial_dims
        self.num_spatial_dims, self.in_channels, self.out_channels = n, in_channels, out_channels
        self.kernel_size = initial.per_axis("kernel_size", kernel_size, n)
        self.stride = initial.per_axis("stride", stride, n)
        self.dilation = initial.per_axis("dilation", dilation, n)
        self.padding = _padding(padding, n)
        if in_channels % groups:
            raise ValueError(f"Conv: {in_channels} in_channels are not a multiple of {groups} groups")
        self.groups, self.use_bias, self.padding_mode = groups, use_bias, padding_mode.upper()
        if self.padding_mode not in _MODES:
            raise ValueError(f"Conv: padding_mode must be one of {', '.join(_MODES)}, got {padding_mode!r}")
        dtype = initial.dtype_or_default(dtype)
        weight_key, bias_key = initial.keys(key, 2)
        limit = 1 / math.sqrt(in_channels // groups * math.prod(self.kernel_size))
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = initial.uniform(weight_key, shape, dtype, limit)
        self.bias = initial.uniform(bias_key, (out_channels,) + (1,) * n, dtype, limit) if use_bias else None

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        n = self.num_spatial_dims
        if x.ndim not in (n + 1, n + 2) or x.shape[-n - 1] != self.in_channels:
            raise ValueError(
                f"Conv of {n} spatial axes expects ({self.in_channels}, {', '.join(['extent'] * n)}), or a batch"
                f" of them, got {x.dtype}{list(x.shape)}"
            )
        batch = x if x.ndim == n + 2 else xp.expand_dims(x, axis=0)
        pads: Any = self.padding
        if isinstance(pads, str):
            windows = [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            pads = neural.padding_of(pads, batch.shape[2:], windows, self.stride)
        mode = _MODES[self.padding_mode]
        if mode is not None:
            batch, pads = neural.padded(batch, pads, mode), ((0, 0),) * n
        out = neural.convolution(batch, self.weight, self.stride, pads, self.dilation, self.groups)
        if self.bias is not None:
            out = out + self.bias
        return out if x.ndim == n + 2 else xp.squeeze(out, axis=0)


def _padding(padding: Padding, n: int) -> str | tuple[tuple[int, int], ...]:
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
            raise ValueError(f"Conv: padding must be SAME, SAME_LOWER, VALID or numbers, got {padding!r}")
        return padding.upper()
    pads: Any = (padding,) * n if isinstance(padding, int) else tuple(padding)
    if len(pads) != n:
        raise ValueError(f"Conv: padding must be an int, {n} ints or {n} pairs, got {padding}")
    return tuple((p, p) if isinstance(p, int) else (p[0], p[1]) for p in pads)


class Conv1d(Conv):
    """`Conv` of one spatial axis, with its other arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(1, *args, **kwargs)


class Conv2d(Conv):
    """`Conv` of two spatial axes, with its other arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(2, *args, **kwargs)


class Conv3d(Conv):
    """`Conv` of three spatial axes, with its other arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(3, *args, **kwargs)
