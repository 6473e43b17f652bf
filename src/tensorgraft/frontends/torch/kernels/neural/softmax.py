"""Softmax and its logarithm, in at least float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _wide(xp: Any, x: AnyArray) -> AnyArray:
    """Return `x` in the dtype of accumulation, a number as a vector of one."""
    x = xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))
    return x if xp.ndim(x) else xp.reshape(x, (1,))


@kernel("_softmax")
def _softmax(xp: Any, x: Array, dim: int, half_to_float: bool) -> Array:
    if not xp.size(x):  # without elements, any dtype: integers have no minus infinity as initial value
        return x
    return xp.reshape(xp.softmax(_wide(xp, x), dim), xp.shape(x))


@kernel("_log_softmax")
def _log_softmax(xp: Any, x: Array, dim: int, half_to_float: bool) -> Array:
    if not xp.size(x):
        return x
    return xp.reshape(xp.log_softmax(_wide(xp, x), dim), xp.shape(x))


@kernel("_safe_softmax")
def _safe_softmax(xp: Any, x: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    """Zero where every element along `dim` is minus infinity, of which no pass of its own is made."""
    wide = _wide(xp, x)
    high = xp.max(wide, axis=dim, keepdims=True)
    exps = xp.exp(xp.subtract(wide, xp.where(xp.equal(high, -np.inf), xp.zeros_like(high), high)))
    total = xp.sum(exps, axis=dim, keepdims=True)
    return xp.reshape(xp.divide(exps, xp.where(xp.equal(total, 0), xp.ones_like(total), total)), xp.shape(x))


@kernel("_softmax_backward_data")
@with_operators
def _softmax_backward(xp: Any, grad: Value, out: Value, dim: int, input_dtype: np.dtype) -> Value:
    shape, grad, out = out.shape, _wide(xp, grad), _wide(xp, out)
    product = grad * out
    row_sum = xp.sum(product, axis=dim, keepdims=True)
    return xp.reshape(product - out * row_sum, shape)


@kernel("_log_softmax_backward_data")
@with_operators
def _log_softmax_backward(xp: Any, grad: Value, out: Value, dim: int, input_dtype: np.dtype) -> Value:
    shape, grad, out = out.shape, _wide(xp, grad), _wide(xp, out)
    row_sum = xp.sum(grad, axis=dim, keepdims=True)
    return xp.reshape(grad - xp.exp(out) * row_sum, shape)


def _masked_meta(
    x: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> torch.Tensor:
    """Return the metadata of the result: PyTorch has no meta function here. If the operator refuses its arguments, the
    CPU raises its error."""
    fits_shape = mask.shape == x.shape if mask_type == ELEMENTS or x.dim() != 4 else mask.dim() == 2
    if mask.dtype != torch.bool or mask_type not in (PAIRS, PLACES, ELEMENTS) or not fits_shape:
        raise RuntimeError("_masked_softmax: the mask does not match the input")
    return torch.empty_like(x)


# axes of the mask of `_masked_softmax`: (L, L) pairs of positions, (B, L) positions, all elements
PAIRS, PLACES, ELEMENTS = 0, 1, 2


@kernel("_masked_softmax", meta=_masked_meta)
def _masked_softmax(xp: Any, x: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Places where `mask` holds are not seen. NaN where nothing is."""
    shape = xp.shape(x)
    if xp.ndim(mask) != xp.ndim(x):
        mask = xp.reshape(mask, (shape[0], 1, 1, shape[3]) if mask_type == PLACES else (1, 1, *xp.shape(mask)))
    x = xp.where(mask, xp.full((), -np.inf, xp.dtype_of(x)), x)
    return _softmax(xp, x, -1 if dim is None else dim, False)


@kernel("_masked_softmax_backward", meta=lambda grad, out, mask, dim=None: torch.empty_like(grad))
def _masked_softmax_backward(xp: Any, grad: Array, out: Array, mask: Array, dim: int | None = None) -> Array:
    is_visible = xp.logical_not(xp.broadcast_to(mask, xp.shape(out)))
    grad, out = (xp.where(is_visible, v, xp.zeros_like(v)) for v in (grad, out))
    return _softmax_backward(xp, grad, out, -1 if dim is None else dim, xp.dtype_of(out))
