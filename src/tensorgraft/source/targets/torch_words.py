"""PyTorch's names for words: `torch.nn.functional`."""

from __future__ import annotations

import ast
from typing import Any

from tensorgraft.source.targets import Rule, Var, Writing


def short(numbers: Any, default: Any = None) -> Any:
    """(2, 2) as 2, and None for the default."""
    numbers = tuple(numbers)
    one = numbers[0] if numbers and all(type(n) is type(numbers[0]) and n == numbers[0] for n in numbers) else numbers
    return None if isinstance(one, int) and one == default else one


def _paired(padding: Any) -> Any:
    return tuple(low for low, _ in padding) if all(low == high for low, high in padding) else None


def _eps(w: Writing, template: str, eps: float, usual: Any, **arguments: Any) -> ast.expr:
    return w.fill(template, eps=None if eps == usual else eps, **arguments)


def _layer_norm(w: Writing, x: Var, weight: Any = None, bias: Any = None, axes: int = 1, eps: float = 1e-5) -> ast.expr:
    template = "F.layer_norm(x, shape, weight=weight, bias=bias, eps=eps)"
    if weight is not None and bias is not None:
        template = "F.layer_norm(x, shape, weight, bias, eps=eps)"
    return _eps(w, template, eps, 1e-5, x=x, shape=tuple(x.shape[-axes:]), weight=weight, bias=bias)


def _rms_norm(w: Writing, x: Var, weight: Any = None, axes: int = 1, eps: float = 1e-6) -> ast.expr:
    return w.fill(
        "F.rms_norm(x, shape, weight=weight, eps=eps)", x=x, shape=tuple(x.shape[-axes:]), weight=weight, eps=eps
    )


def _group_norm(w: Writing, x: Var, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> ast.expr:
    template = "F.group_norm(x, groups, weight=weight, bias=bias, eps=eps)"
    if weight is not None and bias is not None:
        template = "F.group_norm(x, groups, weight, bias, eps=eps)"
    return _eps(w, template, eps, 1e-5, x=x, groups=groups, weight=weight, bias=bias)


def _batch_norm(
    w: Writing, x: Var, mean: Any, variance: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> ast.expr:
    template = "F.batch_norm(x, mean, variance, weight=weight, bias=bias, eps=eps)"
    if weight is not None and bias is not None:
        template = "F.batch_norm(x, mean, variance, weight, bias, eps=eps)"
    return _eps(w, template, eps, 1e-5, x=x, mean=mean, variance=variance, weight=weight, bias=bias)


def _dropout(w: Writing, x: Var, key: Any, rate: Any) -> ast.expr:
    if key is None:
        return w.fill("F.dropout(x, rate)", x=x, rate=rate)
    kept = w.fill("torch.rand(x.shape, generator=key) >= rate", x=x, key=key, rate=rate)
    return w.fill("torch.where(kept, x / (1 - rate), 0)", kept=kept, x=x, rate=rate)


def _pool(kind: str) -> Rule:
    def rule(w: Writing, x: Var, window: Any, stride: Any, padding: Any = ((0, 0),), **more: Any) -> ast.expr:
        n, pads = len(window), _paired(padding)
        if len(padding) == 1 and n > 1:
            pads = (padding[0][0],) * n if padding[0][0] == padding[0][1] else None
        if pads is None or x.ndim not in (n + 1, n + 2) or any(2 * p > k for p, k in zip(pads, window, strict=True)):
            value = "-torch.inf" if kind == "max" else "0"
            flat = [p for pair in reversed(padding if len(padding) == n else padding * n) for p in pair]
            x = w.fill(f"F.pad(x, pads, value={value})" if kind == "max" else "F.pad(x, pads)", x=x, pads=tuple(flat))
            pads = (0,) * n
        template = f"F.{kind}_pool{n}d(x, window, stride=stride, padding=padding, "
        template += "dilation=dilation)" if kind == "max" else "count_include_pad=counted)"
        return w.fill(
            template, x=x, window=short(window), stride=None if tuple(stride) == tuple(window) else short(stride),
            padding=short(pads, 0), dilation=short(more.get("dilation") or (1,), 1),
            counted=None if more.get("count_padding", True) else False,
        )  # fmt: skip

    return rule


def _flatten(w: Writing, x: Var, start: int = 0, end: int = -1) -> ast.expr:
    end = -1 if end in (-1, x.ndim - 1) else end
    return w.fill("x.flatten(start, end)" if end != -1 else "x.flatten(start)", x=x, start=start, end=end)


def _attend(w: Writing, q: Var, k: Var, v: Var, mask: Any = None, causal: bool = False, scale: Any = None) -> ast.expr:
    grouped = True if q.ndim >= 3 and _differ(q.shape[-3], k.shape[-3]) else None
    usual = isinstance(scale, float) and type(q.shape[-1]) is int and abs(scale - q.shape[-1] ** -0.5) < 1e-12
    return w.fill(
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)",
        q=q, k=k, v=v, mask=mask, causal=causal or None, scale=None if usual else scale, grouped=grouped,
    )  # fmt: skip


def _differ(a: Any, b: Any) -> bool:
    return getattr(a, "values", a) != getattr(b, "values", b)


def _cross_entropy(
    w: Writing, logits: Var, labels: Var, weight: Any = None, reduction: str = "mean", ignored: Any = -100,
    smoothing: float = 0.0,
) -> ast.expr:  # fmt: skip
    return w.fill(
        "F.cross_entropy(logits, labels, weight=weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)",
        logits=logits, labels=labels, weight=weight, ignored=None if ignored in (-100, None) else ignored,
        reduction=None if reduction == "mean" else reduction, smoothing=smoothing or None,
    )  # fmt: skip


WORDS: dict[str, Rule] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "max_pool": _pool("max"),
    "avg_pool": _pool("avg"),
    "flatten": _flatten,
    "attend": _attend,
    "cross_entropy": _cross_entropy,
    "einsum": lambda w, equation, operands: w.fill(
        "torch.einsum(equation, *operands)", equation=equation, operands=tuple(operands)
    ),
    "leaky_relu": "F.leaky_relu(x, negative_slope=slope)",
    "elu": "F.elu(x, alpha=alpha)",
    "selu": "F.selu(x)",
    "mish": "F.mish(x)",
    "relu6": "F.relu6(x)",
    "hard_sigmoid": "F.hardsigmoid(x)",
    "hard_silu": "F.hardswish(x)",
    "log_sigmoid": "F.logsigmoid(x)",
}
