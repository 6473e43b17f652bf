"""Rules for random numbers. They are the hub's, counted from the key of the call, or from a node's own seed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.element_types import dtype_of
from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub import dtypes


def seeded(xp: Any, key: Any, seed: float | None) -> Any:
    """Return the key of a node, from its own seed if it has one."""
    if seed is None:
        return key
    return xp.asarray(np.array([0, struct.unpack("<I", struct.pack("<f", seed))[0]], np.uint32))


def _sample(xp: Any, kind: str, key: Any, shape: tuple[int, ...], dtype: np.dtype, a: float, b: float) -> Any:
    wide = dtypes.float64 if dtype == dtypes.float64 else dtypes.float32
    x = xp.normal(key, shape, wide) if kind == "normal" else xp.uniform(key, shape, wide)
    return xp.astype(xp.add(xp.multiply(x, b if kind == "normal" else b - a), a), dtype)


@rule("RandomNormal", "RandomNormalLike")
def random_normal(
    xp: Any, x: Any = None, *, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float | None = None,
    shape: tuple[int, ...] = (), key: Any = None,
) -> Any:  # fmt: skip
    return _sample(xp, "normal", seeded(xp, key, seed), *_like(xp, x, shape, dtype), mean, scale)


@rule("RandomUniform", "RandomUniformLike")
def random_uniform(
    xp: Any, x: Any = None, *, dtype: int = 0, high: float = 1.0, low: float = 0.0, seed: float | None = None,
    shape: tuple[int, ...] = (), key: Any = None,
) -> Any:  # fmt: skip
    return _sample(xp, "uniform", seeded(xp, key, seed), *_like(xp, x, shape, dtype), low, high)


def _like(xp: Any, x: Any, shape: tuple[int, ...], dtype: int) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the dtype of an operator, where they are not stated those of `x`."""
    return tuple(shape if x is None else x.shape), dtype_of(dtype) if dtype else xp.dtype_of(x)


@rule("Bernoulli")
def bernoulli(xp: Any, x: Any, *, dtype: int = 0, seed: float | None = None, key: Any = None) -> Any:
    uniform = xp.uniform(seeded(xp, key, seed), tuple(x.shape), dtypes.float32)
    return xp.astype(xp.less(uniform, xp.astype(x, dtypes.float32)), dtype_of(dtype) if dtype else xp.dtype_of(x))


@rule("Multinomial")
def multinomial(
    xp: Any, x: Any, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, key: Any = None
) -> Any:
    """Draw classes from rows of unnormalised log-probabilities."""
    rows, classes = x.shape
    uniform = xp.uniform(seeded(xp, key, seed), (rows, sample_size, classes), dtypes.float32)
    gumbel = xp.negative(xp.log(xp.negative(xp.log(xp.maximum(uniform, 1e-38)))))
    scores = xp.add(xp.expand_dims(xp.astype(x, dtypes.float32), 1), gumbel)
    return xp.astype(xp.argmax(scores, 2), dtype_of(dtype))
