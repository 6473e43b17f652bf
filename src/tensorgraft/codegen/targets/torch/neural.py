"""Layers of neural networks in PyTorch."""

from __future__ import annotations

import ast
from typing import Any

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.hub import dtypes


def _normalised(function: str, usual_eps: float) -> Rule:
    def rule(w: Writing, x: Var, axes: int = 1, eps: float = 0.0, **affine: Any) -> ast.expr:
        values = list(affine.values())
        while values and values[-1] is None:
            values.pop()
        call = w.fill(f"F.{function}(x, shape, eps=eps)", x=x, shape=tuple(x.shape[x.ndim - axes :]),
                      eps=None if eps == usual_eps else eps)  # fmt: skip
        assert isinstance(call, ast.Call)
        call.args += [w(v) for v in values]
        return call

    return rule


def _group_norm(w: Writing, x: Var, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> ast.expr:
    affine = ", weight, bias" if bias is not None else ", weight" if weight is not None else ""
    return w.fill(f"F.group_norm(x, groups{affine}, eps=eps)", x=x, groups=groups, weight=weight, bias=bias,
                  eps=None if eps == 1e-5 else eps)  # fmt: skip


def _batch_norm(
    w: Writing, x: Var, mean: Any, variance: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> ast.expr:
    affine = ", weight, bias" if bias is not None else ", weight" if weight is not None else ""
    return w.fill(f"F.batch_norm(x, mean, variance{affine}, eps=eps)", x=x, mean=mean, variance=variance, weight=weight,
                  bias=bias, eps=None if eps == 1e-5 else eps)  # fmt: skip


def _cross_entropy(
    w: Writing, logits: Var, labels: Var, weight: Any = None, reduction: str = "mean", ignored: int | None = -100,
    smoothing: float = 0.0,
) -> ast.expr:  # fmt: skip
    return w.fill(
        f"F.cross_entropy(logits, labels, weight{'' if weight is not None else '=weight'}, reduction=reduction,"
        " ignore_index=ignored, label_smoothing=smoothing)" if weight is not None else
        "F.cross_entropy(logits, labels, reduction=reduction, ignore_index=ignored, label_smoothing=smoothing)",
        logits=logits, labels=labels, weight=weight, reduction=None if reduction == "mean" else reduction,
        ignored=None if ignored in (None, -100) else ignored, smoothing=smoothing or None,
    )  # fmt: skip


def _dot_product_attention(
    w: Writing, q: Var, k: Var, v: Var, mask: Any = None, causal: bool = False, scale: float | None = None
) -> ast.expr:
    if mask is not None and causal:  # PyTorch accepts only one of them
        causal_mask = w.fill(
            "torch.ones(n, m, dtype=torch.bool, device=x.device).tril()", n=q.shape[2], m=k.shape[2], x=q
        )
        combined = "mask & seen" if mask.dtype == dtypes.bool_ else "mask.masked_fill(~seen, -torch.inf)"
        mask, causal = w.fill(combined, mask=mask, seen=causal_mask), False
    return w.fill(
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared)",
        q=q, k=k, v=v, mask=mask, causal=causal or None, scale=scale,
        shared=None if rules.equal_sizes(q.shape[1], k.shape[1]) else True,
    )  # fmt: skip


def _resize(w: Writing, x: Var, size: Any, method: str = "nearest", corners: bool = False) -> ast.expr:
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}
    mode = {"nearest": None, "linear": linear[len(size)], "cubic": "bicubic"}[method]
    return w.fill("F.interpolate(x, size=size, mode=mode, align_corners=corners)", x=x, size=tuple(size), mode=mode,
                  corners=corners or None)  # fmt: skip


RULES: dict[str, Rule] = {
    "linear": lambda w, x, weight, bias=None: w.fill(
        "F.linear(x, weight)" if bias is None else "F.linear(x, weight, bias)", x=x, weight=weight, bias=bias),
    "relu": "F.relu(x)",
    "silu": "F.silu(x)",
    "gelu": lambda w, x, approximate=False: w.fill(
        'F.gelu(x, approximate="tanh")' if approximate else "F.gelu(x)", x=x),
    "embedding": "F.embedding(indices, weight, padding_idx=padding)",
    "stop_gradient": "x.detach()",
    **{name: f"F.{torch}(x)" for name, torch in {
        "selu": "selu", "mish": "mish", "log_sigmoid": "logsigmoid", "relu6": "relu6", "hard_sigmoid": "hardsigmoid",
        "hard_silu": "hardswish"}.items()},
    "leaky_relu": "F.leaky_relu(x, negative_slope=slope)",
    "elu": "F.elu(x, alpha=alpha)",
    "resize": _resize,
    "layer_norm": _normalised("layer_norm", 1e-5),
    "rms_norm": _normalised("rms_norm", 0),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_norm_training": "batch_norm_training(x, mean, variance, weight, bias, momentum=momentum, eps=eps)",
    "cross_entropy": _cross_entropy,
    "dot_product_attention": _dot_product_attention,
    "dropout": lambda w, x, key, rate: w.fill(
        "F.dropout(x, rate)" if key is None else "dropout(x, key, rate)", x=x, key=key, rate=rate),
    "flatten": lambda w, x, start=0, end=-1: w.fill(
        "x.flatten(start, end)" if end != -1 else "x.flatten(start)" if start else "x.flatten()", x=x, start=start,
        end=end),
}  # fmt: skip
