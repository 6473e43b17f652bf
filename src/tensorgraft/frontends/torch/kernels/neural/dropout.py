"""Dropout and randomised activations: one program with its own key."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _inner(xp: Any, x: Array) -> Any:
    return dtypes.accumulator(dtypes.real_dtype(xp.dtype_of(x)))


@kernel("native_dropout", random=True)
def _dropout(xp: Any, x: Array, p: float, train: bool | None, key: Array) -> tuple[Array, Array]:
    """(x / (1 - p) where kept, what is kept)."""
    if train is False or p == 0:
        return x, xp.ones(xp.shape(x), dtypes.bool_)
    if p == 1:
        return xp.zeros_like(x), xp.zeros(xp.shape(x), dtypes.bool_)
    kept = xp.greater_equal(xp.uniform(key, xp.shape(x), dtypes.float32), p)
    return xp.where(kept, xp.multiply(x, 1 / (1 - p)), xp.zeros_like(x)), kept


@kernel("native_dropout_backward", dynamic=("scale",))
def _dropout_backward(xp: Any, grad: Array, mask: Array, scale: Any) -> Array:
    wide = grad if dtypes.is_inexact(xp.dtype_of(grad)) else xp.astype(grad, dtypes.float64)
    return xp.multiply(wide, xp.multiply(xp.astype(mask, xp.dtype_of(wide)), scale))


def _rrelu(
    xp: Any, x: Array, noise: Array, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *, key: Array
) -> tuple[Array | None, Array]:
    """(noise: the slope that each element got, the result)."""
    if not training:
        return None, xp.where(xp.less_equal(x, 0), xp.multiply(x, (lower + upper) / 2), x)
    u = xp.uniform(key, xp.shape(x), _inner(xp, x))
    slope = xp.astype(xp.add(xp.multiply(u, upper - lower), lower), xp.dtype_of(x))
    slope = xp.where(xp.less_equal(x, 0), slope, xp.ones_like(x))
    return slope, xp.multiply(x, slope)


kernel("rrelu_with_noise", random=True)(_rrelu)
kernel("rrelu_with_noise_", random=True)(lambda *args, key: tuple(reversed(_rrelu(*args, key=key))))
