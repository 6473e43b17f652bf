"""Attention by PyTorch's kernel for the CPU, if the result is not differentiated and no other precision is required."""

from __future__ import annotations

import torch

from tensorgraft.backends.torch import arrays
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.attention import Attention

Tensor = torch.Tensor
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_fused_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


class TorchAttention(Attention):
    def attention(
        self, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
    ) -> tuple[Array, Array]:
        if not _has_kernel(q, k, v, mask):
            return super().attention(q, k, v, mask, causal, scale)
        return _fused(*_dense(q, k, v), 0.0, causal, attn_mask=_added(mask, q), scale=scale)

    def attention_gradients(
        self, grad: Array, q: Array, k: Array, v: Array, out: Array, norm: Array, mask: Array | None = None,
        causal: bool = False, scale: float | None = None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        if not _has_kernel(q, k, v, mask):
            return super().attention_gradients(grad, q, k, v, out, norm, mask, causal, scale)
        operands = (*_dense(grad, q, k, v, out), norm)
        return _fused_backward(*operands, 0.0, causal, attn_mask=_added(mask, q), scale=scale)


def _has_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    if q.device.type != "cpu" or q.dtype not in _DTYPES or 0 in q.shape or 0 in k.shape or k.shape != v.shape:
        return False
    if mask is not None and mask.dim() not in (2, 4):
        return False
    operands = [x for x in (q, k, v, mask) if x is not None]
    return not any(type(x) is not Tensor or x.requires_grad or arrays.in_transform(x) for x in operands)


def _dense(*operands: Tensor) -> list[Tensor]:
    """Return the operands with contiguous rows, as the kernel requires."""
    return [x if x.stride(3) == 1 else x.contiguous() for x in operands]


def _added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask as numbers that are added to the scores."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf)
    return mask.to(like.dtype).contiguous()
