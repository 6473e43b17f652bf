"""Layer, group and RMS normalisation. Statistics are taken in at least float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array, OptionalArray

aten = torch.ops.aten
Axes = tuple[int, ...]


def widened(xp: Any, x: OptionalArray, like: Array | None = None) -> OptionalArray:
    """`x` in the dtype in which `like` (`x` itself by default) is accumulated."""
    if x is None:
        return None
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x if like is None else like)))


def moments(xp: Any, x: Array, axes: Axes) -> tuple[Array, Array]:
    """(mean, biased variance), axes kept."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = xp.subtract(x, mean)
    return mean, xp.mean(xp.multiply(centred, centred), axis=axes, keepdims=True)


def input_gradient(xp: Any, grad: Array, normal: Array, rstd: Array, axes: Axes) -> Array:
    """The gradient in x of `normal` = (x - mean) * rstd, whose own gradient is `grad`."""
    if not xp.count(grad, axes):
        return grad
    first = xp.mean(grad, axis=axes, keepdims=True)
    second = xp.mean(xp.multiply(grad, normal), axis=axes, keepdims=True)
    return xp.multiply(xp.subtract(xp.subtract(grad, first), xp.multiply(normal, second)), rstd)


def affine(xp: Any, x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = xp.multiply(x, weight)
    return x if bias is None else xp.add(x, bias)


def _meta(op: Any, *parameters: int) -> Any:
    """The meta function of `op`, but its statistics have the CPU's dtype: that of the parameters at these positions,
    else the input's."""

    def meta(*args: Any) -> tuple[torch.Tensor, ...]:
        out, mean, rstd = op(*args)
        affine = [args[i] for i in parameters if args[i] is not None]
        dtype = (affine[0] if affine else args[0]).dtype
        return out, mean.to(dtype), rstd.to(dtype)

    return meta


# ---- over the last axes ----------------------------------------------------------------------------------------------


@kernel("native_layer_norm", meta=_meta(aten.native_layer_norm.default, 2, 3))
def _layer_norm(
    xp: Any, x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(xp.ndim(x) - len(normalized_shape), xp.ndim(x)))
    wide = widened(xp, x)
    mean, var = moments(xp, wide, axes)
    rstd = xp.rsqrt(xp.add(var, eps))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    return affine(xp, normal, widened(xp, weight, x), widened(xp, bias, x)), mean, rstd


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
    grad, mean, rstd = (widened(xp, v, x) for v in (grad, mean, rstd))
    normal = xp.multiply(xp.subtract(widened(xp, x), mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad if weight is None else xp.multiply(grad, widened(xp, weight, x))
        grad_x = input_gradient(xp, scaled, normal, rstd, axes)
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
    wide = widened(xp, x)
    eps = float(dtypes.finfo(xp.dtype_of(wide)).eps) if eps is None else eps
    rstd = xp.rsqrt(xp.add(xp.mean(xp.multiply(wide, wide), axis=axes, keepdims=True), eps))
    return affine(xp, xp.multiply(wide, rstd), widened(xp, weight, x), None), rstd


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
    grad, rstd = widened(xp, grad, x), widened(xp, rstd, x)
    normal = xp.multiply(widened(xp, x), rstd)
    grad_x = grad_weight = None
    if mask[0]:
        scaled = grad if weight is None else xp.multiply(grad, widened(xp, weight, x))
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
    wide = xp.reshape(widened(xp, x), (n, group, c // group, hxw))
    mean, var = moments(xp, wide, (2, 3))
    rstd = xp.rsqrt(xp.add(var, eps))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    weight, bias = (
        None if v is None else xp.reshape(widened(xp, v, x), (group, c // group, 1)) for v in (weight, bias)
    )
    out = xp.reshape(affine(xp, normal, weight, bias), xp.shape(x))
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
    wide, grad = (xp.reshape(widened(xp, v, x), split) for v in (x, grad))
    mean, rstd = (xp.reshape(widened(xp, v, x), (n, group, 1, 1)) for v in (mean, rstd))
    normal = xp.multiply(xp.subtract(wide, mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = grad
        if weight is not None:
            scaled = xp.multiply(grad, xp.reshape(widened(xp, weight, x), (group, c // group, 1)))
        grad_x = xp.reshape(input_gradient(xp, scaled, normal, rstd, (2, 3)), xp.shape(x))
    if mask[1]:
        grad_weight = xp.reshape(xp.sum(xp.multiply(grad, normal), axis=(0, 3)), (c,))
    if mask[2]:
        grad_bias = xp.reshape(xp.sum(grad, axis=(0, 3)), (c,))
    return grad_x, grad_weight, grad_bias


# ---- weights as a direction and a length for each index of `dim` -----------------------------------------------------


def _other_axes(xp: Any, v: Array, dim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(xp.ndim(v)) if axis != dim)


@kernel("_weight_norm_interface")
def _weight_norm(xp: Any, v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    v, g = widened(xp, v), widened(xp, g)
    norm = xp.sqrt(xp.sum(xp.multiply(v, v), axis=_other_axes(xp, v, dim), keepdims=True))
    return xp.multiply(v, xp.divide(g, norm)), norm


@kernel("_weight_norm_interface_backward")
def _weight_norm_backward(xp: Any, grad: Array, v: Array, g: Array, norm: Array, dim: int) -> tuple[Array, Array]:
    grad, v, g, norm = (widened(xp, x) for x in (grad, v, g, norm))
    along = xp.divide(xp.sum(xp.multiply(grad, v), axis=_other_axes(xp, v, dim), keepdims=True), norm)
    across = xp.subtract(grad, xp.multiply(v, xp.divide(along, norm)))
    return xp.multiply(xp.divide(g, norm), across), along
