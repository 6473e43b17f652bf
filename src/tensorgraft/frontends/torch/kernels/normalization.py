"""Layer, group, batch and RMS normalisation. Statistics are taken in at least float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.kernels.masks import masked
from tensorgraft.frontends.torch.spec import kernel
from tensorgraft.hub import dtypes

aten = torch.ops.aten
Array = Any
Axes = tuple[int, ...]


def _wide(xp: Any, x: Array | None, like: Array | None = None) -> Array | None:
    """`x` in the dtype in which `like` (`x` itself by default) is accumulated."""
    if x is None:
        return None
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x if like is None else like)))


def _moments(xp: Any, x: Array, axes: Axes) -> tuple[Array, Array]:
    """(mean, biased variance), axes kept."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = xp.subtract(x, mean)
    return mean, xp.mean(xp.multiply(centred, centred), axis=axes, keepdims=True)


def _input_gradient(xp: Any, grad: Array, normal: Array, rstd: Array, axes: Axes) -> Array:
    """The gradient in x of `normal` = (x - mean) * rstd, whose own gradient is `grad`."""
    if not xp.count(grad, axes):
        return grad
    first = xp.mean(grad, axis=axes, keepdims=True)
    second = xp.mean(xp.multiply(grad, normal), axis=axes, keepdims=True)
    return xp.multiply(xp.subtract(xp.subtract(grad, first), xp.multiply(normal, second)), rstd)


