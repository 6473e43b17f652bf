"""Losses. Those between two tensors of one shape are rows of a table: the loss and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.checks import check
from tensorgraft.frontends.torch.spec import PROMOTION, kernel
from tensorgraft.hub import dtypes

Array = Any
NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def _wide(xp: Any, x: Array) -> Array:
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))


def _reduced(xp: Any, x: Array, reduction: int) -> Array:
    if reduction == NONE:
        return x
    return (xp.mean if reduction == MEAN else xp.sum)(_wide(xp, x))


def _spread(xp: Any, slope: Array, grad: Array, reduction: int) -> Array:
    """The chain rule through the reduction: `slope` has an entry for each element."""
    if reduction == MEAN:
        slope = xp.divide(slope, max(xp.size(slope), 1))
    return xp.multiply(slope, _wide(xp, grad))


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
        return _reduced(xp, loss(xp, _wide(xp, x), _wide(xp, y), *(given or numbers)), reduction)

    def backward(xp: Any, grad: Array, x: Array, y: Array, reduction: int, *given: float) -> Array:
        return _spread(xp, slope(xp, _wide(xp, x), _wide(xp, y), *given), grad, reduction)

    kernel(name, promotion=PROMOTION.DEFAULT, promote=("self", "target"))(forward)
    kernel(f"{name}_backward", promotion=PROMOTION.DEFAULT, promote=("grad_output", "self", "target"))(backward)


for _name, (_loss, _slope) in PAIRWISE.items():
    _pairwise(_name, _loss, _slope)


# ---- binary cross-entropy --------------------------------------------------------------------------------------------


def _weighted(xp: Any, x: Array, weight: Array | None) -> Array:
    return x if weight is None else xp.multiply(x, _wide(xp, weight))


@kernel("binary_cross_entropy")
def _bce(xp: Any, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    x, y = _wide(xp, x), _wide(xp, y)
    low = -100.0  # as PyTorch, so that log(0) times 0 is 0
    yes = xp.multiply(y, xp.maximum(xp.log(x), low))
    no = xp.multiply(xp.subtract(1, y), xp.maximum(xp.log1p(xp.negative(x)), low))
    return _reduced(xp, _weighted(xp, xp.negative(xp.add(yes, no)), weight), reduction)


@kernel("binary_cross_entropy_backward")
def _bce_backward(
    xp: Any, grad: Array, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    x, y = _wide(xp, x), _wide(xp, y)
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
    x, y = _wide(xp, x), _wide(xp, y)
    softplus = xp.add(xp.log1p(xp.exp(xp.negative(xp.abs(x)))), xp.maximum(xp.negative(x), 0))
    if pos_weight is not None:
        softplus = xp.multiply(softplus, xp.add(xp.multiply(xp.subtract(_wide(xp, pos_weight), 1), y), 1))
    loss = xp.add(xp.multiply(xp.subtract(1, y), x), softplus)
    return _reduced(xp, _weighted(xp, loss, weight), reduction)


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


@kernel("nll_loss_forward", "nll_loss2d_forward")
def _nll(
    xp: Any, x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    axis = 0 if xp.ndim(x) == 1 else 1
    target = xp.reshape(target, ()) if axis == 0 else target
    _check_targets(xp, target, ignore_index, xp.shape(x)[axis])
    safe, w = _class_weights(xp, x, target, weight, ignore_index, axis)
    picked = xp.squeeze(xp.take_along_axis(x, xp.expand_dims(safe, axis), axis), axis)
    zero = xp.zeros_like(w)  # 0 * inf, where a target is ignored, is 0
    losses = xp.where(xp.equal(w, 0), zero, xp.negative(xp.multiply(_wide(xp, picked), w)))
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
    each = xp.multiply(xp.negative(w), xp.reshape(_wide(xp, grad), xp.shape(target) if xp.ndim(grad) else ()))
    if reduction == MEAN:
        each = xp.divide(each, _wide(xp, total_weight))
        each = xp.where(xp.equal(w, 0), xp.zeros_like(each), each)
    classes = xp.shape(x)[axis]
    along = xp.reshape(xp.iota(classes, dtypes.int64), (classes, *(1,) * (xp.ndim(x) - 1 - axis)))
    hot = xp.equal(xp.expand_dims(safe, axis), along)
    return xp.where(hot, xp.expand_dims(each, axis), xp.zeros((), xp.dtype_of(each)))


def _margins(xp: Any, x: Array, target: Array, margin: float, weight: Array | None) -> tuple[Array, ...]:
    """(margin violations (N, C), the target's one-hot, the weight of each sample)."""
    x, target = _wide(xp, x), xp.astype(target, dtypes.int64)
    at = xp.expand_dims(target, 1)
    z = xp.add(xp.subtract(x, xp.take_along_axis(x, at, 1)), margin)
    hot = xp.equal(at, xp.iota(xp.shape(x)[1], dtypes.int64))
    w = xp.ones(xp.shape(target), xp.dtype_of(x)) if weight is None else _wide(xp, xp.gather(weight, (target,)))
    return z, hot, xp.expand_dims(w, 1)


@kernel("multi_margin_loss")
def _multi_margin(
    xp: Any,
    x: Array,
    target: Array,
    p: int = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    rows, targets = _rows(xp, x), xp.reshape(target, (xp.size(target),))
    z, hot, w = _margins(xp, rows, targets, margin, weight)
    loss = xp.maximum(z, 0)
    loss = xp.multiply(xp.multiply(loss, loss) if p == 2 else loss, w)
    loss = xp.sum(xp.where(hot, xp.zeros_like(loss), loss), axis=1)
    out = _reduced(xp, xp.divide(loss, max(xp.shape(rows)[1], 1)), reduction)
    return xp.astype(xp.reshape(out, xp.shape(target)) if reduction == NONE else out, xp.dtype_of(x))


@kernel("multi_margin_loss_backward", meta=False)
def _multi_margin_backward(
    xp: Any,
    grad: Array,
    x: Array,
    target: Array,
    p: int,
    margin: float,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    rows, targets = _rows(xp, x), xp.reshape(target, (xp.size(target),))
    z, hot, w = _margins(xp, rows, targets, margin, weight)
    slope = xp.multiply(xp.maximum(z, 0), 2) if p == 2 else xp.ones_like(z)
    slope = xp.divide(xp.multiply(slope, w), max(xp.shape(rows)[1], 1))
    slope = xp.where(xp.logical_or(hot, xp.less_equal(z, 0)), xp.zeros_like(slope), slope)
    slope = xp.where(hot, xp.negative(xp.sum(slope, axis=1, keepdims=True)), slope)
    return xp.astype(xp.reshape(_of_rows(xp, slope, grad, reduction), xp.shape(x)), xp.dtype_of(x))


def _rows(xp: Any, x: Array) -> Array:
    """(N, C) of an input that may be one sample (C,)."""
    return x if xp.ndim(x) == 2 else xp.reshape(x, (1, xp.size(x)))


def _of_rows(xp: Any, slope: Array, grad: Array, reduction: int) -> Array:
    """The chain rule where each row of `slope` belongs to one loss."""
    grad = _wide(xp, grad)
    if reduction == NONE:
        return xp.multiply(slope, xp.reshape(grad, (xp.shape(slope)[0], 1)))
    return xp.multiply(xp.divide(slope, max(xp.shape(slope)[0], 1)) if reduction == MEAN else slope, grad)


def _label_sets(xp: Any, target: Array) -> tuple[Array, Array]:
    """(which entries of (N, C) are labels: those before the first -1; which classes they name)."""
    target = xp.astype(target, dtypes.int64)
    before = xp.cumsum(xp.astype(xp.less(target, 0), dtypes.int64), 1)
    valid = xp.equal(before, 0)
    classes = xp.shape(target)[1]
    hot = xp.equal(xp.expand_dims(target, 2), xp.iota(classes, dtypes.int64))
    return valid, xp.any(xp.logical_and(hot, xp.expand_dims(valid, 2)), axis=1)


def _multilabel_margins(xp: Any, x: Array, target: Array) -> tuple[Array, Array, Array]:
    """(1 - (x[label j] - x[class i]) (N, j, i), where that counts, the labels (N, j), 0 where there is none)."""
    valid, named = _label_sets(xp, target)
    safe = xp.where(valid, xp.astype(target, dtypes.int64), xp.zeros(xp.shape(target), dtypes.int64))
    z = xp.add(xp.subtract(xp.expand_dims(x, 1), xp.expand_dims(xp.take_along_axis(x, safe, 1), 2)), 1)
    counts = xp.logical_and(xp.expand_dims(valid, 2), xp.logical_not(xp.expand_dims(named, 1)))
    return z, xp.logical_and(counts, xp.greater(z, 0)), safe


@kernel("multilabel_margin_loss_forward")
def _multilabel_margin(xp: Any, x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    rows, targets = _wide(xp, _rows(xp, x)), _rows(xp, target)
    z, counts, _ = _multilabel_margins(xp, rows, targets)
    loss = xp.divide(xp.sum(xp.where(counts, z, xp.zeros_like(z)), axis=(1, 2)), max(xp.shape(rows)[1], 1))
    out = _reduced(xp, loss, reduction)
    if reduction == NONE:
        out = xp.reshape(out, xp.shape(x)[:-1])
    named = xp.reshape(_label_sets(xp, targets)[1], xp.shape(target))
    return xp.astype(out, xp.dtype_of(x)), xp.astype(named, xp.dtype_of(x))


@kernel("multilabel_margin_loss_backward", meta=False)
def _multilabel_margin_backward(
    xp: Any, grad: Array, x: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    rows, targets = _wide(xp, _rows(xp, x)), _rows(xp, target)
    _, counts, safe = _multilabel_margins(xp, rows, targets)
    each = xp.divide(xp.astype(counts, xp.dtype_of(rows)), max(xp.shape(rows)[1], 1))
    slope = xp.put_along_axis(xp.sum(each, axis=1), safe, xp.negative(xp.sum(each, axis=2)), 1, mode="add")
    return xp.astype(xp.reshape(_of_rows(xp, slope, grad, reduction), xp.shape(x)), xp.dtype_of(x))
