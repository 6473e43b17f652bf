"""Products with matrices of codes, on CPUs: decoded in blocks that stay in the cache.

XLA decodes all weights of a program before it begins, into memory that it holds to the end; a loop over blocks of rows
holds one block. Codes that share bytes are not put in order: the first of every byte are multiplied, then the second.
Measured with 2048 x 2048 codes, one thread, in ms: one row of int8 0.56 (without loop 1.6), int4 in groups of 32 0.71
(without loop, and codes in order, 4.9), float32 weights 0.65; 16 rows 1.8 (5.4), 2.6 (6.8), 3.7; 256 rows 23 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.coded import Coded, Coding

_BLOCK = 1 << 18  # numbers in a decoded block
_MANY_ROWS = 64  # rows of x: with more rows, larger blocks are as fast
_LARGER = 4


class JaxCoded:
    device: Any
    for_cpu: bool

    def coded_matmul(
        self: Any,
        x: Array,
        codes: Array,
        scale: Array,
        zero: Array | None,
        coding: Coding,
        shape: tuple[int, int],
        axis: int = 1,
        dtype: np.dtype | None = None,
    ) -> Array:
        count = _blocks(x, scale, zero, coding, shape) if axis == 1 and self.for_cpu else 1
        if count == 1:
            return Coded.coded_matmul(self, x, codes, scale, zero, coding, shape, axis, dtype)
        n, k = shape
        lanes = _lanes(coding, k, scale, zero)
        block_shape = (n // count, k // len(lanes))

        @jax.checkpoint  # derivatives save codes, not decoded numbers
        def multiply(xs: Sequence[Array], codes: Array, scale: Array, zero: Array | None) -> Array:
            total: Any = None
            for x, lane in zip(xs, lanes, strict=True):
                product: Array = Coded.coded_matmul(self, x, codes, scale, zero, lane, block_shape, 1, dtypes.float32)
                total = product if total is None else lax.add(total, product)
            return total

        def step(_: None, block: tuple[Array, ...]) -> tuple[None, Array]:
            codes, *numbers = block
            return None, multiply(xs, codes, *(numbers or (scale, zero)))  # or one scale for all rows

        xs = [lax.slice(x, (0, i), x.shape, (1, len(lanes))) for i in range(len(lanes))]
        parts = (codes,) if scale.shape[0] == 1 else (codes, scale, zero)
        blocks = tuple(
            [None if a is None else lax.reshape(a, (count, a.shape[0] // count, *a.shape[1:])) for a in parts]
        )
        rows = lax.reshape(lax.transpose(lax.scan(step, None, blocks)[1], (1, 0, 2)), (x.shape[0], n))
        return lax.convert_element_type(rows, x.dtype if dtype is None else dtype)


def _blocks(x: Array, scale: Array, zero: Array | None, coding: Coding, shape: tuple[int, int]) -> int:
    """Return into how many blocks of equally many rows a matrix of codes is cut; 1: it is decoded whole."""
    (n, k), m = shape, x.shape[0]
    most = n * k // (_BLOCK * (_LARGER if m > _MANY_ROWS else 1))
    scales = scale.shape[0]
    if not m or (zero is not None and zero.shape[0] != scales):
        return 1
    for count in range(min(most, n), 1, -1):
        if not n % count and (scales == 1 or not scales % count) and not n // count * k % coding.packed:
            return count
    return 1


@dataclass
class _Lane:
    """The codes at one place of every byte."""

    coding: Coding
    place: int
    bits: int
    signed: bool
    kind: str
    packed: int = 1

    def unpack(self, xp: Any, packed: Array, shape: tuple[int, ...]) -> Array:
        bits = self.bits
        codes = lax.bitwise_and(lax.shift_right_logical(packed, np.uint8(self.place * bits)), np.uint8((1 << bits) - 1))
        if self.kind == "integer" and self.signed:
            sign = 1 << bits - 1
            codes = lax.sub(lax.convert_element_type(lax.bitwise_xor(codes, np.uint8(sign)), np.int8), np.int8(sign))
        return lax.reshape(codes, shape)

    def decode(self, xp: Any, codes: Array) -> Array:
        return self.coding.decode(xp, codes)

    def all_codes(self) -> np.ndarray:
        return self.coding.all_codes()


def _lanes(coding: Coding, k: int, scale: Array, zero: Array | None) -> Sequence[Coding]:
    """Return a coding for each of the codes that share a byte, if these share a scale too; else the one coding."""
    p = coding.packed
    blocks = [k // a.shape[1] for a in (scale, zero) if a is not None]
    if p == 1 or k % p or any(b % p for b in blocks):
        return (coding,)
    return [_Lane(coding, i, coding.bits, coding.signed, coding.kind) for i in range(p)]
