"""`nn.MultiheadAttention` in plain operations, recorded in place of PyTorch's own, which arranges memory for its
kernels.

The names of variables here appear in the generated source.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Layer = torch.nn.MultiheadAttention


def can_replace(
    module: torch.nn.Module, query: Any = None, key: Any = None, value: Any = None, *_: Any, **__: Any
) -> bool:
    """Return whether `forward` can run in place of this call of a module: of `nn.MultiheadAttention` itself, not of a
    subclass, without hooks, `bias_k`, `bias_v` and `add_zero_attn`, on three-dimensional tensors (batches)."""
    return (
        type(module) is Layer
        and all(isinstance(x, Tensor) and x.dim() == 3 for x in (query, key, value))
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def forward(
    module: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `Layer.forward`."""
    heads, rate = module.num_heads, module.dropout if module.training else 0.0
    if module.in_proj_weight is not None and query is key is value:
        q, k, v = F.linear(query, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    else:
        q, k, v = _projected(module, query, key, value)
    if not module.batch_first:
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    q = q.unflatten(2, (heads, -1)).transpose(1, 2)
    k = k.unflatten(2, (heads, -1)).transpose(1, 2)
    v = v.unflatten(2, (heads, -1)).transpose(1, 2)
    mask = _mask(key_padding_mask, attn_mask, heads, q.dtype)
    weights = None
    if need_weights:
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        weights = F.dropout(scores.softmax(-1), rate, rate > 0)
        y = weights @ v
        if average_attn_weights:
            weights = weights.mean(1)
    elif is_causal and key_padding_mask is None:
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask, rate)
    y = y.transpose(1, 2).flatten(2)
    if not module.batch_first:
        y = y.transpose(0, 1)
    return F.linear(y, module.out_proj.weight, module.out_proj.bias), weights


def _projected(module: Layer, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return the projected queries, keys and values."""
    bias = module.in_proj_bias
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


def _mask(padding: Tensor | None, mask: Tensor | None, heads: int, dtype: torch.dtype) -> Tensor | None:
    """Return the mask that is added to the scores (batch, heads, queries, keys): minus infinity where a boolean mask is
    True. `padding`: (batch, keys); `mask`: (queries, keys) or (batch * heads, queries, keys)."""
    if mask is not None:
        mask = _additive_mask(mask, dtype)
        mask = mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask
    if padding is not None:
        padding = _additive_mask(padding, dtype)[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask


def _additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
