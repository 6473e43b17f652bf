"""Discrete Fourier transforms over the last axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


def _along(name: str, axes: int) -> Callable[..., Array]:
    def transform(xp: Backend, x: Array) -> Array:
        for axis in range(1, axes + 1):
            x = getattr(xp, name)(x, axis=xp.ndim(x) - axis)
        return x

    return transform


def _fitted(xp: Backend, x: Array, extents: tuple[int, ...]) -> Array:
    """The last axes cut off, or filled with zeros."""
    shape = xp.shape(x)
    kept = shape[: len(shape) - len(extents)]
    config = [(0, 0, 0)] * len(kept) + [(0, n - m, 0) for n, m in zip(extents, shape[len(kept) :], strict=True)]
    return xp.pad(x, 0, config)


def _real(axes: int) -> Callable[..., Array]:
    def transform(xp: Backend, x: Array, length: np.ndarray) -> Array:
        x = _fitted(xp, x, ints(length))
        x = xp.rfft(x, axis=xp.ndim(x) - 1)
        for axis in range(2, axes + 1):
            x = xp.fft(x, axis=xp.ndim(x) - axis)
        return x

    return transform


def _real_back(axes: int) -> Callable[..., Array]:
    def transform(xp: Backend, x: Array, length: np.ndarray) -> Array:
        *extents, last = ints(length)
        if not last:
            return xp.zeros((*xp.shape(x)[:-axes], *extents, 0), dtypes.real_dtype(xp.dtype_of(x)))
        x = _fitted(xp, x, (*extents, last // 2 + 1))
        for axis in range(2, axes + 1):
            x = xp.ifft(x, axis=xp.ndim(x) - axis)
        return xp.irfft(x, n=last, axis=xp.ndim(x) - 1)

    return transform


for _axes, _end in ((1, ""), (2, "2D"), (3, "3D")):
    rule(f"FFT{_end}")(_along("fft", _axes))
    rule(f"IFFT{_end}")(_along("ifft", _axes))
    rule(f"RFFT{_end}", known=("length",))(_real(_axes))
    rule(f"IRFFT{_end}", known=("length",))(_real_back(_axes))
