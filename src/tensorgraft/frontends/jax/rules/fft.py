"""Fourier transforms over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("fft")
def fft(xp: Backend, x: Array, *, fft_type: Any, fft_lengths: Sequence[int], out: Any, **_: Any) -> Array:
    """Transform along the last axes, which already have the requested lengths, except the last one of a transform to
    real numbers."""
    kind, rank = fft_type.name, xp.ndim(x)
    if not xp.size(x):
        return xp.zeros(tuple(out[0].shape), out[0].dtype)
    axes = range(rank - len(fft_lengths), rank)
    if kind == "RFFT":
        x = xp.rfft(x, axis=axes[-1])
    to_frequencies = kind in ("FFT", "RFFT")
    for axis in axes if kind in ("FFT", "IFFT") else axes[:-1]:
        x = (xp.fft if to_frequencies else xp.ifft)(x, axis=axis)
    return xp.irfft(x, fft_lengths[-1], axis=axes[-1]) if kind == "IRFFT" else x
