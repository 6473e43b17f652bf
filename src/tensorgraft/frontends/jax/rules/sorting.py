"""Sorting, and the greatest values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


@rule("sort")
def sort(xp: Backend, *operands: Array, dimension: int, num_keys: int, **_: Any) -> Sequence[Array]:
    """By the first operands; complex numbers by their real, then by their imaginary parts. Always stable; zeros of
    both signs are equal, and NaN is last, as for JAX."""
    keys = operands[:num_keys]
    if not any(dtypes.is_complex(xp.dtype_of(k)) for k in keys):
        return xp.sort(operands, axis=dimension, num_keys=num_keys)
    parts: list[Array] = []
    for key in keys:
        parts += [xp.real(key), xp.imag(key)] if dtypes.is_complex(xp.dtype_of(key)) else [key]
    return xp.sort((*parts, *operands), axis=dimension, num_keys=len(parts))[len(parts) :]


@rule("top_k")
def top_k(xp: Backend, x: Array, *, k: int, axis: int, out: Any, **_: Any) -> Sequence[Array]:
    values, at = xp.top_k(x, k, axis=axis)
    return values, xp.astype(at, np.dtype(out[1].dtype))
