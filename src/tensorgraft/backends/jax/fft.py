"""Fourier transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorgraft.backends.jax.operation import operation


def _by_rows(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the array in row-major layout. XLA for CPUs passes its FFT kernel the layout that a later factorisation
    wants, and the kernel accepts row-major only (jaxlib 0.10.2). A flat array has one layout, so later operations
    cannot change it."""

    @functools.wraps(fn)
    def transform(x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        out = fn(x, *args, **kwargs)
        return lax.optimization_barrier(out.reshape(-1)).reshape(out.shape)

    return transform


class JaxFFT:
    fft = operation(_by_rows(lambda x, axis: jnp.fft.fft(x, axis=axis)), ("axis",))
    ifft = operation(_by_rows(lambda x, axis: jnp.fft.ifft(x, axis=axis)), ("axis",))
    rfft = operation(_by_rows(lambda x, axis: jnp.fft.rfft(x, axis=axis)), ("axis",))
    irfft = operation(_by_rows(lambda x, n, axis: jnp.fft.irfft(x, n=n, axis=axis)), ("n", "axis"))
