"""Fourier transforms over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


def _fit(xp: Backend, x: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Cut, or with zeros behind."""
    for n, axis in zip(sizes, axes, strict=True):
        have = xp.shape(x)[axis]
        if have > n:
            x = xp.take_slice(x, axis, 0, n)
        elif have < n:
            x = xp.pad(x, 0, [(0, n - have if a == axis else 0, 0) for a in range(xp.ndim(x))])
    return x


def _complex(xp: Backend, x: Array, rank: int, backwards: bool) -> Array:
    for axis in range(xp.ndim(x) - rank, xp.ndim(x)):
        x = xp.ifft(x, axis) if backwards else xp.fft(x, axis)
    return x


def _declare(rank: int, suffix: str) -> None:
    @rule(f"FFT{suffix}")
    def fft(xp: Backend, x: Array) -> Array:
        return _complex(xp, x, rank, False)

    @rule(f"IFFT{suffix}")
    def ifft(xp: Backend, x: Array) -> Array:
        return _complex(xp, x, rank, True)

    @rule(f"RFFT{suffix}", known=("length",))
    def rfft(xp: Backend, x: Array, length: np.ndarray, *, Tcomplex: np.dtype = dtypes.complex64) -> Array:
        last = xp.ndim(x) - 1
        x = _fit(xp, x, ints(length), range(last + 1 - rank, last + 1))
        x = xp.rfft(x, last)
        for axis in range(last - 1, last - rank, -1):
            x = xp.fft(x, axis)
        return xp.astype(x, Tcomplex)

    @rule(f"IRFFT{suffix}", known=("length",))
    def irfft(xp: Backend, x: Array, length: np.ndarray, *, Treal: np.dtype = dtypes.float32) -> Array:
        last, sizes = xp.ndim(x) - 1, ints(length)
        x = _fit(xp, x, (*sizes[:-1], sizes[-1] // 2 + 1), range(last + 1 - rank, last + 1))
        for axis in range(last + 1 - rank, last):
            x = xp.ifft(x, axis)
        return xp.astype(xp.irfft(x, sizes[-1], last), Treal)


for _rank, _suffix in ((1, ""), (2, "2D"), (3, "3D")):
    _declare(_rank, _suffix)


def _along(axes: np.ndarray, n: int) -> list[int]:
    return [a % n for a in ints(axes)]


@rule("FFTND", known=("length", "axes"))
def fft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over = _along(axes, xp.ndim(x))
    x = _fit(xp, x, ints(length), over)
    for axis in over:
        x = xp.fft(x, axis)
    return x


@rule("IFFTND", known=("length", "axes"))
def ifft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over = _along(axes, xp.ndim(x))
    x = _fit(xp, x, ints(length), over)
    for axis in over:
        x = xp.ifft(x, axis)
    return x


@rule("RFFTND", known=("length", "axes"))
def rfft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over = _along(axes, xp.ndim(x))
    x = xp.rfft(_fit(xp, x, ints(length), over), over[-1])
    for axis in over[:-1]:
        x = xp.fft(x, axis)
    return x


@rule("IRFFTND", known=("length", "axes"))
def irfft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over, sizes = _along(axes, xp.ndim(x)), ints(length)
    x = _fit(xp, x, (*sizes[:-1], sizes[-1] // 2 + 1), over)
    for axis in over[:-1]:
        x = xp.ifft(x, axis)
    return xp.irfft(x, sizes[-1], over[-1])


@rule("AudioSpectrogram")
def audio_spectrogram(
    xp: Backend, x: Array, *, window_size: int, stride: int, magnitude_squared: bool = False
) -> Array:
    """(samples, channels) -> (channels, frames, bins): a periodic Hann window, as long a transform as the next power of
    two."""
    n = 1 << (window_size - 1).bit_length()
    frames = max(1 + (xp.shape(x)[0] - window_size) // stride, 0)
    starts = np.arange(frames)[:, None] * stride + np.arange(window_size)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    seen = xp.take(xp.matrix_transpose(x), xp.asarray(starts), 1)
    seen = xp.multiply(xp.astype(seen, dtypes.float64), xp.asarray(window))
    spectrum = xp.abs(xp.rfft(_fit(xp, seen, [n], [2]), 2))
    return xp.astype(xp.square(spectrum) if magnitude_squared else spectrum, dtypes.float32)
