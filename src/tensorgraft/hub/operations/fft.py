"""Discrete Fourier transforms along one axis: unnormalised forwards, divided by the length backwards."""

from __future__ import annotations

from tensorgraft.hub.array import Array
from tensorgraft.hub.primitive import primitive


class FFT:
    @primitive
    def fft(self, x: Array, /, axis: int) -> Array:
        """complex -> complex of the same dtype."""
        raise NotImplementedError

    @primitive
    def ifft(self, x: Array, /, axis: int) -> Array:
        raise NotImplementedError

    @primitive
    def rfft(self, x: Array, /, axis: int) -> Array:
        """float32 or float64 (n) -> complex (n // 2 + 1)."""
        raise NotImplementedError

    @primitive
    def irfft(self, x: Array, /, n: int, axis: int) -> Array:
        """complex (n // 2 + 1) -> real (n)."""
        raise NotImplementedError
