"""Products with a matrix of which codes are kept."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


class Coding(Protocol):
    """The meaning of codes, and their layout in memory."""

    bits: int
    signed: bool
    kind: str  # "integer": codes are the numbers

    @property
    def packed(self) -> int:
        """The number of codes that share a byte, the first in the lowest bits."""

    def unpack(self, xp: Any, packed: Array, shape: tuple[int, ...]) -> Array:
        """Return the codes of a `shape`; as they are where a code is a byte."""

    def decode(self, xp: Any, codes: Array) -> Array:
        """Return the float32 values of codes."""

    def all_codes(self) -> np.ndarray:
        """Return every code that represents a number, in ascending order of their bits."""


class Coded:
    shape: Any
    dtype_of: Any

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
        """Compute x times a matrix of `shape` (n, k), the axis `axis` of which is contracted: (m, k) -> (m, n), or
        where that is 0 (m, n) -> (m, k).

        The numbers of the matrix are (decoded codes - zero) * scale. `codes` are of its shape, or packed bytes;
        float32 `scale` and `zero` have extents that divide its own, each scale for a block. `x` is a float of at most
        32 bits, and so is the result, unless `dtype` says float32; numbers, and the product of the codes before it is
        scaled, may be rounded to its dtype; sums are of float32.
        """
        values = coding.decode(self, coding.unpack(self, codes, shape))
        scale_after = self.shape(scale)[axis] == 1 and zero is None  # one scale for all that is added up
        if not scale_after:
            values = values if zero is None else self.subtract(values, spread_blocks(self, zero, shape))
            values = self.multiply(values, spread_blocks(self, scale, shape))
        narrow = self.dtype_of(x)
        product = self.dot_general(x, self.astype(values, narrow), ((1,), (axis,)), dtype=dtypes.float32)
        product = self.multiply(product, _row(self, scale, shape, axis)) if scale_after else product
        result = narrow if dtype is None else dtype
        return product if result == dtypes.float32 else self.astype(product, result)


def spread_blocks(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Return one number for each element from one for each block, along axes with several blocks."""
    for axis, (s, n) in enumerate(zip(xp.shape(x), shape, strict=True)):
        if s not in (1, n):
            x_shape = xp.shape(x)
            wide = xp.broadcast_to(xp.expand_dims(x, axis + 1), (*x_shape[: axis + 1], n // s, *x_shape[axis + 1 :]))
            x = xp.reshape(wide, (*x_shape[:axis], n, *x_shape[axis + 1 :]))
    return x


def _row(xp: Any, scale: Array, shape: tuple[int, int], axis: int) -> Array:
    """Scales as those of a product's columns."""
    wide = spread_blocks(xp, scale, shape)
    return xp.permute_dims(wide, (1, 0)) if axis == 1 else wide


__all__ = ["Coded", "Coding", "spread_blocks"]
