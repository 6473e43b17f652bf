"""The programs that are exported, each with its arguments at any batch and length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arguments = Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Program:
    """A program of a library. `build()` returns it and `arguments(batch, length)`; a `sequence` has a length that a
    file is to leave open, as well as the batch."""

    name: str
    library: str
    framework: str  # whose arrays it computes with: torch, jax, tensorflow or array_api
    build: Callable[[], tuple[Any, Arguments]]
    sequence: bool = False
    writes: bool = False  # it writes its variables


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def tokens(batch: int, length: int, vocabulary: int = 99) -> np.ndarray:
    return np.random.default_rng(0).integers(2, vocabulary, (batch, length)).astype(np.int64)


def all_programs() -> list[Program]:
    from ecosystem.export.programs import arrays, jax, keras, torch

    return [*torch.PROGRAMS, *jax.PROGRAMS, *keras.PROGRAMS, *arrays.PROGRAMS]
