"""Batch normalisation. A kernel gives the new running statistics first, then its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.frontends.torch.kernels.neural.normalization import affine, moments, widened
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

Axes = tuple[int, ...]


def of_channels(xp: Any, v: Any, x: Array) -> Any:
    """Return a vector with an entry a channel, in the shape that broadcasts against `x`."""
    if v is None:
        return None
    return xp.reshape(widened(xp, v, x), (1, xp.size(v), *(1,) * (xp.ndim(x) - 2)))


def axes_but_channel(xp: Any, x: Array) -> Axes:
    return (0, *range(2, xp.ndim(x)))


def flat(xp: Any, v: AnyArray) -> AnyArray:
    return xp.reshape(v, (xp.size(v),))


@with_operators
def _batch_norm(
    xp: Any,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[list[Value | None], list[Value]]:
    """Return (the new running statistics, one for each that is given; [result, saved mean, saved 1 / deviation])."""
    wide, axes = widened(xp, x), axes_but_channel(xp, x)
    running: list[Value | None] = [v for v in (running_mean, running_var) if v is not None]
    mean: Any
    if training:
        mean, var = moments(xp, wide, axes)
        n = xp.count(x, axes)
        new_stats = (flat(xp, mean), flat(xp, var) * (n / (n - 1) if n > 1 else math.nan))
        old_new = zip((running_mean, running_var), new_stats, strict=True)
        mixed = []
        for old, new in old_new:
            if old is not None:
                old = widened(xp, old)
                new = xp.astype(new, old.dtype)
                mixed.append(old * (1 - momentum) + new * momentum)
        running, rstd = mixed, xp.rsqrt(var + eps)
        saved = [flat(xp, mean), flat(xp, rstd)]
    else:
        running = [None] * len(running)
        mean = of_channels(xp, running_mean, x)
        rstd = xp.rsqrt(of_channels(xp, running_var, x) + eps)
        saved = [flat(xp, mean), flat(xp, rstd)]
    normal = (wide - mean) * rstd
    return running, [affine(xp, normal, of_channels(xp, weight, x), of_channels(xp, bias, x)), *saved]


def _batch_norm_meta(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Return the CPU's metadata: evaluation saves no statistics; their dtype is that of the running ones, else that of
    `x`."""
    saved = x.new_empty((x.shape[1] if training else 0,), dtype=(x if running_mean is None else running_mean).dtype)
    return torch.empty_like(x), saved, torch.empty_like(saved)


@kernel("native_batch_norm", writes=("running_mean", "running_var"), meta=_batch_norm_meta)
def _native_batch_norm(xp: Any, *args: Any) -> tuple[Any, ...]:
    x, training = args[0], args[5]
    running, (out, mean, rstd) = _batch_norm(xp, *args)
    if not training:
        mean = rstd = xp.zeros((0,), dtypes.accumulator(xp.dtype_of(x)))
    return *running, out, mean, rstd


kernel("_native_batch_norm_legit", meta=_batch_norm_meta)(_native_batch_norm)


@kernel(
    "_native_batch_norm_legit.no_stats",
    meta=lambda x, weight, bias, training, momentum, eps: _batch_norm_meta(
        x, weight, bias, None, None, True, momentum, eps
    ),
)
def _batch_norm_no_stats(
    xp: Any, x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, ...]:
    return tuple(_batch_norm(xp, x, weight, bias, None, None, True, momentum, eps)[1])


def _update_meta(
    x: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    results = _batch_norm_meta(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, x.new_empty((0,), dtype=torch.uint8)


@kernel("_batch_norm_with_update", meta=_update_meta)
def _batch_norm_with_update(
    xp: Any,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array | None, ...]:
    running, results = _batch_norm(xp, x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *running, *results, xp.zeros((0,), dtypes.uint8)


def _gradients_meta(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, *rest: Any) -> Any:
    of_channels = x.new_empty((x.shape[1],), dtype=(x if weight is None else weight).dtype)
    return torch.empty_like(x), of_channels, torch.empty_like(of_channels)


@with_operators
def _batch_norm_gradients(
    xp: Any,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    saved_mean: Value | None,
    saved_rstd: Value | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    axes = axes_but_channel(xp, x)
    if training:
        mean, rstd = of_channels(xp, saved_mean, x), of_channels(xp, saved_rstd, x)
    else:
        mean, rstd = of_channels(xp, running_mean, x), xp.rsqrt(of_channels(xp, running_var, x) + eps)
    grad = widened(xp, grad, x)
    normal = (widened(xp, x) - mean) * rstd
    grad_x = grad_weight = grad_bias = None
    through_statistics = mask[0] and training
    if mask[1] or through_statistics:
        grad_weight = xp.sum(grad * normal, axis=axes)
    if mask[2] or through_statistics:
        grad_bias = xp.sum(grad, axis=axes)
    if mask[0]:
        scale = rstd if weight is None else rstd * of_channels(xp, weight, x)
        if training:
            means = (of_channels(xp, v, x) / max(xp.count(x, axes), 1) for v in (grad_weight, grad_bias))
            grad = grad - normal * next(means) - next(means)
        grad_x = grad * scale
    return grad_x, grad_weight if mask[1] else None, grad_bias if mask[2] else None


kernel("native_batch_norm_backward", meta=masked(_gradients_meta))(_batch_norm_gradients)


@kernel("batch_norm_backward", meta=masked(_gradients_meta))
def _batch_norm_backward(xp: Any, *arguments: Any) -> tuple[Array | None, ...]:
    """Compute the gradients. The last argument is what the forward pass has reserved for its implementation."""
    return _batch_norm_gradients(xp, *arguments[:-1])
