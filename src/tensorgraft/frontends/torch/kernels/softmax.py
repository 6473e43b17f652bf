"""Softmax and its logarithm, in at least float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.torch.spec import kernel
from tensorgraft.hub import dtypes

Array = Any


def _wide(xp: Any, x: Array) -> Array:
    """`x` as it is accumulated, a number as a vector of one."""
    x = xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))
    return x if xp.ndim(x) else xp.reshape(x, (1,))


@kernel("_softmax")
def _softmax(xp: Any, x: Array, dim: int, half_to_float: bool) -> Array:
    return xp.reshape(xp.softmax(_wide(xp, x), dim), xp.shape(x))


@kernel("_log_softmax")
def _log_softmax(xp: Any, x: Array, dim: int, half_to_float: bool) -> Array:
    return xp.reshape(xp.log_softmax(_wide(xp, x), dim), xp.shape(x))


@kernel("_safe_softmax")
def _safe_softmax(xp: Any, x: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    """Zero where every element along `dim` is minus infinity."""
    wide = _wide(xp, x)
    none = xp.all(xp.equal(wide, -np.inf), axis=dim, keepdims=True)
    out = xp.softmax(wide, dim)
    return xp.reshape(xp.where(none, xp.zeros_like(out), out), xp.shape(x))


@kernel("_softmax_backward_data")
def _softmax_backward(xp: Any, grad: Array, out: Array, dim: int, input_dtype: np.dtype) -> Array:
    shape, grad, out = xp.shape(out), _wide(xp, grad), _wide(xp, out)
    product = xp.multiply(grad, out)
    along = xp.sum(product, axis=dim, keepdims=True)
    return xp.reshape(xp.subtract(product, xp.multiply(out, along)), shape)


@kernel("_log_softmax_backward_data")
def _log_softmax_backward(xp: Any, grad: Array, out: Array, dim: int, input_dtype: np.dtype) -> Array:
    shape, grad, out = xp.shape(out), _wide(xp, grad), _wide(xp, out)
    along = xp.sum(grad, axis=dim, keepdims=True)
    return xp.reshape(xp.subtract(grad, xp.multiply(xp.exp(out), along)), shape)
