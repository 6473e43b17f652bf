"""Sorting, and the greatest values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("sort")
def sort(xp: Backend, *operands: Array, dimension: int, num_keys: int, **_: Any) -> Sequence[Array]:
    """Sort by the first operands; complex numbers by their real, then by their imaginary parts. Always stable; zeros of
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
    """Floats in their total order (IEEE 754, section 5.10): NaN by its sign, -0.0 before 0.0."""
    if not dtypes.is_floating(xp.dtype_of(x)):
        values, at = xp.top_k(x, k, axis=axis)
    else:
        at = xp.top_k(_total_order(xp, x), k, axis=axis)[1]
        values = xp.take_along_axis(x, at, axis)
    return values, xp.astype(at, np.dtype(out[1].dtype))


def _total_order(xp: Backend, x: Array) -> Array:
    """Signed integers in the total order of floats."""
    shape, bits = xp.shape(x), np.dtype(f"int{8 * xp.dtype_of(x).itemsize}")
    number = xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), bits), shape)
    most = int(np.iinfo(bits).max)
    return xp.where(xp.less(number, 0), xp.bitwise_xor(number, most), number)


@rule("approx_top_k")
def approx_top_k(
    xp: Backend, x: Array, *, k: int, reduction_dimension: int, is_max_k: bool, out: Any, **_: Any
) -> Sequence[Array]:
    """Exact, as JAX's own is but on TPUs. Without aggregation there are more values than `k`."""
    axis = reduction_dimension % xp.ndim(x)
    values, at = xp.top_k(x, out[0].shape[axis], axis=axis, largest=is_max_k)
    return values, xp.astype(at, np.dtype(out[1].dtype))
