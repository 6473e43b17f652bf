"""Fourier transforms."""

from __future__ import annotations

import jax.numpy as jnp

from tensorgraft.backends.jax.operation import operation


class JaxFFT:
    fft = operation(lambda x, axis: jnp.fft.fft(x, axis=axis), ("axis",))
    ifft = operation(lambda x, axis: jnp.fft.ifft(x, axis=axis), ("axis",))
    rfft = operation(lambda x, axis: jnp.fft.rfft(x, axis=axis), ("axis",))
    irfft = operation(lambda x, n, axis: jnp.fft.irfft(x, n=n, axis=axis), ("n", "axis"))
