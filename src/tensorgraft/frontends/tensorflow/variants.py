"""Values in tensors of variants, other than lists: ragged tensors, components of composite tensors, maps, compressed
sparse matrices. A tensor of variants with an axis is a tuple of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.values import is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


class Variant:
    """The base class of the values that a tensor of variants holds."""

    def arrays(self) -> Sequence[Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class RaggedRows(Variant):
    """A ragged tensor: splits of its axes, the outer ones first, and flat values."""

    splits: tuple[np.ndarray, ...]
    values: Array

    def arrays(self) -> Sequence[Any]:
        return (*self.splits, self.values)

    def zeros(self, xp: Backend) -> RaggedRows:
        return RaggedRows(self.splits, xp.zeros_like(lifted(xp, self.values)))

    def added(self, xp: Backend, other: RaggedRows) -> RaggedRows:
        return RaggedRows(self.splits, xp.add(lifted(xp, self.values), lifted(xp, other.values)))

    def __len__(self) -> int:
        return len(self.splits[0]) - 1 if self.splits else self.values.shape[0]


@dataclass(frozen=True, eq=False)
class Components(Variant):
    """The components of a composite tensor."""

    parts: tuple[Any, ...]

    def arrays(self) -> Sequence[Any]:
        return self.parts


@dataclass(frozen=True, eq=False)
class TensorMap(Variant):
    """A map of values by known keys (dtype, shape, bytes), in the order of insertion."""

    items: dict[Any, tuple[np.ndarray, Any]]

    def arrays(self) -> Sequence[Any]:
        return [value for _, value in self.items.values()]


@dataclass(frozen=True, eq=False)
class CompressedMatrix(Variant):
    """A sparse matrix, or a batch of them: the places of its entries (int64, row by row) and their values."""

    shape: tuple[int, ...]
    positions: Array  # (entries, rank)
    values: Array  # (entries,)

    def arrays(self) -> Sequence[Any]:
        return self.positions, self.values

    def batched(self, xp: Backend) -> tuple[int, Array, Array, Array]:
        """Return (batch, which of it each entry is in, rows, columns)."""
        columns: Any = xp.unstack(lifted(xp, self.positions), 1)
        if len(columns) == 2:
            return 1, xp.zeros_like(columns[0]), *columns
        return self.shape[0], *columns

    def dense(self, xp: Backend) -> Array:
        values = lifted(xp, self.values)
        dense_zeros = xp.zeros(self.shape, xp.dtype_of(values))
        return xp.scatter(dense_zeros, tuple(xp.unstack(lifted(xp, self.positions), 1)), values)

    def conjugate(self, xp: Backend) -> CompressedMatrix:
        values = lifted(xp, self.values)
        conjugated = xp.conj(values) if dtypes.is_complex(xp.dtype_of(values)) else values
        return CompressedMatrix(self.shape, self.positions, conjugated)

    def transposed(self, xp: Backend, conjugate: bool = False) -> CompressedMatrix:
        values = lifted(xp, (self.conjugate(xp) if conjugate else self).values)
        _, part, rows, columns = self.batched(xp)
        n, m = self.shape[-2:]
        where = xp.add(xp.multiply(xp.add(xp.multiply(part, m), columns), n), rows)
        order = xp.argsort(where)
        batch_part = [part] if len(self.shape) == 3 else []
        positions = xp.take(xp.stack([*batch_part, columns, rows], axis=1), order, 0)
        return CompressedMatrix((*self.shape[:-2], m, n), positions, xp.take(values, order, 0))


def key_of(xp: Backend, key: Any) -> tuple[Any, np.ndarray]:
    """Return (a hashable form of a key, the key)."""
    host = np.asarray(key) if is_known(key) else xp.to_numpy(key)
    return (host.dtype.str, host.shape, host.tolist() if host.dtype.kind == "O" else host.tobytes()), host
