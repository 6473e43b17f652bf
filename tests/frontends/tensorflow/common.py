"""What tests of TensorFlow's programs share: arrays of a backend, and TensorFlow as the judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import torch

import tensorgraft as tg
from tensorgraft.hub import registry

BACKENDS = ("numpy", "jax", "torch", "tensorflow")
_TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-9, "complex128": 1e-9}


def native(backend: str, x: np.ndarray) -> Any:
    xp = registry.get(backend)
    with xp.scope():
        return xp.asarray(x)


def on_host(backend: str, x: Any) -> np.ndarray:
    xp = registry.get(backend)
    with xp.scope():
        return np.asarray(xp.to_numpy(x))


def difference(got: np.ndarray, want: np.ndarray) -> str:
    """What is wrong: nothing, or a few words."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if want.dtype.kind in "biu":
        return "" if np.array_equal(got, want) else f"{got.ravel()[:8]}, not {want.ravel()[:8]}"
    tolerance = _TOLERANCE.get(want.dtype.name, 2e-5)
    wide = "complex128" if want.dtype.kind == "c" else "float64"
    g, w = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        good = (g == w) | (np.isnan(g) & np.isnan(w)) | (np.abs(g - w) <= tolerance * (1 + np.abs(w)))
    return "" if good.all() else f"{g[~good][:4]}, not {w[~good][:4]}"


def agree(
    make: Callable[[], tuple[Callable[..., Any], Sequence[tf.Variable]]],
    arguments: Sequence[np.ndarray],
    backend: str,
    compiled: bool = False,
    calls: int = 2,
) -> None:
    """A program of its own does, call by call, what TensorFlow's does, to its variables too."""
    (reference, theirs), (program, ours) = make(), make()
    grafted = tg.graft(tf.function(program), onto=backend)
    grafted = tg.jit(grafted) if compiled else grafted
    judge = tf.function(reference)
    for _ in range(calls):
        want = tf.nest.flatten(judge(*map(tf.constant, arguments)))
        got = tf.nest.flatten(grafted(*(native(backend, x) for x in arguments)))
        assert [difference(on_host(backend, g), w.numpy()) for g, w in zip(got, want, strict=True)] == [""] * len(want)
        assert [difference(g.numpy(), w.numpy()) for g, w in zip(ours, theirs, strict=True)] == [""] * len(theirs)


def saturates(op: str) -> bool:
    """Without VNNI oneDNN adds up pairs of products in 16 bits."""
    return bool(re.match("Quantized.*(Conv2D|MatMul)", op)) and not torch.cpu._is_vnni_supported()
