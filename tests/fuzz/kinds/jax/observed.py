"""What is seen of a result, what moves it, and whether another one is near."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api import Seen, compared
from tests.fuzz.kinds.jax.drawing import kind

import jax
import jax.numpy as jnp


def flat(x: Any) -> list[np.ndarray]:
    return [host(leaf) for leaf in jax.tree.leaves(x)]


def host(x: Any) -> np.ndarray:
    if type(x).__module__.split(".")[0] == "torch":
        import torch

        x = x.detach().resolve_conj()
        if x.dtype == torch.bfloat16:
            return np.asarray(x.float().numpy()).astype(jnp.bfloat16)
        return np.asarray(x.numpy())
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x)


def native(x: Any, subject: str) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if subject == "torch":
        import torch

        if x.dtype == jnp.bfloat16:
            return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(x.copy())
    if subject == "tensorflow":
        import tensorflow as tf

        return tf.constant(x)
    return x


def moved(x: Any, rng: np.random.Generator) -> Any:
    if not isinstance(x, np.ndarray) or kind(x) not in "fc":
        return x
    wide = np.complex128 if kind(x) == "c" else np.float64
    return (x.astype(wide) * (1 + 4 * float(jnp.finfo(x.dtype).eps) * rng.uniform(-1, 1, x.shape))).astype(x.dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if kind(x) == "c" else np.float64)


def slack(x: np.ndarray, others: list[np.ndarray]) -> np.ndarray | None:
    if any(o.shape != x.shape for o in others):
        return None
    if kind(x) not in "fc":
        return np.where(np.logical_and.reduce([o == x for o in others]), 0.0, np.inf)
    eps = float(jnp.finfo(x.dtype).eps)
    with np.errstate(all="ignore"):
        a = wide(x)
        off = np.maximum.reduce(
            [np.where((a == wide(o)) | (np.isnan(a) & np.isnan(wide(o))), 0.0, np.abs(wide(o) - a)) for o in others]
        )
    off = np.where(np.isnan(off), np.inf, off)
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=1.0)
    return 16 * off + eps * 64 * (np.abs(np.where(np.isfinite(a), a, 0)) + largest)


def differs(seen: Seen, x: np.ndarray) -> str | None:
    if x.dtype != seen.value.dtype or x.shape != seen.value.shape:
        return f"{x.dtype} {x.shape}, expected {seen.value.dtype} {seen.value.shape}"
    if seen.slack is None:
        return None
    if kind(x) in "fc":
        with np.errstate(all="ignore"):
            return compared(Seen(wide(seen.value), seen.slack), wide(x))
    return compared(seen, x)
