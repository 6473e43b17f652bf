"""Writes into tensors whose elements overlap in memory (such as overlapping windows), in the order of the CPU.

The CPU reads and writes one element after the other, in the order of its TensorIterator: an elementwise operator that
also reads the tensor sees its own earlier writes, and of several values for one position in memory the last one stays.
Geometries are static, so the order is known before the operator runs: it is divided into steps, each of which writes a
position at most once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tensorgraft.frontends.torch.core.iteration import aligned, fastest_first
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Geometry, Shape, read, write


class Step(NamedTuple):
    """Elements of a tensor (numbered in row-major order), and the positions in its storage to which they are
    written."""

    elements: np.ndarray
    positions: np.ndarray


def write_steps(
    operator: Operator, target: Geometry, operands: Sequence[Geometry], reads_itself: bool
) -> list[Step] | None:
    """Return the steps in which `target` is written, or None if no elements overlap.

    `operands` are the other tensors of the call, in order; `reads_itself` says that one of them shares memory with it.
    """
    shape, strides, offset, _ = target
    if not overlaps_itself(shape, strides):
        return None
    all_strides = [aligned(strides, shape, shape), *(aligned(g.strides, g.shape, shape) for g in operands)]
    outermost_first = fastest_first(shape, [s for s in all_strides if s is not None])[::-1]
    elements = np.arange(math.prod(shape)).reshape(shape).transpose(outermost_first).reshape(-1)
    positions = offset + _positions(shape, strides).transpose(outermost_first).reshape(-1)
    turn, last = _visits(positions)
    if reads_itself and _elementwise(operator):
        return [Step(elements[turn == k], positions[turn == k]) for k in range(int(turn.max()) + 1)]
    return [Step(elements[last], positions[last])]


def _elementwise(operator: Operator) -> bool:
    """Return True for an operator that computes and writes one element after the other."""
    tagged = torch.Tag.pointwise in operator.op.tags or operator.spec.promotion is not None
    return tagged or operator.name.startswith(("_foreach_", "masked_fill_"))


def write_step(xp: Backend, array: Array, geometry: Geometry, value: Array, step: Step) -> Array:
    """Write the elements of one step by `storage.write`."""
    array_dtype, n = xp.dtype_of(array), math.prod(xp.shape(array))
    size = n * array_dtype.itemsize // geometry.dtype.itemsize
    flat_geometry = Geometry((size,), (1,), 0, geometry.dtype)
    new = xp.gather(xp.reshape(value, (math.prod(geometry.shape),)), (xp.asarray(step.elements),))
    flat = xp.scatter(read(xp, array, flat_geometry), (xp.asarray(step.positions),), new)
    return write(xp, array, flat_geometry, flat)


@functools.lru_cache(maxsize=4096)
def overlaps_itself(shape: Shape, strides: Shape) -> bool:
    """Return True if two elements of the geometry share memory."""
    extent = 0
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if n == 0:
            return False
        if stride <= extent:  # axes interleave, which may or may not be without collisions
            return len(np.unique(_positions(shape, strides))) < math.prod(shape)
        extent += (n - 1) * stride
    return False


def _positions(shape: Shape, strides: Shape) -> np.ndarray:
    """Return the position in memory of each element, relative to the first."""
    return sum(
        (
            np.arange(n).reshape(-1, *[1] * (len(shape) - axis - 1)) * s
            for axis, (n, s) in enumerate(zip(shape, strides, strict=True))
        ),
        np.zeros(shape, np.int64),
    )


def _visits(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (for each write, the number of earlier writes to the same position; a mask of the last write to each
    position)."""
    by_position = np.argsort(positions, kind="stable")
    ordered = positions[by_position]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(first)
    turn, last = np.empty(len(positions), np.int64), np.empty(len(positions), bool)
    turn[by_position] = np.arange(len(positions)) - np.repeat(starts, np.diff([*starts, len(positions)]))
    last[by_position] = np.concatenate([first[1:], [True]])
    return turn, last
