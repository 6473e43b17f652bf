"""Batch normalisation as one operation, and local response normalisation."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


def _axes(xp: Any, x: Array, data_format: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (the axes that are averaged over, the shape of a number a channel)."""
    n = xp.ndim(x)
    channel = 1 if data_format.startswith("NC") else n - 1
    return tuple(a for a in range(n) if a != channel), tuple(-1 if a == channel else 1 for a in range(n))


def _broadcastable(xp: Any, v: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    return xp.reshape(v, tuple(xp.size(v) if n < 0 else n for n in shape))


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
@with_operators
def fused_batch_norm(
    xp: ValueBackend,
    x: Value,
    scale: Value,
    offset: Value,
    mean: Value,
    variance: Value,
    *,
    node: Any,
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> list[Value]:
    """Return (result, running mean, running variance, and the residuals: mean, variance, an empty array)."""
    axes, shape = _axes(xp, x, data_format)
    wide = xp.astype(x, dtypes.float32)
    batch_mean, batch_variance = mean, variance
    running = [mean, variance]
    if is_training:
        batch_mean, batch_variance = xp.mean(wide, axis=axes), xp.var(wide, axis=axes)
        count = xp.count(x, axes)
        unbiased = batch_variance * (count / max(count - 1, 1))
        running = [batch_mean, unbiased]
        if exponential_avg_factor != 1.0:
            keep = 1 - exponential_avg_factor
            running = [
                old * keep + new * exponential_avg_factor for old, new in ((mean, batch_mean), (variance, unbiased))
            ]
    factor = xp.rsqrt(batch_variance + epsilon) * scale
    y = (wide - _broadcastable(xp, batch_mean, shape)) * _broadcastable(xp, factor, shape)
    y = xp.astype(y + _broadcastable(xp, offset, shape), x.dtype)
    rest = [batch_mean, batch_variance, xp.zeros((0,), dtypes.float32)]
    return [y, *running, *rest][: len(node.dtypes)]


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
@with_operators
def fused_batch_norm_grad(
    xp: ValueBackend,
    d: Value,
    x: Value,
    scale: Value,
    mean: Value,
    variance: Value,
    *_: Value,
    epsilon: float = 1e-4,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> list[Value]:
    axes, shape = _axes(xp, x, data_format)
    dtype = x.dtype
    d, wide = xp.astype(d, dtypes.float32), xp.astype(x, dtypes.float32)
    inverse = xp.rsqrt(variance + epsilon)
    centred = (wide - _broadcastable(xp, mean, shape)) * _broadcastable(xp, inverse, shape)
    offset_grad = xp.sum(d, axis=axes)
    scale_grad = xp.sum(d * centred, axis=axes)
    if is_training:
        count = xp.count(x, axes)
        share = (_broadcastable(xp, offset_grad, shape) + centred * _broadcastable(xp, scale_grad, shape)) / count
        d = d - share
    x_grad = xp.astype(d * _broadcastable(xp, inverse * scale, shape), dtype)
    unused = xp.zeros((0,) if dtype == dtypes.float16 else (), dtypes.float32)  # places of the kernels of GPUs
    return [x_grad, scale_grad, offset_grad, unused, unused]
