"""Fourier transforms over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _fit(xp: Backend, x: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Cut `x` to the sizes along axes, or append zeros."""
    for n, axis in zip(sizes, axes, strict=True):
        length = xp.shape(x)[axis]
        if length > n:
            x = xp.take_slice(x, axis, 0, n)
        elif length < n:
            x = xp.pad(x, 0, [(0, n - length if a == axis else 0, 0) for a in range(xp.ndim(x))])
    return x


def _complex(xp: Backend, x: Array, axes: Sequence[int], backwards: bool) -> Array:
    for axis in axes:
        x = xp.ifft(x, axis) if backwards else xp.fft(x, axis)
    return x


def _from_real(xp: Backend, x: Array, length: np.ndarray, axes: Sequence[int]) -> Array:
    """Transform a real array, the last axis first."""
    x = xp.rfft(_fit(xp, x, ints(length), axes), axes[-1])
    return _complex(xp, x, axes[-2::-1], False)


def _to_real(xp: Backend, x: Array, length: np.ndarray, axes: Sequence[int]) -> Array:
    """Transform back to a real array, the last axis last."""
    sizes = ints(length)
    x = _fit(xp, x, (*sizes[:-1], sizes[-1] // 2 + 1), axes)
    return xp.irfft(_complex(xp, x, axes[:-1], True), sizes[-1], axes[-1])


def _register_rank(rank: int, suffix: str) -> None:
    def last_axes(xp: Backend, x: Array) -> Sequence[int]:
        return range(xp.ndim(x) - rank, xp.ndim(x))

    @rule(f"FFT{suffix}")
    def fft(xp: Backend, x: Array) -> Array:
        return _complex(xp, x, last_axes(xp, x), False)

    @rule(f"IFFT{suffix}")
    def ifft(xp: Backend, x: Array) -> Array:
        return _complex(xp, x, last_axes(xp, x), True)

    @rule(f"RFFT{suffix}", known=("length",))
    def rfft(xp: Backend, x: Array, length: np.ndarray, *, Tcomplex: np.dtype = dtypes.complex64) -> Array:
        return xp.astype(_from_real(xp, x, length, last_axes(xp, x)), Tcomplex)

    @rule(f"IRFFT{suffix}", known=("length",))
    def irfft(xp: Backend, x: Array, length: np.ndarray, *, Treal: np.dtype = dtypes.float32) -> Array:
        return xp.astype(_to_real(xp, x, length, last_axes(xp, x)), Treal)


for _rank, _suffix in ((1, ""), (2, "2D"), (3, "3D")):
    _register_rank(_rank, _suffix)


def _positive_axes(axes: np.ndarray, n: int) -> list[int]:
    return [a % n for a in ints(axes)]


@rule("FFTND", known=("length", "axes"))
def fft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over = _positive_axes(axes, xp.ndim(x))
    return _complex(xp, _fit(xp, x, ints(length), over), over, False)


@rule("IFFTND", known=("length", "axes"))
def ifft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    over = _positive_axes(axes, xp.ndim(x))
    return _complex(xp, _fit(xp, x, ints(length), over), over, True)


@rule("RFFTND", known=("length", "axes"))
def rfft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    return _from_real(xp, x, length, _positive_axes(axes, xp.ndim(x)))


@rule("IRFFTND", known=("length", "axes"))
def irfft_nd(xp: Backend, x: Array, length: np.ndarray, axes: np.ndarray) -> Array:
    return _to_real(xp, x, length, _positive_axes(axes, xp.ndim(x)))


@rule("AudioSpectrogram")
def audio_spectrogram(
    xp: Backend, x: Array, *, window_size: int, stride: int, magnitude_squared: bool = False
) -> Array:
    """Compute spectra (channels, frames, bins) of (samples, channels), with a periodic Hann window and transforms as
    long as the next power of two."""
    n = 1 << (window_size - 1).bit_length()
    frames = max(1 + (xp.shape(x)[0] - window_size) // stride, 0)
    starts = np.arange(frames)[:, None] * stride + np.arange(window_size)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    framed = xp.take(xp.matrix_transpose(x), xp.asarray(starts), 1)
    framed = xp.multiply(xp.astype(framed, dtypes.float64), xp.asarray(window))
    spectrum = xp.abs(xp.rfft(_fit(xp, framed, [n], [2]), 2))
    return xp.astype(xp.square(spectrum) if magnitude_squared else spectrum, dtypes.float32)


@rule("Mfcc", known=("rate",))
def mfcc(
    xp: Backend, x: Array, rate: np.ndarray, *, upper_frequency_limit: float = 4000, lower_frequency_limit: float = 20,
    filterbank_channel_count: int = 40, dct_coefficient_count: int = 13,
) -> Array:  # fmt: skip
    """Return cepstral coefficients of squared magnitudes (channels, frames, bins): magnitudes in triangles of the mel
    scale, their logarithms, the cosine transform of these."""
    channels, bins = filterbank_channel_count, xp.shape(x)[-1]
    filters = _mel_filters(bins, float(rate), channels, lower_frequency_limit, upper_frequency_limit)
    bands = xp.matmul(xp.sqrt(xp.astype(x, dtypes.float64)), xp.asarray(filters))
    logs = xp.log(xp.maximum(bands, xp.full_like(bands, 1e-12)))
    angle = np.pi / channels * np.outer(np.arange(channels) + 0.5, np.arange(dct_coefficient_count))
    return xp.astype(xp.matmul(logs, xp.asarray(np.sqrt(2 / channels) * np.cos(angle))), dtypes.float32)


def _mel_filters(bins: int, rate: float, channels: int, low: float, high: float) -> np.ndarray:
    """Return filters (bins, channels), which divide each bin between the two nearest centres of the mel scale."""

    def mel(frequency: Any) -> Any:
        return 1127 * np.log1p(np.asarray(frequency) / 700)

    centres = np.linspace(mel(low), mel(high), channels + 2)
    step = 0.5 * rate / (bins - 1)
    used_bins = np.arange(int(1.5 + low / step), min(int(high / step), bins - 1) + 1)
    at = mel(used_bins * step)
    upper = np.searchsorted(centres[1:-1], at) + 1  # the first centre that is not below
    share = (centres[upper] - at) / (centres[upper] - centres[upper - 1])
    out = np.zeros((bins, channels + 2))
    out[used_bins, upper - 1], out[used_bins, upper] = share, 1 - share
    return out[:, 1:-1]
