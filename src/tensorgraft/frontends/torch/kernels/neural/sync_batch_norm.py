"""Batch normalisation over the batches of several processes (`torch.nn.SyncBatchNorm`): the computations of a process
before and after its collectives. PyTorch has these operators for GPUs only.

Statistics have the dtype in which the input is accumulated: float32 for float16 and bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.batch_norm import axes_but_channel, flat, of_channels
from tensorgraft.frontends.torch.kernels.neural.normalization import affine, moments, widened
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


def _statistics(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    mean = x.new_empty((x.shape[1],), dtype=dtype)
    return mean, torch.empty_like(mean)


@kernel("batch_norm_stats", meta=_statistics)
def _stats(xp: Any, x: Array, eps: float) -> tuple[Array, Array]:
    mean, var = moments(xp, widened(xp, x), axes_but_channel(xp, x))
    return flat(xp, mean), flat(xp, xp.rsqrt(xp.add(var, eps)))


@kernel("batch_norm_gather_stats_with_counts", writes=("running_mean", "running_var"), meta=_statistics)
@with_operators
def _gathered_stats(
    xp: Any,
    x: Value,
    means: Value,
    rstds: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
    counts: Value,
) -> tuple[Value, ...]:
    """Return (new running statistics, for those that are not None; mean and 1 / deviation over all processes). `means`
    and `rstds` (processes, channels) and `counts` (processes,) are the statistics of each process."""
    wide = dtypes.accumulator(x.dtype)
    means, rstds, counts = (xp.astype(v, wide) for v in (means, rstds, counts))
    counts = xp.reshape(counts, (xp.size(counts), 1))
    total = xp.sum(counts, axis=(0, 1))
    mean = xp.sum(means * counts, axis=(0,)) / total
    deviations = means - mean
    var = 1.0 / (rstds * rstds) - eps
    squares = xp.sum((var + deviations * deviations) * counts, axis=(0,))
    unbiased = squares / (total - 1.0)
    running = []
    for old, new in ((running_mean, mean), (running_var, unbiased)):
        if old is not None:
            mixed = xp.astype(old, wide) * (1 - momentum) + new * momentum
            running.append(xp.astype(mixed, old.dtype))
    return *running, mean, xp.rsqrt(squares / total + eps)


@kernel("batch_norm_elemt", meta=lambda x, *rest: torch.empty_like(x))
def _normalized(
    xp: Any, x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array, eps: float
) -> Array:
    centred = xp.subtract(widened(xp, x), of_channels(xp, mean, x))
    normal = xp.multiply(centred, of_channels(xp, rstd, x))
    return affine(xp, normal, of_channels(xp, weight, x), of_channels(xp, bias, x))


def _sums(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *mask: bool,
) -> tuple[torch.Tensor | None, ...]:
    of_weight = mean if weight is None else weight
    results = [torch.empty_like(v) for v in (mean, mean, of_weight, of_weight)]
    return tuple(v if keep else None for v, keep in zip(results, (mask[0], *mask), strict=True))


@kernel("batch_norm_backward_reduce", meta=_sums)
def _gradient_sums(
    xp: Any,
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Array | None, ...]:
    """Return (sum of the gradient, sum of it times the centred input, gradients of weight and bias) of this process."""
    axes, grad = axes_but_channel(xp, x), widened(xp, grad, x)
    centred = xp.subtract(widened(xp, x), of_channels(xp, mean, x))
    first, second = xp.sum(grad, axis=axes), xp.sum(xp.multiply(grad, centred), axis=axes)
    of_weight = xp.multiply(second, xp.astype(rstd, xp.dtype_of(second)))
    return (*((first, second) if input_g else (None, None)), of_weight if weight_g else None, first if bias_g else None)


@kernel("batch_norm_backward_elemt", meta=lambda grad, x, *rest: torch.empty_like(x))
@with_operators
def _input_gradient(
    xp: Any,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    sum_dy: Value,
    sum_dy_xmu: Value,
    count: Value,
) -> Value:
    wide = widened(xp, x)
    total = xp.sum(xp.astype(count, wide.dtype), axis=tuple(range(count.ndim)))
    mean, rstd, first, second = (of_channels(xp, v, x) for v in (mean, rstd, sum_dy, sum_dy_xmu))
    slope = second * (rstd * rstd) / total
    grad = widened(xp, grad, x) - first / total
    grad = grad - (wide - mean) * slope
    return affine(xp, grad * rstd, of_channels(xp, weight, x), None)
