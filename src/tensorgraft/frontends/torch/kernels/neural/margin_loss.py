"""Margin losses: of samples with one class, and with several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import require
from tensorgraft.frontends.torch.kernels.bounds import within
from tensorgraft.frontends.torch.kernels.neural.loss import MEAN, NONE, reduced, widened
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _meta(packet: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's meta function, changed so that a sample without a batch has a loss without axes, as on the
    CPU."""

    def meta(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = packet(x, *args, **kwargs)
        loss = out[0] if isinstance(out, tuple) else out
        if x.dim() < 2:
            loss.resize_(())
        return out

    return meta


@with_operators
def _margins(xp: Any, x: Value, target: Value, margin: float, weight: Value | None) -> tuple[Value, ...]:
    """Return (margins (N, C), a mask of violated ones (NaN violates none), the target's one-hot, the weight of each
    sample)."""
    x = widened(xp, x)
    target = within(xp, target, x.shape[1], lambda value: RuntimeError("target out of range"))
    at = xp.expand_dims(target, 1)
    z = x - xp.take_along_axis(x, at, 1) + margin
    hot = at == xp.iota(x.shape[1], dtypes.int64)
    w = xp.ones(target.shape, x.dtype) if weight is None else widened(xp, xp.gather(weight, (target,)))
    return z, (z > 0) & ~hot, hot, xp.expand_dims(w, 1)


@kernel("multi_margin_loss", meta=_meta(torch.ops.aten.multi_margin_loss))
def _multi_margin(
    xp: Any,
    x: Array,
    target: Array,
    p: float = 1,  # PyTorch takes its whole part
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    rows, targets = _rows(xp, x), xp.reshape(target, (xp.size(target),))
    z, counts, _, w = _margins(xp, rows, targets, margin, weight)
    loss = xp.multiply(xp.multiply(z, z) if int(p) == 2 else z, w)
    loss = xp.sum(xp.where(counts, loss, xp.zeros_like(loss)), axis=1)
    out = reduced(xp, xp.divide(loss, max(xp.shape(rows)[1], 1)), reduction)
    return xp.astype(xp.reshape(out, xp.shape(target)) if reduction == NONE else out, xp.dtype_of(x))


@kernel("multi_margin_loss_backward", meta=False)
@with_operators
def _multi_margin_backward(
    xp: Any,
    grad: Value,
    x: Value,
    target: Value,
    p: float,
    margin: float,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    rows, targets = _rows(xp, x), xp.reshape(target, (xp.size(target),))
    z, counts, hot, w = _margins(xp, rows, targets, margin, weight)
    slope = z * 2 if int(p) == 2 else xp.ones_like(z)
    slope = slope * w / max(rows.shape[1], 1)
    slope = xp.where(counts, slope, xp.zeros_like(slope))
    slope = xp.where(hot, -xp.sum(slope, axis=1, keepdims=True), slope)
    return xp.astype(xp.reshape(_of_rows(xp, slope, grad, reduction), x.shape), x.dtype)


def _rows(xp: Any, x: AnyArray) -> AnyArray:
    """Return (N, C) of an input that may be one sample (C,)."""
    return x if xp.ndim(x) == 2 else xp.reshape(x, (1, xp.size(x)))


def _of_rows(xp: Any, slope: AnyArray, grad: AnyArray, reduction: int) -> AnyArray:
    """Multiply the slopes, whose rows belong to one loss each, by the gradient of the reduced losses."""
    grad = widened(xp, grad)
    if reduction == NONE:
        return xp.multiply(slope, xp.reshape(grad, (xp.shape(slope)[0], 1)))
    return xp.multiply(xp.divide(slope, max(xp.shape(slope)[0], 1)) if reduction == MEAN else slope, grad)


@with_operators
def _label_sets(xp: Any, target: Value) -> tuple[Value, Value]:
    """Return (a mask (N, C) of the entries that are labels, those before the first -1; a mask of the classes that they
    name)."""
    target, classes = xp.astype(target, dtypes.int64), target.shape[1]
    in_range = (target >= -1) & (target < classes)
    require(xp, (in_range, "argument #2 'target' is out of range"))
    before = xp.cumsum(xp.astype(target < 0, dtypes.int64), 1)
    valid = before == 0
    hot = xp.expand_dims(target, 2) == xp.iota(classes, dtypes.int64)
    return valid, xp.any(hot & xp.expand_dims(valid, 2), axis=1)


@with_operators
def _multilabel_margins(xp: Any, x: Value, target: Value) -> tuple[Value, Value, Value]:
    """Return (1 - (x[label j] - x[class i]) (N, j, i), a mask of the terms that count, the labels (N, j), 0 for
    none)."""
    valid, named = _label_sets(xp, target)
    safe = xp.where(valid, xp.astype(target, dtypes.int64), xp.zeros(target.shape, dtypes.int64))
    z = xp.expand_dims(x, 1) - xp.expand_dims(xp.take_along_axis(x, safe, 1), 2) + 1
    counts = xp.expand_dims(valid, 2) & ~xp.expand_dims(named, 1)
    return z, counts & (z > 0), safe


@kernel("multilabel_margin_loss_forward", meta=_meta(torch.ops.aten.multilabel_margin_loss_forward))
def _multilabel_margin(xp: Any, x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    if not xp.size(x):  # without elements, any dtype
        dtype = xp.dtype_of(x)
        return xp.zeros(xp.shape(x)[:-1] if reduction == NONE else (), dtype), xp.zeros(xp.shape(target), dtype)
    rows, targets = widened(xp, _rows(xp, x)), _rows(xp, target)
    z, counts, _ = _multilabel_margins(xp, rows, targets)
    loss = xp.divide(xp.sum(xp.where(counts, z, xp.zeros_like(z)), axis=(1, 2)), max(xp.shape(rows)[1], 1))
    out = reduced(xp, loss, reduction)
    if reduction == NONE:
        out = xp.reshape(out, xp.shape(x)[:-1])
    named = xp.reshape(_label_sets(xp, targets)[1], xp.shape(target))
    return xp.astype(out, xp.dtype_of(x)), xp.astype(named, xp.dtype_of(x))


@kernel("multilabel_margin_loss_backward", meta=False)
def _multilabel_margin_backward(
    xp: Any, grad: Array, x: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    rows, targets = widened(xp, _rows(xp, x)), _rows(xp, target)
    _, counts, safe = _multilabel_margins(xp, rows, targets)
    share = xp.divide(xp.astype(counts, xp.dtype_of(rows)), max(xp.shape(rows)[1], 1))
    slope = xp.put_along_axis(xp.sum(share, axis=1), safe, xp.negative(xp.sum(share, axis=2)), 1, mode="add")
    return xp.astype(xp.reshape(_of_rows(xp, slope, grad, reduction), xp.shape(x)), xp.dtype_of(x))
