"""A stream of Philox words on the host, for algorithms that draw a variable number of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rules.random import philox
from tensorgraft.hub import dtypes, registry

_BLOCK = 64  # numbers of the counter that are enciphered together


class WordStream:
    """`key` is (1,) and `counter` (2,), of uint64."""

    def __init__(self, key: np.ndarray, counter: np.ndarray) -> None:
        self._groups = self._enciphered(np.asarray(key, np.uint64), np.asarray(counter, np.uint64))
        self._words = (int(w) for group in self._groups for w in group)

    @staticmethod
    def _enciphered(key: np.ndarray, counter: np.ndarray) -> Iterator[np.ndarray]:
        host, at = registry.get("numpy"), 0
        while True:
            where = np.arange(at, at + _BLOCK, dtype=np.uint64)
            with np.errstate(over="ignore"), host.scope():
                words: Any = philox.words_at(host, key, counter, where)
                yield from words
            at += _BLOCK

    def block(self) -> np.ndarray:
        """Return the four words of the next number of the counter."""
        return next(self._groups)

    def word(self) -> int:
        return next(self._words)

    def long(self) -> int:
        low, high = self.word(), self.word()
        return low | high << 32

    def number(self) -> np.float32:
        """Return a float32 in [0, 1)."""
        return np.uint32(self.word() & 0x7FFFFF | 0x3F800000).view(np.float32) - np.float32(1)

    def double(self) -> float:
        high, low = self.word(), self.word()
        return float(np.uint64((high & 0xFFFFF) << 32 | low | 0x3FF << 52).view(np.float64)) - 1.0

    def below(self, n: int, bits: int = 32) -> int:
        """Return an integer below `n`. Draws in the lowest part of the range are repeated, because they would be more
        frequent than others."""
        draw = self.word if bits == 32 else self.long
        if n & (n - 1) == 0:
            return draw() & (n - 1)
        rest = ((1 << bits) - 1) % n + 1
        number = draw()
        while number < rest:
            number = draw()
        return number % n

    def uniforms(self, dtype: np.dtype) -> np.ndarray:
        """Return the uniform numbers that one block gives: 4, or 2 doubles."""
        host, words = registry.get("numpy"), self.block()[None]
        with host.scope():
            numbers: Any = philox.unit(host, philox.doubled(host, words) if dtype == dtypes.float64 else words, dtype)
            return numbers[0]

    def normals(self, dtype: np.dtype) -> np.ndarray:
        host, words = registry.get("numpy"), self.block()[None]
        with host.scope():
            numbers: Any
            if dtype == dtypes.float64:
                numbers = philox.box_muller(host, philox.doubled(host, words), dtype)
                return numbers[0]
            numbers = philox.box_muller(host, words, dtypes.float32)
            return numbers[0].astype(dtype)
