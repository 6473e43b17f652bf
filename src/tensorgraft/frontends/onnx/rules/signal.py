"""Rules for Fourier transforms and filters of sounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.element_types import dtype_of
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.shape import axes_of
from tensorgraft.hub import dtypes


def _complex(xp: Any, x: Any) -> Any:
    """Return complex numbers of pairs in the last axis, or of single ones."""
    wide = xp.astype(x, dtypes.float64 if xp.dtype_of(x) == dtypes.float64 else dtypes.float32)
    parts = xp.unstack(wide, -1)
    return xp.complex(parts[0], parts[1] if len(parts) > 1 else xp.zeros_like(parts[0]))


def _pairs(xp: Any, z: Any, dtype: np.dtype) -> Any:
    return xp.astype(xp.stack([xp.real(z), xp.imag(z)], axis=-1), dtype)


def _sized(xp: Any, x: Any, axis: int, n: int) -> Any:
    """Cut an axis to n elements, or pad it with zeros."""
    if x.shape[axis] >= n:
        return xp.take_slice(x, axis, 0, n)
    return xp.pad(x, 0, [(0, n - x.shape[axis] if i == axis else 0, 0) for i in range(len(x.shape))])


@rule("DFT", known=("dft_length", "axis"))
def dft(
    xp: Any, x: Any, dft_length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0, opset: int
) -> Any:
    dtype = xp.dtype_of(x)
    default = 1 if opset < 20 else -2
    along = axes_of(default if axis is None else axis, len(x.shape))[0]
    one_sided_inverse = bool(inverse and onesided)
    z = _complex(xp, x)
    if one_sided_inverse:
        n = 2 * (z.shape[along] - 1) if dft_length is None else int(np.reshape(dft_length, ()))
        return xp.expand_dims(xp.astype(xp.irfft(_sized(xp, z, along, n // 2 + 1), n, along), dtype), -1)
    n = z.shape[along] if dft_length is None else int(np.reshape(dft_length, ()))
    z = _sized(xp, z, along, n)
    z = xp.ifft(z, along) if inverse else xp.fft(z, along)
    if onesided:
        z = xp.take_slice(z, along, 0, n // 2 + 1)
    return _pairs(xp, z, dtype)


@rule("STFT", known=("frame_step", "frame_length"))
def stft(
    xp: Any, signal: Any, frame_step: Any, window: Any = None, frame_length: Any = None, *, onesided: int = 1
) -> Any:
    """Transform overlapping frames of signals (N, length, 1 or 2)."""
    step = int(np.reshape(frame_step, ()))
    size = int(np.reshape(frame_length, ())) if frame_length is not None else window.shape[0]
    count = (signal.shape[1] - size) // step + 1
    at = np.arange(count)[:, None] * step + np.arange(size)
    frames = xp.take(signal, xp.asarray(at), 1)  # (N, count, size, parts)
    if window is not None:
        frames = xp.multiply(frames, xp.reshape(xp.astype(window, xp.dtype_of(signal)), (size, 1)))
    z = xp.fft(_complex(xp, frames), 2)
    if onesided and signal.shape[-1] == 1:
        z = xp.take_slice(z, 2, 0, size // 2 + 1)
    return _pairs(xp, z, xp.dtype_of(signal))


@rule("MelWeightMatrix", host=True)
def mel_weight_matrix(
    xp: Any, num_mel_bins: Any, dft_length: Any, sample_rate: Any, lower: Any, upper: Any, *, output_datatype: int = 1
) -> Any:
    bins, length = int(num_mel_bins), int(dft_length)
    low, high = (2595 * np.log10(1 + float(f) / 700) for f in (lower, upper))
    spectrum = length // 2 + 1
    mels = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // float(sample_rate)).astype(int)
    out = np.zeros((spectrum, bins))
    for i in range(bins):
        start, centre, end = edges[i : i + 3]
        if start == centre:
            out[centre, i] = 1
        else:
            rising = np.arange(start, centre + 1)
            out[rising, i] = (rising - start) / (centre - start)
        if centre != end:
            falling = np.arange(centre, end)
            out[falling, i] = (end - falling) / (end - centre)
    return out.astype(dtype_of(output_datatype))
