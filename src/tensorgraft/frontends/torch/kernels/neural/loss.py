"""Losses that check values, or would otherwise be several programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check, require
from tensorgraft.frontends.torch.kernels.common import scalar_name
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def widened(xp: Any, x: AnyArray) -> AnyArray:
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))


def reduced(xp: Any, x: AnyArray, reduction: int) -> AnyArray:
    if reduction == NONE:
        return x
    return (xp.mean if reduction == MEAN else xp.sum)(widened(xp, x))


# ---- binary cross-entropy --------------------------------------------------------------------------------------------


def _to_common_dtype(xp: Any, *arrays: Array | None) -> list[Any]:
    """Convert arrays to the dtype in which PyTorch computes with all floats among them."""
    all_dtypes = [xp.dtype_of(a) for a in arrays if a is not None]
    floats = [dtypes.accumulator(dtype) for dtype in all_dtypes if dtypes.is_inexact(dtype)]
    dtype = np.result_type(*floats) if floats else all_dtypes[0]
    return [None if a is None else xp.astype(a, dtype) for a in arrays]


def _weighted(xp: Any, x: AnyArray, weight: AnyArray | None) -> AnyArray:
    return x if weight is None else xp.multiply(x, weight)


def _in_unit_interval(x: Value) -> Value:
    return (x >= 0) & (x <= 1)


@kernel("binary_cross_entropy")
@with_operators
def _bce(xp: Any, x: Value, y: Value, weight: Value | None = None, reduction: int = MEAN) -> Value:
    require(
        xp,
        (_in_unit_interval(x), "all elements of input should be between 0 and 1"),
        (_in_unit_interval(y), "all elements of target should be between 0 and 1"),
    )
    x, y, weight = _to_common_dtype(xp, x, y, weight)
    low = -100.0  # like PyTorch, so that log(0) times 0 is 0
    if_one = y * xp.maximum(xp.log(x), low)
    if_zero = (1 - y) * xp.maximum(xp.log1p(-x), low)
    return reduced(xp, _weighted(xp, -(if_one + if_zero), weight), reduction)


@kernel("binary_cross_entropy_with_logits")
@with_operators
def _bce_with_logits(
    xp: Any, x: Value, y: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: int = MEAN
) -> Value:
    x, extra_weight = widened(xp, x), None
    if pos_weight is not None:  # in its own dtype, where unsigned integers wrap
        extra_weight = (xp.astype(pos_weight, dtypes.int64) if dtypes.is_bool(pos_weight.dtype) else pos_weight) - 1
    softplus = xp.log1p(xp.exp(-abs(x))) + xp.maximum(-x, 0)
    x, y, weight, extra_weight, softplus = _to_common_dtype(xp, x, y, weight, extra_weight, softplus)
    if extra_weight is not None:
        softplus = softplus * (extra_weight * y + 1)
    loss = (1 - y) * x + softplus
    return reduced(xp, _weighted(xp, loss, weight), reduction)


# ---- losses of class numbers -----------------------------------------------------------------------------------------


def _class_weights(
    xp: Any, x: AnyArray, target: AnyArray, weight: AnyArray | None, ignore_index: int, axis: int
) -> tuple[AnyArray, AnyArray]:
    """Return (valid positions to look up, the weight of each target: 0 for ignored ones)."""
    dtype = dtypes.accumulator(xp.dtype_of(x))
    target = xp.astype(target, dtypes.int64)
    ignored = xp.equal(target, ignore_index)
    safe = xp.clip(xp.where(ignored, xp.zeros_like(target), target), 0, max(xp.shape(x)[axis] - 1, 0))
    w = xp.ones(xp.shape(target), dtype) if weight is None else xp.astype(xp.gather(weight, (safe,)), dtype)
    return safe, xp.where(ignored, xp.zeros_like(w), w)


def _check_targets(xp: Any, target: Array, ignore_index: int, classes: int) -> None:
    """Raise IndexError, as PyTorch does, for a target that is no class."""
    if not xp.size(target):
        return
    target = xp.astype(target, dtypes.int64)
    named = xp.where(xp.equal(target, ignore_index), xp.zeros_like(target), target)

    def verify(bounds: np.ndarray) -> None:
        for bound in bounds.tolist():
            if not 0 <= bound < classes:
                raise IndexError(f"Target {bound} is out of bounds.")

    check(xp, xp.stack([xp.min(named), xp.max(named)]), verify)


def _check_class_weights(x: Any, target: Any, weight: Any = None, *_: Any, **__: Any) -> None:
    if weight is not None and weight.dtype != x.dtype:
        name = scalar_name(weight.dtype)
        raise RuntimeError(f"expected scalar type {scalar_name(x.dtype)} but found {name}")


@kernel("nll_loss_forward", "nll_loss2d_forward", check=_check_class_weights)
@with_operators
def _nll(
    xp: Any, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    axis = 0 if x.ndim == 1 else 1
    target = xp.reshape(target, ()) if axis == 0 else target
    _check_targets(xp, target, ignore_index, x.shape[axis])
    safe, w = _class_weights(xp, x, target, weight, ignore_index, axis)
    picked = xp.squeeze(xp.take_along_axis(x, xp.expand_dims(safe, axis), axis), axis)
    zero = xp.zeros_like(w)  # 0 * inf, where a target is ignored, is 0
    losses = xp.where(w == 0, zero, -(widened(xp, picked) * w))
    if reduction == NONE and axis == 1:
        return losses, xp.zeros((), w.dtype)
    total, weights = xp.sum(losses), xp.sum(w)
    return (total / weights if reduction == MEAN else total), weights
