"""Fourier transforms: pocketfft, which keeps single precision since NumPy 2. It refuses axes of length 0."""

from __future__ import annotations

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def _with_extent(x: Array, axis: int, n: int, dtype: np.dtype) -> Array:
    shape = list(x.shape)
    shape[axis] = n
    return np.zeros(shape, dtype)


class NumpyFFT:
    def fft(self, x: Array, /, axis: int) -> Array:
        return np.fft.fft(x, axis=axis) if x.shape[axis] else x

    def ifft(self, x: Array, /, axis: int) -> Array:
        return np.fft.ifft(x, axis=axis) if x.shape[axis] else x

    def rfft(self, x: Array, /, axis: int) -> Array:
        if not x.shape[axis]:
            return _with_extent(x, axis, 1, dtypes.complex_dtype(x.dtype))
        return np.fft.rfft(x, axis=axis)

    def irfft(self, x: Array, /, n: int, axis: int) -> Array:
        if not n:
            return _with_extent(x, axis, 0, dtypes.real_dtype(x.dtype))
        return np.fft.irfft(x, n, axis=axis)
