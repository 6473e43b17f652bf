"""Random operands, every choice of which is an integer: drawn by hypothesis, or by a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes

Shape = tuple[int, ...]
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)


class Draw:
    """`choose(low, high)` gives an int of [low, high]; arrays have `dtype` unless another is asked for."""

    def __init__(self, choose: Callable[[int, int], int], dtype: np.dtype = dtypes.float32) -> None:
        self.int = choose
        self.dtype = dtype

    def flag(self) -> bool:
        return bool(self.int(0, 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.int(0, len(choices) - 1)]

    def shape(self, least: int = 0, most: int = 3, side: int = 4, smallest: int = 0) -> Shape:
        """Extents between `smallest` and `side`; zero is made rare, or half of all arrays would be empty."""
        extents = (self.int(0, 4 * side) for _ in range(self.int(least, most)))
        return tuple(smallest if n == 0 else max(1 + (n - 1) % side, smallest) for n in extents)

    def broadcastable(self, k: int) -> list[Shape]:
        """`k` shapes that broadcast together."""
        whole = self.shape()
        drawn = []
        for _ in range(k):
            kept = whole[self.int(0, len(whole)) :] if self.int(0, 2) == 0 else whole
            drawn.append(tuple(1 if self.int(0, 3) == 0 else n for n in kept))
        return drawn

    def array(
        self,
        shape: Shape | None = None,
        dtype: np.dtype | None = None,
        low: float = -3,
        high: float = 3,
        special: bool = False,
    ) -> np.ndarray:
        """Floating and complex: parts in [low, high], some on halves, some `special`. Integers: small ones, and where
        no range was asked for also any that the dtype has."""
        shape = self.shape() if shape is None else shape
        dtype = self.dtype if dtype is None else dtype
        rng = np.random.default_rng(self.int(0, 2**32 - 1))
        if dtypes.is_bool(dtype):
            return rng.integers(0, 2, shape).astype(bool)
        if dtypes.is_integer(dtype):
            info = np.iinfo(dtype)
            small = rng.integers(max(int(low), info.min), int(high) + 1, shape)
            if (low, high) != (-3, 3):
                return np.asarray(small, dtype)
            wide = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            return np.asarray(np.where(rng.random(shape) < 0.5, small.astype(dtype), wide))
        if dtypes.is_complex(dtype):
            return np.asarray(rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape), dtype)
        x = rng.uniform(low, high, shape)
        x = np.where(rng.random(shape) < 0.3, np.clip(np.round(2 * x) / 2, low, high), x)
        if special:
            x = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), x)
        return np.asarray(x, dtype)

    def axis(self, ndim: int) -> int:
        return self.int(-ndim, ndim - 1)

    def axes(self, ndim: int) -> Any:
        """None, an int, or a tuple of ints."""
        if not ndim or self.int(0, 3) == 0:
            return self.one_of((None, ()))
        if self.flag():
            return self.axis(ndim)
        return tuple(a - ndim * self.int(0, 1) for a in range(ndim) if self.flag())

    def permutation(self, n: int) -> tuple[int, ...]:
        left = list(range(n))
        return tuple(left.pop(self.int(0, len(left) - 1)) for _ in range(n))

    def indices(self, n: int, shape: Shape, dtype: np.dtype = dtypes.int64) -> np.ndarray:
        """Positions in an axis of `n` elements."""
        return self.array(shape, dtype, 0, n - 1)
