"""Fourier transforms over several axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

NONE, BY_ROOT_N, BY_N = 0, 1, 2  # ATen's normalisations


def _scaled(xp: Any, x: Array, n: int, normalization: int, divided: bool) -> Array:
    """Return `x` times ATen's factor for `n` points; `divided`: the hub has divided by n already."""
    exponent = {NONE: 0.0, BY_ROOT_N: -0.5, BY_N: -1.0}[normalization] + divided
    return x if exponent == 0 else xp.multiply(x, float(n) ** exponent)


def _points(xp: Any, x: Array, dim: Sequence[int]) -> int:
    return math.prod(xp.shape(x)[d] for d in dim)


def _widened(xp: Any, x: Array) -> Array:
    """Return float16 as float32, others as they are. Raises NotImplementedError for dtypes that CUDA lacks, too."""
    if xp.dtype_of(x) == dtypes.float16:
        return xp.astype(x, dtypes.float32)
    if dtypes.real_dtype(xp.dtype_of(x)) not in (dtypes.float32, dtypes.float64):
        raise NotImplementedError(f"Fourier transforms of {xp.dtype_of(x)}")
    return x


@kernel("_fft_c2c")
def _c2c(xp: Any, x: Array, dim: list[int], normalization: int, forward: bool) -> Array:
    x = _widened(xp, x)
    for d in dim:
        x = (xp.fft if forward else xp.ifft)(x, axis=d % xp.ndim(x))
    return _scaled(xp, x, _points(xp, x, dim), normalization, not forward)


@kernel("_fft_r2c")
def _r2c(xp: Any, x: Array, dim: list[int], normalization: int, onesided: bool) -> Array:
    x = _widened(xp, x)
    if not onesided:
        return _c2c(xp, xp.astype(x, dtypes.complex_dtype(xp.dtype_of(x))), dim, normalization, True)
    n = _points(xp, x, dim)
    out = xp.rfft(x, axis=dim[-1] % xp.ndim(x))
    return _scaled(xp, _c2c(xp, out, dim[:-1], NONE, True), n, normalization, False)


@kernel("_fft_c2r")
def _c2r(xp: Any, x: Array, dim: list[int], normalization: int, last_dim_size: int) -> Array:
    x = _widened(xp, x)
    last, n = dim[-1] % xp.ndim(x), last_dim_size
    x = _c2c(xp, x, dim[:-1], BY_N, False)
    length, expected = xp.shape(x)[last], n // 2 + 1
    if length > expected:
        x = xp.take_slice(x, last, 0, expected)
    elif length < expected:
        x = xp.pad(x, 0, [(0, (expected - length) * (a == last), 0) for a in range(xp.ndim(x))])
    out = xp.irfft(x, n, axis=last)
    return _scaled(xp, out, _points(xp, out, dim), normalization, True)
