"""Fourier transforms. PyTorch refuses axes of length 0."""

from __future__ import annotations

import torch

from tensorgraft.hub.array import NativeArray as Array


def _with_extent(x: Array, axis: int, n: int, dtype: torch.dtype) -> Array:
    shape = list(x.shape)
    shape[axis] = n
    return torch.zeros(shape, dtype=dtype, device=x.device)


class TorchFFT:
    def fft(self, x: Array, /, axis: int) -> Array:
        return torch.fft.fft(x, dim=axis) if x.numel() else x

    def ifft(self, x: Array, /, axis: int) -> Array:
        return torch.fft.ifft(x, dim=axis) if x.numel() else x

    def rfft(self, x: Array, /, axis: int) -> Array:
        if not x.numel():
            return _with_extent(x, axis, x.shape[axis] // 2 + 1, x.dtype.to_complex())
        return torch.fft.rfft(x, dim=axis)

    def irfft(self, x: Array, /, n: int, axis: int) -> Array:
        if not n or not x.numel():
            return _with_extent(x, axis, n, x.dtype.to_real())
        return torch.fft.irfft(x, n, dim=axis)
