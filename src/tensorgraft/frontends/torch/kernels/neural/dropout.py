"""Dropout and randomised activations: one program with its own key."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


def _inner(xp: Any, x: Array) -> Any:
    return dtypes.accumulator(dtypes.real_dtype(xp.dtype_of(x)))


@kernel("native_dropout", random=True)
def _dropout(xp: Any, x: Array, p: float, train: bool | None, key: Array) -> tuple[Array, Array]:
    """Return (x / (1 - p) where kept and 0 elsewhere, the mask of kept elements)."""
    if train is False or p == 0:
        return x, xp.ones(xp.shape(x), dtypes.bool_)
    if p == 1:
        return xp.zeros_like(x), xp.zeros(xp.shape(x), dtypes.bool_)
    keep_mask = xp.greater_equal(xp.uniform(key, xp.shape(x), dtypes.float32), p)
    return xp.where(keep_mask, xp.multiply(x, 1 / (1 - p)), xp.zeros_like(x)), keep_mask


@kernel("native_dropout_backward", dynamic=("scale",))
@with_operators
def _dropout_backward(xp: Any, grad: Value, mask: Value, scale: Any) -> Value:
    wide = grad if dtypes.is_inexact(grad.dtype) else xp.astype(grad, dtypes.float64)
    return wide * (xp.astype(mask, wide.dtype) * scale)


@with_operators
def _rrelu(
    xp: Any, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *, key: Value
) -> tuple[Value | None, Value]:
    """Return (noise: the slope that each element got, the result)."""
    if not training:
        return None, xp.where(x <= 0, x * ((lower + upper) / 2), x)
    u = xp.uniform(key, x.shape, _inner(xp, x))
    slope = xp.astype(u * (upper - lower) + lower, x.dtype)
    slope = xp.where(x <= 0, slope, xp.ones_like(x))
    return slope, x * slope


kernel("rrelu_with_noise", random=True)(_rrelu)
kernel("rrelu_with_noise_", random=True)(lambda *args, key: tuple(reversed(_rrelu(*args, key=key))))
