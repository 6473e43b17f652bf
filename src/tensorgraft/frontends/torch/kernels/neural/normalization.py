"""Layer, group and RMS normalisation. Statistics are taken in at least float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

aten = torch.ops.aten
Axes = tuple[int, ...]


def widened(xp: Any, x: Any, like: Array | None = None) -> Any:
    """Return `x` in the dtype in which `like` (by default `x` itself) is accumulated."""
    if x is None:
        return None
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x if like is None else like)))


def moments(xp: Any, x: AnyArray, axes: Axes) -> tuple[AnyArray, AnyArray]:
    """Return (mean, biased variance), axes kept."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = xp.subtract(x, mean)
    return mean, xp.mean(xp.multiply(centred, centred), axis=axes, keepdims=True)


def input_gradient(xp: Any, grad: Value, normal: Value, rstd: Value, axes: Axes) -> Value:
    """Return the gradient in x of `normal` = (x - mean) * rstd, whose own gradient is `grad`."""
    if not xp.count(grad, axes):
        return grad
    first = xp.mean(grad, axis=axes, keepdims=True)
    second = xp.mean(grad * normal, axis=axes, keepdims=True)
    return (grad - first - normal * second) * rstd


def affine(xp: Any, x: AnyArray, weight: AnyArray | None, bias: AnyArray | None) -> AnyArray:
    if weight is not None:
        x = xp.multiply(x, weight)
    return x if bias is None else xp.add(x, bias)


def _meta(op: Any, *parameters: int) -> Any:
    """Return the meta function of `op`, but its statistics have the CPU's dtype: that of the parameters at these
    positions, else the input's."""

    def meta(*args: Any) -> tuple[torch.Tensor, ...]:
        out, mean, rstd = op(*args)
        affine = [args[i] for i in parameters if args[i] is not None]
        dtype = (affine[0] if affine else args[0]).dtype
        return out, mean.to(dtype), rstd.to(dtype)

    return meta


# ---- over the last axes ----------------------------------------------------------------------------------------------


@kernel("native_layer_norm", meta=_meta(aten.native_layer_norm.default, 2, 3))
@with_operators
def _layer_norm(
    xp: Any, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    normal, mean, rstd = xp.standardize(widened(xp, x), axes, eps)
    return affine(xp, normal, widened(xp, weight, x), widened(xp, bias, x)), mean, rstd


@kernel("native_layer_norm_backward", meta=masked(aten.native_layer_norm_backward.default))
@with_operators
def _layer_norm_backward(
    xp: Any,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    inner = x.ndim - len(normalized_shape)
    axes, lead = tuple(range(inner, x.ndim)), tuple(range(inner))
    grad, mean, rstd = (widened(xp, v, x) for v in (grad, mean, rstd))
    normal = (widened(xp, x) - mean) * rstd
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad if weight is None else grad * widened(xp, weight, x)
        grad_x = input_gradient(xp, scaled, normal, rstd, axes)
    if mask[1] and weight is not None:
        grad_weight = xp.sum(grad * normal, axis=lead) if lead else grad * normal
    if mask[2] and bias is not None:
        grad_bias = xp.sum(grad, axis=lead) if lead else grad
    return grad_x, grad_weight, grad_bias


@kernel("_fused_rms_norm")
def _rms_norm(
    xp: Any, x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    axes = tuple(range(xp.ndim(x) - len(normalized_shape), xp.ndim(x)))
    wide = widened(xp, x)
    eps = float(dtypes.finfo(xp.dtype_of(wide)).eps) if eps is None else eps
    rstd = xp.rsqrt(xp.add(xp.mean(xp.multiply(wide, wide), axis=axes, keepdims=True), eps))
    return affine(xp, xp.multiply(wide, rstd), widened(xp, weight, x), None), rstd


@kernel("_fused_rms_norm_backward", meta=masked(aten._fused_rms_norm_backward.default))
@with_operators
def _rms_norm_backward(
    xp: Any,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[int],
    rstd: Value,
    weight: Value | None,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    inner = x.ndim - len(normalized_shape)
    axes, lead = tuple(range(inner, x.ndim)), tuple(range(inner))
    grad, rstd = widened(xp, grad, x), widened(xp, rstd, x)
    normal = widened(xp, x) * rstd
    grad_x = grad_weight = None
    if mask[0]:
        scaled = grad if weight is None else grad * widened(xp, weight, x)
        projection = xp.mean(scaled * normal, axis=axes, keepdims=True)
        grad_x = (scaled - normal * projection) * rstd
    if mask[1] and weight is not None:
        grad_weight = xp.sum(grad * normal, axis=lead)
    return grad_x, grad_weight


# ---- over groups of channels -----------------------------------------------------------------------------------------


@kernel("native_group_norm", meta=_meta(aten.native_group_norm.default, 1, 2))
@with_operators
def _group_norm(
    xp: Any, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Value, Value, Value]:
    wide = xp.reshape(widened(xp, x), (n, group, c // group, hxw))
    normal, mean, rstd = xp.standardize(wide, (2, 3), eps)
    weight, bias = (
        None if v is None else xp.reshape(widened(xp, v, x), (group, c // group, 1)) for v in (weight, bias)
    )
    out = xp.reshape(affine(xp, normal, weight, bias), x.shape)
    return out, xp.reshape(mean, (n, group)), xp.reshape(rstd, (n, group))


@kernel("native_group_norm_backward", meta=masked(aten.native_group_norm_backward.default))
@with_operators
def _group_norm_backward(
    xp: Any,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    split = (n, group, c // group, hxw)
    wide, grad = (xp.reshape(widened(xp, v, x), split) for v in (x, grad))
    mean, rstd = (xp.reshape(widened(xp, v, x), (n, group, 1, 1)) for v in (mean, rstd))
    normal = (wide - mean) * rstd
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad
        if weight is not None:
            scaled = grad * xp.reshape(widened(xp, weight, x), (group, c // group, 1))
        grad_x = xp.reshape(input_gradient(xp, scaled, normal, rstd, (2, 3)), x.shape)
    if mask[1]:
        grad_weight = xp.reshape(xp.sum(grad * normal, axis=(0, 3)), (c,))
    if mask[2]:
        grad_bias = xp.reshape(xp.sum(grad, axis=(0, 3)), (c,))
    return grad_x, grad_weight, grad_bias


# ---- weights as a direction and a length for each index of `dim` -----------------------------------------------------


def _other_axes(xp: Any, v: Array, dim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(xp.ndim(v)) if axis != dim)


@kernel("_weight_norm_interface")
@with_operators
def _weight_norm(xp: Any, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    v, g = widened(xp, v), widened(xp, g)
    norm = xp.sqrt(xp.sum(v * v, axis=_other_axes(xp, v, dim), keepdims=True))
    return v * (g / norm), norm


@kernel("_weight_norm_interface_backward")
@with_operators
def _weight_norm_backward(xp: Any, grad: Value, v: Value, g: Value, norm: Value, dim: int) -> tuple[Value, Value]:
    grad, v, g, norm = (widened(xp, x) for x in (grad, v, g, norm))
    projection = xp.sum(grad * v, axis=_other_axes(xp, v, dim), keepdims=True) / norm
    orthogonal = grad - v * (projection / norm)
    return g / norm * orthogonal, projection
