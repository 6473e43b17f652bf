"""Functions of generated files that several frameworks spell alike: `xp` is a target's namespace, `Array` its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array

xp: Any = None
attention_weights: Any = None  # which each target has its own way


def per_channel(v: Array, x: Array) -> Array:
    """A number for each channel of x (N, C, ...)."""
    return v.reshape(-1, *[1] * (x.ndim - 2))


def batch_norm_training(
    x: Array,
    mean: Array | None,
    variance: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """x (N, C, ...) by its own statistics, and the running mean and variance after it."""
    axes = (0, *range(2, x.ndim))
    own, biased = x.mean(axes), x.var(axes)
    n = x.size // x.shape[1]
    unbiased = biased * (n / (n - 1) if n > 1 else xp.nan)
    mean = own if mean is None else (1 - momentum) * mean + momentum * own
    variance = unbiased if variance is None else (1 - momentum) * variance + momentum * unbiased
    return batch_norm(x, own, biased, weight, bias, eps), mean, variance


def dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """softmax(scale q k^T + mask) v of q (N, H, L, E), k (N, G, S, E), v (N, G, S, F)."""
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = xp.repeat(k, shared, axis=1), xp.repeat(v, shared, axis=1)
    return attention_weights(q, k, mask, causal, scale) @ v


def taps(n: int, m: int, method: str, corners: bool) -> np.ndarray:
    """(m, n): how much of each old place is in each new one."""
    at = np.arange(m) * ((n - 1) / max(m - 1, 1)) if corners else (np.arange(m) + 0.5) * n / m - 0.5
    at = np.maximum(at, 0) if method == "linear" else at
    left = np.floor(at)
    table = np.zeros((m, n))
    for tap in range(-1, 3):
        t = np.abs(at - left - tap)
        if method == "linear":
            weight = np.maximum(1 - t, 0)
        else:
            near, far = (1.25 * t - 2.25) * t * t + 1, -0.75 * (((t - 5) * t + 8) * t - 4)
            weight = np.where(t <= 1, near, np.where(t < 2, far, 0))
        np.add.at(table, (np.arange(m), np.clip(left + tap, 0, n - 1).astype(int)), weight)
    return table


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """x (N, C, ...) by the statistics of each channel (Ioffe, Szegedy 2015)."""
    y = (x - per_channel(mean, x)) * per_channel(1 / xp.sqrt(variance + eps), x)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    while condition(state):
        state = body(state)
    return state


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, tuple(x[i] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(xp.stack(ys) for ys in zip(*rows, strict=True))
