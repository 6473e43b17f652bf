"""`F.scaled_dot_product_attention` above autograd: one operator in the cases in which the CPU uses one, else
decomposed.

The operator is the CPU's (`_scaled_dot_product_flash_attention_for_cpu`), with its derivative formula, strides and
results for queries that see no key, and it is chosen under the CPU's conditions. Other cases are decomposed as PyTorch
does for any device: dropout, masks with a gradient, forward mode, `torch.func`, and calls that are traced or observed
operator by operator.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch.library import Library
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.frontends.torch.core.modes import OwnMode, below_autograd, function_mode, suspended, tracing

Tensor = torch.Tensor

_library = Library("aten", "IMPL")
_whole = torch.ops.aten.scaled_dot_product_attention.default
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_fused_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_NOTHING = contextlib.nullcontext()
_TYPES: set[type] = {Tensor, torch.nn.Parameter}


def install() -> None:
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("scaled_dot_product_attention", attention, key)
    _library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", _backward, "AutogradPrivateUse1")


@functools.cache
def register_dtensor_rules() -> None:
    """Let tensors that are sharded over processes (`DTensor`) be attended to where they lie: a process has some of the
    samples, some of the heads, or all. (PyTorch says so of CUDA's operators, not of the CPU's.)"""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def shardings(results: int, *args: Any, **kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
        operands = [x for x in (*args, *kwargs.values()) if hasattr(x, "placements")]
        query, key = operands[results - 2 :][:2]  # the backward pass has the gradient before them
        samples, heads = [
            [Shard(d) if x.ndim > 2 and x.shape[d] > 1 else Replicate() for x in operands] for d in (0, 1)
        ]
        placements: list[tuple[list[Any], list[Any]]] = [
            ([Replicate()] * results, [Replicate()] * len(operands)),
            ([Shard(0)] * results, samples),
        ]
        if query.shape[1] == key.shape[1] or key.shape[1] % query.mesh.size() == 0:  # groups stay whole
            placements.append(([Shard(1)] * results, heads))
        return placements

    for results, operator in ((2, _fused), (3, _fused_backward)):
        register_sharding(operator)(functools.partial(shardings, results))
    _TYPES.add(DTensor)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if query.dim() == key.dim() == value.dim() == 3 and _is_untransformed() and _of_the_cpu().one_sample:
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        if _is_fused(q, k, v, mask, dropout_p, is_causal, enable_gqa):
            return attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa).squeeze(0)
    if not _is_fused(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return _whole.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    with suspended() if function_mode() else _NOTHING:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
        return _fused._op(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


class _Conditions(NamedTuple):
    """The conditions of the CPU's choice of its one kernel that depend on PyTorch's version."""

    one_sample: bool  # is taken without a batch axis, as is one head of keys for all without `enable_gqa` (2.15)
    masked_and_causal: bool  # is taken; an error since 2.15


@functools.cache
def _of_the_cpu() -> _Conditions:
    """Return the conditions of the installed PyTorch, found by trying."""
    with suspended(), _disable_current_modes(), torch.no_grad():  # a compiled function watches the CPU
        x, mask = torch.ones(1, 2, 1), torch.zeros(2, 2)
        one_sample = torch._fused_sdp_choice(x, x, x) == 1
        try:
            _whole(x[None], x[None], x[None], mask, 0.0, True)
        except RuntimeError:
            return _Conditions(one_sample, False)
        return _Conditions(one_sample, True)


def _is_untransformed() -> bool:
    """Return True if the call is not traced, observed or transformed: an operator without forward mode and vmap rules
    suffices."""
    return not ((_modes() and _is_watched()) or tracing() or forward_ad._current_level >= 0 or _transform() is not None)


def _is_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, shared: bool) -> bool:
    """Return True if the CPU's conditions for its fused kernel are met, and those of the kernel here."""
    if dropout or not _is_untransformed():
        return False
    if not (q.dim() == k.dim() == v.dim() == 4 and q.dtype is k.dtype is v.dtype and q.dtype in _DTYPES):
        return False
    if not (q.device == k.device == v.device and all(type(x) in _TYPES for x in (q, k, v))):
        return False
    n, heads, rows, width = q.shape
    groups, columns = k.shape[1:3]
    if k.shape != v.shape or k.shape[0] != n or k.shape[3] != width or 0 in q.shape or 0 in k.shape:
        return False
    if heads != groups and not (heads % groups == 0 and (shared or (groups == 1 and _of_the_cpu().one_sample))):
        return False
    if any(x.stride(3) != 1 and width != 1 for x in (q, k, v)):
        return False
    if mask is None:
        return True
    if causal and not _of_the_cpu().masked_and_causal:
        return False
    if mask.requires_grad or mask.device != q.device or type(mask) not in _TYPES:
        return False
    if mask.dtype not in (torch.bool, q.dtype, torch.float32) or mask.dim() not in (2, 4):
        return False
    if mask.stride(-1) != 1 and mask.shape[-1] != 1:
        return False
    return all(m in (1, s) for m, s in zip(mask.shape, (n, heads, rows, columns)[4 - mask.dim() :], strict=True))


def _is_watched() -> bool:
    """Return True if a dispatch mode other than the compiled function's own sees operators."""
    return any(not isinstance(torch._C._get_dispatch_stack_at(i), OwnMode) for i in range(_modes()))


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute in parts, from queries and keys on, where the gradients are to be differentiated."""
    if not torch.is_grad_enabled() and forward_ad._current_level < 0:
        with below_autograd():
            return _fused_backward(
                grad, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )
    wide = torch.promote_types(query.dtype, torch.float32)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads = (key.shape[1], query.shape[1] // key.shape[1])
    q, dy = (x.to(wide).unflatten(1, heads) for x in (query, grad))
    k, v = (x.to(wide).unsqueeze(2) for x in (key, value))
    scores = q @ k.mT * factor
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask.expand(*query.shape[:3], key.shape[2]).unflatten(1, heads)
    p = torch._safe_softmax(scores, -1)
    d_p = dy @ v.mT
    d_scores = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * factor
    d_query = (d_scores @ k).flatten(1, 2)
    d_key, d_value = ((x.mT @ y).sum(2) for x, y in ((d_scores, q), (p, dy)))
    return tuple(x.to(query.dtype) for x in (d_query, d_key, d_value))
