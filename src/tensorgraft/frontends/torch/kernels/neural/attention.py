"""Fused attention.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call the first two in evaluation: functions on tensors, each of
which a plan compiles as a whole. The others are what `F.scaled_dot_product_attention` is on the CPU, and so in graphs
that were captured there (`torch.compile`), and on the device (`frontends.torch.attention`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.spec import SPECS, kernel
from tensorgraft.frontends.torch.dispatch.decomposed import decomposed_spec
from tensorgraft.hub.array import Array

Tensor = torch.Tensor
# axes of a mask: pairs of positions (L, S), or positions of each sample (N, S); otherwise (N, H, L, S)
SOURCE, PADDING = 0, 1


def _hidden(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """Return a mask that broadcasts against (N, H, L, S); true where a place is not seen."""
    if mask is None:
        return None
    mask = mask.bool()
    if mask_type == PADDING and mask.dim() == 2:
        return mask[:, None, None, :]
    return mask


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    # in low precision, products are rounded before biases are added
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = (1 / math.sqrt(embed_dim // num_head), 1, 1)
    heads = [
        ((F.linear(x, w).to(wide) + b.to(wide)) * s).to(x.dtype).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b, s in zip((query, key, value), weights, biases, scale, strict=True)
    ]
    q, k, v = heads
    scores = q @ k.transpose(-2, -1)
    hidden = _hidden(mask, mask_type)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    attention = torch._safe_softmax(scores, -1) if hidden is not None else scores.softmax(-1)
    out = F.linear((attention @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, attention.mean(1) if average_attn_weights else attention


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))


def _fused_result(query: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """PyTorch's, but that PyTorch 2.10 has the sums of float64 in float32, which its kernel does not."""
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, *rest, **options)
    return out, sums.to(torch.promote_types(query.dtype, torch.float32))


@kernel("_scaled_dot_product_flash_attention_for_cpu", meta=_fused_result)
def _fused(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    _without_dropout(dropout_p)
    return xp.attention(query, key, value, attn_mask, is_causal, scale)


@kernel("_scaled_dot_product_flash_attention_for_cpu_backward")
def _fused_backward(
    xp: Any,
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    _without_dropout(dropout_p)
    return xp.attention_gradients(grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale)


def _without_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise RuntimeError("scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0")


FUSED: dict[str, Callable[..., Any]] = {
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
for _name, _fn in FUSED.items():
    _op = schema.overload(_name)
    if _op is not None:
        SPECS[_name] = dataclasses.replace(decomposed_spec(_op, _fn), meta=_fn)


@kernel("_nested_tensor_from_mask_left_aligned", concrete=True, meta=False)
def _left_aligned(xp: Any, x: Any, mask: Any) -> bool:
    """Return False: `nn.TransformerEncoder` would otherwise make a nested tensor, which the device lacks. It masks the
    padding instead, so that outputs at padded positions are not zero."""
    return False
