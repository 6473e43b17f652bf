"""Rules of operations that move elements: their results are quantised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tensorgraft import views
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.activations import common_inputs
from tensorgraft.quantization.quantized import Quantized, axes_of, blocks, view_codes, with_own_codes
from tensorgraft.storage import contiguous_geometry

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES[name] = fn
        return fn

    return register


@rule("reshape")
def reshape(xp: Backend, q: Quantized, shape: tuple[int, ...]) -> Quantized:
    geometry = views.reshaped(q.geometry, tuple(shape))
    if geometry is None:
        q = with_own_codes(xp, q)
        geometry = views.reshaped(q.geometry, tuple(shape))
        assert geometry is not None
    return q.with_geometry(geometry)


@rule("permute_dims")
def permute_dims(xp: Backend, q: Quantized, axes: Sequence[int]) -> Quantized:
    return q.with_geometry(views.permuted(q.geometry, axes))


@rule("broadcast_to")
def broadcast_to(xp: Backend, q: Quantized, shape: tuple[int, ...]) -> Quantized:
    return q.with_geometry(views.broadcast(q.geometry, tuple(shape)))


@rule("slice")
def slice_(xp: Backend, q: Quantized, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> Quantized:
    return q.with_geometry(views.indexed(q.geometry, [slice(*s) for s in zip(start, stop, step, strict=True)]))


@rule("flip")
def flip(xp: Backend, q: Quantized, axes: Sequence[int]) -> Quantized:
    return q.with_geometry(views.flipped(q.geometry, axes))


@rule("copy")
def copy(xp: Backend, q: Quantized) -> Quantized:
    q = with_own_codes(xp, q)
    return q.with_parts(tuple(xp.copy(a) for a in q.parts))


@rule("gather")
def gather(xp: Backend, q: Quantized, indices: Sequence[Array]) -> Quantized | None:
    """Rows, as of an embedding: with the scales of each."""
    if axes_of(q) is None:
        return None
    codes, scale, zero = view_codes(xp, q)
    codes = xp.broadcast_to(codes, q.shape)
    n = len(indices)
    picked = xp.gather(codes, indices)
    starts: list[Array | None] = []
    for s in (scale, zero):
        if s is None:
            starts.append(None)
            continue
        at = tuple(xp.zeros_like(i) if xp.shape(s)[axis] == 1 else i for axis, i in enumerate(indices))
        starts.append(_in_blocks(xp, xp.gather(s, at), xp.shape(picked), _kept_blocks(xp, q, n)))
    shape = xp.shape(picked)
    return replace(
        q,
        codes=q.encoding.pack(xp, picked),
        scale=starts[0],
        zero=starts[1],
        base=shape,
        geometry=contiguous_geometry(shape, q.dtype),
    )


@rule("dynamic_slice")
def dynamic_slice(xp: Backend, q: Quantized, start: Sequence[Array], sizes: Sequence[int]) -> Quantized | None:
    """Slice from a traced start, for which blocks along these axes have to be split."""
    sliced_axes = [axis for axis, (n, size) in enumerate(zip(q.shape, sizes, strict=True)) if size != n]
    if not sliced_axes:
        return q
    rest = [axis for axis in range(len(sizes)) if axis not in sliced_axes]
    order = (*sliced_axes, *rest)
    indices = []
    for axis in sliced_axes:
        last = q.shape[axis] - sizes[axis]
        first = xp.minimum(xp.maximum(xp.astype(start[axis], dtypes.int32), 0), last)
        axis_indices = xp.add(xp.iota(sizes[axis], dtypes.int32), first)
        wide = xp.reshape(axis_indices, tuple(sizes[a] if a == axis else 1 for a in sliced_axes))
        indices.append(xp.broadcast_to(wide, tuple(sizes[a] for a in sliced_axes)))
    gathered = gather(xp, permute_dims(xp, q, order), indices)
    if gathered is None:
        return None
    return permute_dims(xp, gathered, tuple(order.index(axis) for axis in range(len(order))))


def _kept_blocks(xp: Backend, q: Quantized, n: int) -> tuple[int, ...]:
    """Return how many elements share a scale along the axes of a view after the first `n`, as far as a view keeps
    that."""
    axes = axes_of(q)
    assert axes is not None
    sizes = blocks(xp, q.scale, q.base)
    block_sizes = []
    for a in axes[0][n:]:
        size = 1 if a.base is None else sizes[a.base]
        first = min(a.start, a.start + (a.extent - 1) * a.step)
        block_sizes.append(math.gcd(first, a.extent, size) if abs(a.step) == 1 else 1)
    return tuple(block_sizes)


def _in_blocks(xp: Backend, scale: Array, shape: tuple[int, ...], block_sizes: tuple[int, ...]) -> Array:
    """Return one scale for each block of the last axes from one for each element."""
    scale_shape = xp.shape(scale)
    n_lead = len(scale_shape) - len(block_sizes)
    step = (1,) * n_lead + tuple(b if n > 1 else 1 for n, b in zip(scale_shape[n_lead:], block_sizes, strict=True))
    if any(s > 1 for s in step):
        scale = xp.slice(scale, (0,) * len(scale_shape), scale_shape, step)
    return scale


@rule("concat")
def concat(xp: Backend, arrays: Sequence[Any], axis: int) -> Quantized | None:
    """Concatenate arrays of one scheme, with the largest blocks that divide the blocks of all of them. Returns None for
    other arrays."""
    first = arrays[0]
    if not all(isinstance(a, Quantized) and (a.scheme, a.dtype) == (first.scheme, first.dtype) for a in arrays):
        return None
    parts = [with_own_codes(xp, a) for a in arrays]
    sizes = [blocks(xp, p.scale, p.base) for p in parts]
    common = [math.gcd(*(s[i] for s in sizes)) for i in range(len(first.shape))]
    common[axis] = math.gcd(*(p.base[axis] for p in parts), *(s[axis] for s in sizes))
    codes = xp.concat([p.encoding.unpack(xp, p.codes, p.base) for p in parts], axis=axis)

    def joined(name: str) -> Array | None:
        if getattr(first, name) is None:
            return None
        return xp.concat([_finer(xp, getattr(p, name), p.base, common) for p in parts], axis=axis)

    shape = xp.shape(codes)
    input_scale, input_zero = common_inputs(xp, parts)
    return replace(
        first,
        codes=first.encoding.pack(xp, codes),
        scale=joined("scale"),
        zero=joined("zero"),
        base=shape,
        geometry=contiguous_geometry(shape, first.dtype),
        input_scale=input_scale,
        input_zero=input_zero,
    )


def _finer(xp: Backend, scale: Array, base: tuple[int, ...], block: Sequence[int]) -> Array:
    """Return the scales of blocks that are divided further."""
    for axis, (n, b) in enumerate(zip(base, block, strict=True)):
        shape = xp.shape(scale)
        times = n // b // max(shape[axis], 1)
        if times > 1:
            wide = xp.broadcast_to(xp.expand_dims(scale, axis + 1), (*shape[: axis + 1], times, *shape[axis + 1 :]))
            scale = xp.reshape(wide, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))
    return scale
