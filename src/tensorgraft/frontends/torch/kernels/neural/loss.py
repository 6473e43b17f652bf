"""Losses. Those between two tensors of one shape are rows of a table: the loss and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import PROMOTION, kernel
from tensorgraft.frontends.torch.dispatch.checks import check, require
from tensorgraft.frontends.torch.kernels.common import scalar_name
from tensorgraft.hub import dtypes

Array = Any
NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def widened(xp: Any, x: Array) -> Array:
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))


def reduced(xp: Any, x: Array, reduction: int) -> Array:
    if reduction == NONE:
        return x
    return (xp.mean if reduction == MEAN else xp.sum)(widened(xp, x))


def _spread(xp: Any, slope: Array, grad: Array, reduction: int) -> Array:
    """The chain rule through the reduction: `slope` has an entry for each element."""
    if reduction == MEAN:
        slope = xp.divide(slope, max(xp.size(slope), 1))
    return xp.multiply(slope, widened(xp, grad))


# ---- element by element ----------------------------------------------------------------------------------------------


def _smooth_l1(xp: Any, x: Array, y: Array, beta: float) -> Array:
    z = xp.abs(xp.subtract(x, y))
    if beta == 0:
        return z
    return xp.where(xp.less(z, beta), xp.divide(xp.multiply(xp.multiply(z, z), 0.5), beta), xp.subtract(z, 0.5 * beta))


def _smooth_l1_slope(xp: Any, x: Array, y: Array, beta: float) -> Array:
    z = xp.subtract(x, y)
    inner = xp.divide(z, beta) if beta else xp.zeros_like(z)
    return xp.where(xp.less(xp.abs(z), beta), inner, xp.sign(z))


def _huber(xp: Any, x: Array, y: Array, delta: float) -> Array:
    z = xp.abs(xp.subtract(x, y))
    outer = xp.multiply(xp.subtract(z, 0.5 * delta), delta)
    return xp.where(xp.less(z, delta), xp.multiply(xp.multiply(z, z), 0.5), outer)


def _huber_slope(xp: Any, x: Array, y: Array, delta: float) -> Array:
    return xp.clip(xp.subtract(x, y), -delta, delta)


Rule = Callable[..., Array]
# name -> (loss, its derivative in the input)
PAIRWISE: dict[str, tuple[Rule, Rule]] = {
    "mse_loss": (
        lambda xp, x, y: xp.square(xp.subtract(x, y)),
        lambda xp, x, y: xp.multiply(xp.subtract(x, y), 2),
    ),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_slope),
    "huber_loss": (_huber, _huber_slope),
}
DEFAULTS = {"smooth_l1_loss": (1.0,), "huber_loss": (1.0,)}


def _pairwise(name: str, loss: Rule, slope: Rule) -> None:
    numbers = DEFAULTS.get(name, ())

    def forward(xp: Any, x: Array, y: Array, reduction: int = MEAN, *given: float) -> Array:
        return reduced(xp, loss(xp, widened(xp, x), widened(xp, y), *(given or numbers)), reduction)

    def backward(xp: Any, grad: Array, x: Array, y: Array, reduction: int, *given: float) -> Array:
        return _spread(xp, slope(xp, widened(xp, x), widened(xp, y), *given), grad, reduction)

    kernel(name, promotion=PROMOTION.DEFAULT, promote=("self", "target"))(forward)
    kernel(f"{name}_backward", promotion=PROMOTION.DEFAULT, promote=("grad_output", "self", "target"))(backward)


for _name, (_loss, _slope) in PAIRWISE.items():
    _pairwise(_name, _loss, _slope)


# ---- binary cross-entropy --------------------------------------------------------------------------------------------


def _weighted(xp: Any, x: Array, weight: Array | None) -> Array:
    return x if weight is None else xp.multiply(x, widened(xp, weight))


def _unit(xp: Any, x: Array) -> Array:
    return xp.logical_and(xp.greater_equal(x, 0), xp.less_equal(x, 1))


@kernel("binary_cross_entropy")
def _bce(xp: Any, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    require(
        xp,
        (_unit(xp, x), "all elements of input should be between 0 and 1"),
        (_unit(xp, y), "all elements of target should be between 0 and 1"),
    )
    x, y = widened(xp, x), widened(xp, y)
    low = -100.0  # as PyTorch, so that log(0) times 0 is 0
    yes = xp.multiply(y, xp.maximum(xp.log(x), low))
    no = xp.multiply(xp.subtract(1, y), xp.maximum(xp.log1p(xp.negative(x)), low))
    return reduced(xp, _weighted(xp, xp.negative(xp.add(yes, no)), weight), reduction)


@kernel("binary_cross_entropy_backward")
def _bce_backward(
    xp: Any, grad: Array, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    x, y = widened(xp, x), widened(xp, y)
    slope = xp.divide(xp.subtract(x, y), xp.maximum(xp.multiply(xp.subtract(1, x), x), 1e-12))
    return _spread(xp, _weighted(xp, slope, weight), grad, reduction)


@kernel("binary_cross_entropy_with_logits")
def _bce_with_logits(
    xp: Any,
    x: Array,
    y: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    x, y = widened(xp, x), widened(xp, y)
    softplus = xp.add(xp.log1p(xp.exp(xp.negative(xp.abs(x)))), xp.maximum(xp.negative(x), 0))
    if pos_weight is not None:
        softplus = xp.multiply(softplus, xp.add(xp.multiply(xp.subtract(widened(xp, pos_weight), 1), y), 1))
    loss = xp.add(xp.multiply(xp.subtract(1, y), x), softplus)
    return reduced(xp, _weighted(xp, loss, weight), reduction)


# ---- of classes ------------------------------------------------------------------------------------------------------


def _class_weights(
    xp: Any, x: Array, target: Array, weight: Array | None, ignore_index: int, axis: int
) -> tuple[Array, Array]:
    """(positions safe to look up, the weight of each target: 0 where ignored)."""
    dtype = dtypes.accumulator(xp.dtype_of(x))
    target = xp.astype(target, dtypes.int64)
    ignored = xp.equal(target, ignore_index)
    safe = xp.clip(xp.where(ignored, xp.zeros_like(target), target), 0, max(xp.shape(x)[axis] - 1, 0))
    w = xp.ones(xp.shape(target), dtype) if weight is None else xp.astype(xp.gather(weight, (safe,)), dtype)
    return safe, xp.where(ignored, xp.zeros_like(w), w)


def _check_targets(xp: Any, target: Array, ignore_index: int, classes: int) -> None:
    """Raises IndexError, as PyTorch does, for a class that there is not."""
    if not xp.size(target):
        return
    target = xp.astype(target, dtypes.int64)
    named = xp.where(xp.equal(target, ignore_index), xp.zeros_like(target), target)

    def judge(bounds: np.ndarray) -> None:
        for bound in bounds.tolist():
            if not 0 <= bound < classes:
                raise IndexError(f"Target {bound} is out of bounds.")

    check(xp, xp.stack([xp.min(named), xp.max(named)]), judge)


def _check_class_weights(x: Any, target: Any, weight: Any = None, *_: Any, **__: Any) -> None:
    if weight is not None and weight.dtype != x.dtype:
        found = scalar_name(weight.dtype)
        raise RuntimeError(f"expected scalar type {scalar_name(x.dtype)} but found {found}")


@kernel("nll_loss_forward", "nll_loss2d_forward", check=_check_class_weights)
def _nll(
    xp: Any, x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    axis = 0 if xp.ndim(x) == 1 else 1
    target = xp.reshape(target, ()) if axis == 0 else target
    _check_targets(xp, target, ignore_index, xp.shape(x)[axis])
    safe, w = _class_weights(xp, x, target, weight, ignore_index, axis)
    picked = xp.squeeze(xp.take_along_axis(x, xp.expand_dims(safe, axis), axis), axis)
    zero = xp.zeros_like(w)  # 0 * inf, where a target is ignored, is 0
    losses = xp.where(xp.equal(w, 0), zero, xp.negative(xp.multiply(widened(xp, picked), w)))
    if reduction == NONE and axis == 1:
        return losses, xp.zeros((), xp.dtype_of(w))
    total, weights = xp.sum(losses), xp.sum(w)
    return (xp.divide(total, weights) if reduction == MEAN else total), weights


@kernel("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(
    xp: Any,
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    axis = 0 if xp.ndim(x) == 1 else 1
    target = xp.reshape(target, ()) if axis == 0 else target
    safe, w = _class_weights(xp, x, target, weight, ignore_index, axis)
    each = xp.multiply(xp.negative(w), xp.reshape(widened(xp, grad), xp.shape(target) if xp.ndim(grad) else ()))
    if reduction == MEAN:
        each = xp.divide(each, widened(xp, total_weight))
        each = xp.where(xp.equal(w, 0), xp.zeros_like(each), each)
    classes = xp.shape(x)[axis]
    along = xp.reshape(xp.iota(classes, dtypes.int64), (classes, *(1,) * (xp.ndim(x) - 1 - axis)))
    hot = xp.equal(xp.expand_dims(safe, axis), along)
    return xp.where(hot, xp.expand_dims(each, axis), xp.zeros((), xp.dtype_of(each)))
