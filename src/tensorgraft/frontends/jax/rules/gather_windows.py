"""Places that a gather or a scatter looks at (StableHLO, `gather` and `scatter`): one window of the operand for every
index.

An axis of the operand is either **whole** in every window, or the windows begin somewhere on it. Of the latter, a
window has one place (a point) or several (a span); a batching axis is a point that goes along with an axis of the
indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Ints = tuple[int, ...]


@dataclass
class GatherWindows:
    """Windows in an operand, one for each element of `batch`."""

    shape: Ints  # the shape of the operand
    sizes: Ints  # extents of a window, one for each axis of the operand
    batch: Ints  # the shape of the indices, without the axis of coordinates
    starts: dict[int, Array]  # axis -> int64 of shape `batch`, such that the window fits; without an entry: 0
    fits: Array | None  # bool of shape `batch`: the window was in range at its index; None: all were
    batching: tuple[int, ...]  # the axes of the operand that go along with axes of the indices

    @property
    def count(self) -> int:
        return math.prod(self.batch)

    @property
    def axes(self) -> Ints:
        """The axes that are not whole."""
        return tuple(a for a, n in enumerate(self.shape) if a in self.batching or self.sizes[a] != n)

    @property
    def full_axes(self) -> Ints:
        return tuple(a for a in range(len(self.shape)) if a not in self.axes)

    @property
    def spans(self) -> Ints:
        """The axes on which a window has several places, but not all."""
        return tuple(a for a in self.axes if self.sizes[a] != 1)

    def index(self, xp: Backend) -> list[Array]:
        """Return one index array for each of `axes`; together they have the shape of `batch` and the extents of
        `spans`."""
        spans = self.spans
        positions = []
        for axis in self.axes:
            at = self.starts.get(axis)
            if axis in spans:
                n = self.sizes[axis]
                coordinates = xp.reshape(xp.iota(n, dtypes.int64), tuple(n if a == axis else 1 for a in spans))
                at = coordinates if at is None else xp.add(self._before(xp, at, len(spans)), coordinates)
            elif at is None:
                at = xp.zeros((1,) * (len(self.batch) + len(spans)), dtypes.int64)
            else:
                at = self._before(xp, at, len(spans))
            positions.append(at)
        full = (*self.batch, *(self.sizes[a] for a in spans))
        if (
            positions and np.broadcast_shapes(*map(xp.shape, positions)) != full
        ):  # the batch has axes that choose nothing
            positions[0] = xp.broadcast_to(positions[0], full)
        return positions

    def corner(self, xp: Backend) -> list[Array]:
        """Return where the only window begins, one 0-d array an axis."""
        zero = xp.zeros((), dtypes.int64)
        return [xp.reshape(self.starts[a], ()) if a in self.starts else zero for a in range(len(self.shape))]

    @staticmethod
    def _before(xp: Backend, at: Array, extra_ndim: int) -> Array:
        return xp.reshape(at, (*xp.shape(at), *(1,) * extra_ndim)) if extra_ndim else at


def gather_windows(
    xp: Backend,
    shape: Ints,
    indices: Array,
    sizes: Ints,
    index_map: Sequence[int],
    batching: Sequence[int],
    indices_batching: Sequence[int],
    masked: bool,
    known: Any = None,
) -> GatherWindows:
    """The last axis of `indices` has a coordinate for each axis in `index_map`. Windows that do not fit are moved until
    they do; with `masked`, `in_range` tells which they were. `known`: the indices where they are constant."""
    fit = known is not None and _all_fit(np.asarray(known), [shape[a] - sizes[a] for a in index_map])
    *leading, _ = xp.shape(indices)
    batch = tuple(leading)
    starts: dict[int, Array] = {}
    in_range: Array | None = None
    for axis, coordinate in zip(index_map, _coordinates(xp, indices, batch), strict=True):
        at = _signed(xp, coordinate, shape[axis])
        most = shape[axis] - sizes[axis]
        if most:
            starts[axis] = at if fit else xp.clip(at, 0, most)
        if masked and not fit:
            is_unmoved = xp.equal(at, starts[axis] if most else 0)
            in_range = is_unmoved if in_range is None else xp.logical_and(in_range, is_unmoved)
    for axis, dim in zip(batching, indices_batching, strict=True):
        n = batch[dim]
        starts[axis] = xp.reshape(xp.iota(n, dtypes.int64), tuple(n if a == dim else 1 for a in range(len(batch))))
    return GatherWindows(tuple(shape), tuple(sizes), batch, starts, in_range, tuple(batching))


def _all_fit(indices: np.ndarray, most: Sequence[int]) -> bool:
    return bool(((indices >= 0) & (indices <= np.array(most, np.int64))).all())


def _coordinates(xp: Backend, indices: Array, batch: Ints) -> list[Array]:
    n = xp.shape(indices)[-1]
    if n == 1:
        return [xp.reshape(indices, batch)]
    return xp.unstack(indices, axis=len(batch)) if n else []


def _signed(xp: Backend, at: Array, extent: int) -> Array:
    """Return int64 indices. A uint64 that does not fit is out of range, and stays so."""
    if xp.dtype_of(at) == dtypes.uint64:
        at = xp.minimum(at, extent)
    return xp.astype(at, dtypes.int64)
