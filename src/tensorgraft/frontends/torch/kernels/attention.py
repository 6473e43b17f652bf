"""Fused attention as functions on tensors, each of which a plan compiles as a whole.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call the first two in evaluation. The others are what
`F.scaled_dot_product_attention` is on the CPU, and so in graphs that were captured there (`torch.compile`); on the
device it is taken apart and needs no kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tensorgraft.frontends.torch import schema
from tensorgraft.frontends.torch.decomposed import decomposed_spec
from tensorgraft.frontends.torch.spec import SPECS, kernel

Tensor = torch.Tensor
SOURCE, PADDING = 0, 1  # what a mask is of: pairs of places (L, S), or places of each sample (N, S); else (N, H, L, S)


def _hidden(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """A mask that broadcasts against (N, H, L, S); true where a place is not seen."""
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
    wide = torch.promote_types(query.dtype, torch.float32)  # of low precision, products are rounded before the biases
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
    seen = torch._safe_softmax(scores, -1) if hidden is not None else scores.softmax(-1)
    out = F.linear((seen @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, seen.mean(1) if average_attn_weights else seen


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


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor, float]:
    """(query as (N, G, R, L, E), the scores before the softmax (N, G, R, L, S), their scale), for G heads of the keys;
    in float32 at least."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    query = query.to(wide).unflatten(1, (key.size(1), -1))
    scores = query @ key.to(wide).unsqueeze(2).transpose(-2, -1) * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        whole = attn_mask.expand(query.size(0), query.size(1) * query.size(2), *scores.shape[-2:])
        scores = scores + whole.unflatten(1, query.shape[1:3])
    return query, scores, scale


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of the softmax's denominator (N, H, L); of a place that sees none, zeros."""
    _, scores, _ = _scores(query, key, is_causal, attn_mask, scale)
    norm = scores.logsumexp(-1)
    norm = norm.masked_fill(norm == -math.inf, 0.0)
    out = (scores - norm.unsqueeze(-1)).exp() @ value.to(scores.dtype).unsqueeze(2)
    return out.flatten(1, 2).to(query.dtype), norm.flatten(1, 2)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    q, scores, scale = _scores(query, key, is_causal, attn_mask, scale)
    wide, heads = scores.dtype, q.shape[1:3]
    dy = grad_out.to(wide).unflatten(1, heads)
    p = (scores - logsumexp.unflatten(1, heads).unsqueeze(-1)).exp()
    mean = (dy * out.to(wide).unflatten(1, heads)).sum(-1, keepdim=True)
    d_scores = p * (dy @ value.to(wide).unsqueeze(2).transpose(-2, -1) - mean) * scale
    d_query = d_scores @ key.to(wide).unsqueeze(2)
    d_key = (d_scores.transpose(-2, -1) @ q).sum(2)
    d_value = (p.transpose(-2, -1) @ dy).sum(2)
    return d_query.flatten(1, 2).to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


FUSED: dict[str, Callable[..., Any]] = {
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
for _name, _fn in FUSED.items():
    _op = schema.overload(_name)
    if _op is not None:
        SPECS[_name] = dataclasses.replace(decomposed_spec(_op, _fn), meta=_fn)

OF_THE_CPU: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _flash,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_backward,
}
for _name, _fn in OF_THE_CPU.items():
    _op = schema.overload(_name)
    if _op is not None:
        SPECS[_name] = decomposed_spec(_op, _fn)


@kernel("_nested_tensor_from_mask_left_aligned", concrete=True, meta=False)
def _left_aligned(xp: Any, x: Any, mask: Any) -> bool:
    """No: `nn.TransformerEncoder` would make a nested tensor, which the device has not. It masks the padding instead,
    whose own outputs are then not zero."""
    return False
