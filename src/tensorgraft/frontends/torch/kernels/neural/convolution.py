"""Convolutions: `F.conv*` and `F.conv_transpose*` call `convolution`, and their gradients `convolution_backward`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.result_strides import formatted
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.neural.masks import masked
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Ints = tuple[int, ...]


def _meta(x: torch.Tensor, w: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> Any:
    """Return the metadata. Raises PyTorch's errors that its meta function omits."""
    for is_invalid, message in (
        (any(s <= 0 for s in stride), "non-positive stride is not supported"),
        (any(p < 0 for p in padding), "negative padding is not supported"),
        (any(d <= 0 for d in dilation), "dilation should be greater than zero"),
    ):
        if is_invalid:
            raise RuntimeError(message)
    out = torch.ops.aten.convolution.default(x, w, bias, stride, padding, dilation, *rest)
    return _laid_out(out, x, w, stride, *rest)


def _laid_out(
    result: torch.Tensor, x: torch.Tensor, w: torch.Tensor, stride: Any, transposed: bool, margin: Any, groups: int
) -> torch.Tensor:
    """Return a result with channels last if an operand has them last. In one dimension only the weight counts, as an
    image of one row: the CPU makes `x` contiguous there."""
    if w.dim() == 3:
        return formatted(result.unsqueeze(2), w.unsqueeze(2)).squeeze(2)
    if w.dim() == 5 and transposed and not _by_onednn(x, w, stride, margin, groups):
        return result.contiguous()
    return formatted(result, x, w)


def _by_onednn(x: torch.Tensor, w: torch.Tensor, stride: Any, output_padding: Any, groups: int) -> bool:
    """Return whether the CPU leaves a transposed convolution to oneDNN (`use_mkldnn` in
    aten/src/ATen/native/Convolution.cpp); its own of three dimensions knows no channels last."""
    depthwise = groups > 1 and x.shape[1] == groups
    wide_margin = any(p >= s for p, s in zip(output_padding, stride, strict=False))
    large = groups > 1 or x.shape[0] > 1 or min(w.shape[-2:]) > 3 or math.prod(x.shape[:4]) > 20480
    return x.dtype != torch.float64 and large and not depthwise and not wide_margin


@kernel("convolution", meta=_meta)
def _convolution(
    xp: Any,
    x: Array,
    w: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    n = xp.ndim(w) - 2
    stride, padding, dilation = (_per_dimension(v, n) for v in (stride, padding, dilation))
    if not xp.shape(x)[1] and not transposed:  # without input channels PyTorch's result has no channels
        return xp.zeros(
            (xp.shape(x)[0], 0, *xp.shape(_forwards(xp, x, w, stride, padding, dilation, groups))[2:]), xp.dtype_of(x)
        )
    if transposed:
        out = xp.transposed_convolution(x, w, stride, padding, dilation, _per_dimension(output_padding, n), groups)
    else:
        out = _forwards(xp, x, w, stride, padding, dilation, groups)
    if bias is not None:
        out = xp.add(out, xp.reshape(xp.astype(bias, xp.dtype_of(out)), (1, xp.shape(bias)[0], *(1,) * n)))
    return out


# `torch._convolution` calls this on a device of an extension
kernel("convolution_overrideable", meta=_meta)(_convolution)


def _backward_meta(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: Any) -> tuple[torch.Tensor | None, ...]:
    dx, dw, db = torch.ops.aten.convolution_backward.default(grad, x, w, *rest)
    geometry = rest[1], rest[4], rest[5], rest[6]
    # for some masks PyTorch's meta function omits gradients that are not requested
    dx, dw = (None if gradient is None else _laid_out(gradient, x, w, *geometry) for gradient in (dx, dw))
    return dx, dw, db


@kernel("convolution_backward", meta=masked(_backward_meta))
def _convolution_backward(xp: Any, grad: Array, x: Array, w: Array, *rest: Any) -> tuple[Array | None, ...]:
    """`rest`: bias sizes (not of the overrideable form), stride, padding, dilation, transposed, output padding, groups,
    output mask."""
    stride, padding, dilation, transposed, _, groups, mask = rest[-7:]
    n = xp.ndim(w) - 2
    stride, padding, dilation = (_per_dimension(v, n) for v in (stride, padding, dilation))
    grad_x = grad_w = grad_bias = None
    if mask[0] and transposed:
        full = _forwards(xp, grad, w, stride, padding, dilation, groups)
        # output padding may have made room for one more
        grad_x = xp.slice(full, (0,) * (n + 2), (*xp.shape(full)[:2], *xp.shape(x)[2:]), (1,) * (n + 2))
    elif mask[0]:
        spatial = zip(xp.shape(x)[2:], xp.shape(grad)[2:], xp.shape(w)[2:], stride, padding, dilation, strict=True)
        rest_padding = tuple(i - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for i, o, k, s, p, d in spatial)
        grad_x = xp.transposed_convolution(grad, w, stride, padding, dilation, rest_padding, groups)
    if mask[1]:
        wide, narrow = (grad, x) if transposed else (x, grad)
        grad_w = xp.convolution_weights(wide, narrow, xp.shape(w)[2:], stride, padding, dilation, groups)
    if mask[2]:
        wide = xp.astype(grad, dtypes.accumulator(xp.dtype_of(grad)))
        grad_bias = xp.sum(wide, axis=(0, *range(2, n + 2)))
    return grad_x, grad_w, grad_bias


def _overrideable(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: Any) -> tuple[torch.Tensor | None, ...]:
    outputs = w.shape[1] * rest[-2] if rest[3] else w.shape[0]
    return _backward_meta(grad, x, w, [outputs], *rest)


kernel("convolution_backward_overrideable", meta=masked(_overrideable))(_convolution_backward)


def _per_dimension(values: Sequence[int], n: int) -> Ints:
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _forwards(xp: Any, x: Array, w: Array, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Array:
    return xp.convolution(x, w, stride, [(p, p) for p in padding], (1,) * len(stride), dilation, groups)
