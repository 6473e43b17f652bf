"""Batch normalisation as one operation, and local response normalisation."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _axes(xp: Backend, x: Array, data_format: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the axes that are averaged over, the shape of a number a channel)."""
    n = xp.ndim(x)
    channel = 1 if data_format.startswith("NC") else n - 1
    return tuple(a for a in range(n) if a != channel), tuple(-1 if a == channel else 1 for a in range(n))


def _along(xp: Backend, v: Array, shape: tuple[int, ...]) -> Array:
    return xp.reshape(v, tuple(xp.size(v) if n < 0 else n for n in shape))


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def fused_batch_norm(
    xp: Backend,
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    node: Any,
    epsilon: float = 1e-4,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> list[Array]:
    """(result, running mean, running variance, what the derivative takes: the mean, the variance, and nothing)."""
    axes, shape = _axes(xp, x, data_format)
    wide = xp.astype(x, dtypes.float32)
    batch_mean, batch_variance = mean, variance
    running = [mean, variance]
    if is_training:
        batch_mean, batch_variance = xp.mean(wide, axis=axes), xp.var(wide, axis=axes)
        count = xp.count(x, axes)
        unbiased = xp.multiply(batch_variance, count / max(count - 1, 1))
        running = [batch_mean, unbiased]
        if exponential_avg_factor != 1.0:
            keep = 1 - exponential_avg_factor
            running = [
                xp.add(xp.multiply(old, keep), xp.multiply(new, exponential_avg_factor))
                for old, new in ((mean, batch_mean), (variance, unbiased))
            ]
    factor = xp.multiply(xp.rsqrt(xp.add(batch_variance, epsilon)), scale)
    y = xp.multiply(xp.subtract(wide, _along(xp, batch_mean, shape)), _along(xp, factor, shape))
    y = xp.astype(xp.add(y, _along(xp, offset, shape)), xp.dtype_of(x))
    rest = [batch_mean, batch_variance, xp.zeros((0,), dtypes.float32)]
    return [y, *running, *rest][: len(node.dtypes)]


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def fused_batch_norm_grad(
    xp: Backend,
    d: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    *_: Array,
    epsilon: float = 1e-4,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> list[Array]:
    axes, shape = _axes(xp, x, data_format)
    dtype = xp.dtype_of(x)
    d, wide = xp.astype(d, dtypes.float32), xp.astype(x, dtypes.float32)
    inverse = xp.rsqrt(xp.add(variance, epsilon))
    centred = xp.multiply(xp.subtract(wide, _along(xp, mean, shape)), _along(xp, inverse, shape))
    offset_grad = xp.sum(d, axis=axes)
    scale_grad = xp.sum(xp.multiply(d, centred), axis=axes)
    if is_training:
        count = xp.count(x, axes)
        share = xp.divide(
            xp.add(_along(xp, offset_grad, shape), xp.multiply(centred, _along(xp, scale_grad, shape))), count
        )
        d = xp.subtract(d, share)
    x_grad = xp.astype(xp.multiply(d, _along(xp, xp.multiply(inverse, scale), shape)), dtype)
    nothing = xp.zeros((0,) if dtype == dtypes.float16 else (), dtypes.float32)  # places of the kernels of GPUs
    return [x_grad, scale_grad, offset_grad, nothing, nothing]