def _affine(xp: Any, x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = xp.multiply(x, weight)
    return x if bias is None else xp.add(x, bias)


def _meta(op: Any, *parameters: int) -> Any:
    """The meta function of `op`, but its statistics have the CPU's dtype: that of the parameters at these positions,
    else the input's."""

    def meta(*args: Any) -> tuple[torch.Tensor, ...]:
        out, mean, rstd = op(*args)
        given = [args[i] for i in parameters if args[i] is not None]
        dtype = (given[0] if given else args[0]).dtype
        return out, mean.to(dtype), rstd.to(dtype)

    return meta


# ---- over the last axes ----------------------------------------------------------------------------------------------


@kernel("native_layer_norm", meta=_meta(aten.native_layer_norm.default, 2, 3))
def _layer_norm(
    xp: Any, x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(xp.ndim(x) - len(normalized_shape), xp.ndim(x)))
    wide = _wide(xp, x)
    mean, var = _moments(xp, wide, axes)
    rstd = xp.rsqrt(xp.add(var, eps))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    return _affine(xp, normal, _wide(xp, weight, x), _wide(xp, bias, x)), mean, rstd


@kernel("native_layer_norm_backward", meta=masked(aten.native_layer_norm_backward.default))
def _layer_norm_backward(
    xp: Any,
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    inner = xp.ndim(x) - len(normalized_shape)
    axes, lead = tuple(range(inner, xp.ndim(x))), tuple(range(inner))
    grad, mean, rstd = (_wide(xp, v, x) for v in (grad, mean, rstd))
    normal = xp.multiply(xp.subtract(_wide(xp, x), mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad if weight is None else xp.multiply(grad, _wide(xp, weight, x))
        grad_x = _input_gradient(xp, scaled, normal, rstd, axes)
    if mask[1] and weight is not None:
        grad_weight = xp.sum(xp.multiply(grad, normal), axis=lead) if lead else xp.multiply(grad, normal)
    if mask[2] and bias is not None:
        grad_bias = xp.sum(grad, axis=lead) if lead else grad
    return grad_x, grad_weight, grad_bias


@kernel("_fused_rms_norm")
def _rms_norm(
    xp: Any, x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    axes = tuple(range(xp.ndim(x) - len(normalized_shape), xp.ndim(x)))
    wide = _wide(xp, x)
    eps = float(dtypes.finfo(xp.dtype_of(wide)).eps) if eps is None else eps
    rstd = xp.rsqrt(xp.add(xp.mean(xp.multiply(wide, wide), axis=axes, keepdims=True), eps))
    return _affine(xp, xp.multiply(wide, rstd), _wide(xp, weight, x), None), rstd


@kernel("_fused_rms_norm_backward", meta=masked(aten._fused_rms_norm_backward.default))
def _rms_norm_backward(
    xp: Any,
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    inner = xp.ndim(x) - len(normalized_shape)
    axes, lead = tuple(range(inner, xp.ndim(x))), tuple(range(inner))
    grad, rstd = _wide(xp, grad, x), _wide(xp, rstd, x)
    normal = xp.multiply(_wide(xp, x), rstd)
    grad_x = grad_weight = None
    if mask[0]:
        scaled = grad if weight is None else xp.multiply(grad, _wide(xp, weight, x))
        along = xp.mean(xp.multiply(scaled, normal), axis=axes, keepdims=True)
        grad_x = xp.multiply(xp.subtract(scaled, xp.multiply(normal, along)), rstd)
    if mask[1] and weight is not None:
        grad_weight = xp.sum(xp.multiply(grad, normal), axis=lead)
    return grad_x, grad_weight


# ---- over groups of channels -----------------------------------------------------------------------------------------


@kernel("native_group_norm", meta=_meta(aten.native_group_norm.default, 1, 2))
def _group_norm(
    xp: Any,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    wide = xp.reshape(_wide(xp, x), (n, group, c // group, hxw))
    mean, var = _moments(xp, wide, (2, 3))
    rstd = xp.rsqrt(xp.add(var, eps))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    weight, bias = (None if v is None else xp.reshape(_wide(xp, v, x), (group, c // group, 1)) for v in (weight, bias))
    out = xp.reshape(_affine(xp, normal, weight, bias), xp.shape(x))
    return out, xp.reshape(mean, (n, group)), xp.reshape(rstd, (n, group))


@kernel("native_group_norm_backward", meta=masked(aten.native_group_norm_backward.default))
def _group_norm_backward(
    xp: Any,
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    split = (n, group, c // group, hxw)
    wide, grad = (xp.reshape(_wide(xp, v, x), split) for v in (x, grad))
    mean, rstd = (xp.reshape(_wide(xp, v, x), (n, group, 1, 1)) for v in (mean, rstd))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad
        if weight is not None:
            scaled = xp.multiply(grad, xp.reshape(_wide(xp, weight, x), (group, c // group, 1)))
        grad_x = xp.reshape(_input_gradient(xp, scaled, normal, rstd, (2, 3)), xp.shape(x))
    if mask[1]:
        grad_weight = xp.reshape(xp.sum(xp.multiply(grad, normal), axis=(0, 3)), (c,))
    if mask[2]:
        grad_bias = xp.reshape(xp.sum(grad, axis=(0, 3)), (c,))
    return grad_x, grad_weight, grad_bias


# ---- over the batch --------------------------------------------------------------------------------------------------


def _channel(xp: Any, v: Array | None, x: Array) -> Array | None:
    """A vector with an entry a channel, in the shape that broadcasts against `x`."""
    if v is None:
        return None
    return xp.reshape(_wide(xp, v, x), (1, xp.shape(v)[0], *(1,) * (xp.ndim(x) - 2)))


def _axes_but_channel(xp: Any, x: Array) -> Axes:
    return (0, *range(2, xp.ndim(x)))


def _flat(xp: Any, v: Array) -> Array:
    return xp.reshape(v, (xp.size(v),))


def _batch_norm(
    xp: Any,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[list[Array | None], list[Array]]:
    """(the new running statistics, one for each that is given; [result, saved mean, saved 1 / deviation])."""
    wide, axes = _wide(xp, x), _axes_but_channel(xp, x)
    running: list[Array | None] = [v for v in (running_mean, running_var) if v is not None]
    if training:
        mean, var = _moments(xp, wide, axes)
        n = xp.count(x, axes)
        news = (_flat(xp, mean), xp.multiply(_flat(xp, var), n / (n - 1) if n > 1 else math.nan))
        old_new = zip((running_mean, running_var), news, strict=True)
        mixed = []
        for old, new in old_new:
            if old is not None:
                old = _wide(xp, old)
                new = xp.astype(new, xp.dtype_of(old))
                mixed.append(xp.add(xp.multiply(old, 1 - momentum), xp.multiply(new, momentum)))
        running, rstd = mixed, xp.rsqrt(xp.add(var, eps))
        saved = [_flat(xp, mean), _flat(xp, rstd)]
    else:
        running = [None] * len(running)
        mean = _channel(xp, running_mean, x)
        rstd = xp.rsqrt(xp.add(_channel(xp, running_var, x), eps))
        saved = [_flat(xp, mean), _flat(xp, rstd)]
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    return running, [_affine(xp, normal, _channel(xp, weight, x), _channel(xp, bias, x)), *saved]


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
    """As on the CPU: no statistics are saved in evaluation; their dtype is that of the running ones, else `x`'s."""
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


@kernel(
    "_batch_norm_with_update",
    meta=lambda *args: (*_batch_norm_meta(*args[:5], True, *args[5:]), args[0].new_empty((0,), dtype=torch.uint8)),
)
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
    running, made = _batch_norm(xp, x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *running, *made, xp.zeros((0,), dtypes.uint8)


def _gradients_meta(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, *rest: Any) -> Any:
    of_channels = x.new_empty((x.shape[1],), dtype=(x if weight is None else weight).dtype)
    return torch.empty_like(x), of_channels, torch.empty_like(of_channels)


def _batch_norm_gradients(
    xp: Any,
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    saved_mean: Array | None,
    saved_rstd: Array | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    axes = _axes_but_channel(xp, x)
    if training:
        mean, rstd = _channel(xp, saved_mean, x), _channel(xp, saved_rstd, x)
    else:
        mean, rstd = _channel(xp, running_mean, x), xp.rsqrt(xp.add(_channel(xp, running_var, x), eps))
    grad = _wide(xp, grad, x)
    normal = xp.multiply(xp.subtract(_wide(xp, x), mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad if weight is None else xp.multiply(grad, _channel(xp, weight, x))
        grad_x = _input_gradient(xp, scaled, normal, rstd, axes) if training else xp.multiply(scaled, rstd)
    if mask[1]:
        grad_weight = xp.sum(xp.multiply(grad, normal), axis=axes)
    if mask[2]:
        grad_bias = xp.sum(grad, axis=axes)
    return grad_x, grad_weight, grad_bias


kernel("native_batch_norm_backward", meta=masked(_gradients_meta))(_batch_norm_gradients)


@kernel("batch_norm_backward", meta=masked(_gradients_meta))
def _batch_norm_backward(
    xp: Any,
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    saved_mean: Array | None,
    saved_rstd: Array | None,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    reserve: Array,
) -> tuple[Array | None, ...]:
    return _batch_norm_gradients(
        xp, grad, x, weight, running_mean, running_var, saved_mean, saved_rstd, update, eps, mask
    )
