"""Views: how indexing, transposition and reshaping move the geometry of an array in its storage, without a copy."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from tensorgraft.storage import Geometry

Shape = tuple[int, ...]


def permuted(g: Geometry, axes: Sequence[int]) -> Geometry:
    return g._replace(shape=tuple(g.shape[a] for a in axes), strides=tuple(g.strides[a] for a in axes))


def broadcast(g: Geometry, shape: Shape) -> Geometry:
    """Raises ValueError where the shape does not broadcast."""
    lead = len(shape) - len(g.shape)
    strides = [0] * max(lead, 0)
    aligned = zip(g.shape, shape[lead:], g.strides, strict=True) if lead >= 0 else ()
    for extent, wanted_extent, stride in aligned:
        if extent not in (wanted_extent, 1):
            lead = -1
        strides.append(stride if extent == wanted_extent else 0)
    if lead < 0:
        raise ValueError(f"an array of shape {g.shape} does not broadcast to {shape}")
    return g._replace(shape=shape, strides=tuple(strides))


def flipped(g: Geometry, axes: Sequence[int]) -> Geometry:
    strides, offset = list(g.strides), g.offset
    for a in axes:
        if g.shape[a]:
            offset += (g.shape[a] - 1) * strides[a]
            strides[a] = -strides[a]
    return g._replace(strides=tuple(strides), offset=offset)


def diagonal(g: Geometry, k: int) -> Geometry:
    """Return the diagonal `k` of the last two axes, as the last axis."""
    rows, columns = g.shape[-2:]
    n = max(min(rows, columns - k) if k >= 0 else min(rows + k, columns), 0)
    offset = g.offset + (k * g.strides[-1] if k >= 0 else -k * g.strides[-2]) * (n > 0)
    return Geometry((*g.shape[:-2], n), (*g.strides[:-2], g.strides[-2] + g.strides[-1]), offset, g.dtype)


def reshaped(g: Geometry, shape: Shape) -> Geometry | None:
    """Return the geometry in another shape of the same size; None where the elements have no such strides: a copy is
    needed."""
    if 0 in shape:
        return g._replace(shape=shape, strides=(0,) * len(shape))
    groups: list[list[int]] = []  # axes that are one run of memory: (extent, stride of the last)
    for n, stride in zip(g.shape, g.strides, strict=True):
        if n == 1:
            continue
        if groups and groups[-1][1] == n * stride:
            groups[-1][0] *= n
            groups[-1][1] = stride
        else:
            groups.append([n, stride])
    strides: list[int] = []
    rest = list(shape)
    while rest:
        n = rest.pop()
        if n == 1:
            strides.append(0)
            continue
        if not groups or groups[-1][0] % n:
            return None
        strides.append(groups[-1][1])
        groups[-1][0] //= n
        groups[-1][1] *= n
        if groups[-1][0] == 1:
            groups.pop()
    return g._replace(shape=shape, strides=tuple(reversed(strides)))


def shape_with(shape: Sequence[int], size: int) -> Shape:
    """Return a shape in which one extent may be -1. Raises ValueError where it cannot hold `size` elements."""
    extents = [operator.index(n) for n in shape]
    if extents.count(-1) > 1 or any(n < -1 for n in extents):
        raise ValueError(f"{tuple(extents)} is not a shape: at most one extent may be -1")
    if -1 in extents:
        known = math.prod(n for n in extents if n != -1)
        if not known or size % known:
            raise ValueError(f"{size} elements do not fill the shape {tuple(extents)}")
        extents[extents.index(-1)] = size // known
    if math.prod(extents) != size:
        raise ValueError(f"{size} elements do not fill the shape {tuple(extents)}")
    return tuple(extents)


def indexed(g: Geometry, key: Sequence[Any]) -> Geometry:
    """Basic indexing: integers, slices and None, one of the first two for each axis. Raises IndexError."""
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = g.offset, 0
    for k in key:
        if k is None:
            shape.append(1)
            strides.append(0)
            continue
        n, stride = g.shape[axis], g.strides[axis]
        if isinstance(k, slice):
            start, stop, step = k.indices(n)
            length = len(range(start, stop, step))
            offset += start * stride if length else 0
            shape.append(length)
            strides.append(stride * step)
        else:
            if not -n <= k < n:
                raise IndexError(f"index {k} is out of bounds for axis {axis} of size {n}")
            offset += (k % n) * stride
        axis += 1
    return Geometry(tuple(shape), tuple(strides), offset, g.dtype)


def overlaps_itself(g: Geometry) -> bool:
    """Return True if two elements certainly share memory, as after a broadcast."""
    return 0 not in g.shape and any(n > 1 and not stride for n, stride in zip(g.shape, g.strides, strict=True))
