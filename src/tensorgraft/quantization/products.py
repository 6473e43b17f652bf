"""Rules of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.quantized import Quantized, axes_of, dense, seen

Array = Any
Axes = tuple[Sequence[int], Sequence[int]]


def dot_general(
    xp: Backend, a: Any, b: Any, contract: Axes, batch: Axes = ((), ()), dtype: np.dtype | None = None
) -> Array:
    """A product with one quantised operand or two. Scales that are the same along the contracted axes multiply the
    product of the codes; others, the codes."""
    result = dtype or (a.dtype if isinstance(a, Quantized) else xp.dtype_of(a))
    for which, (q, other) in enumerate(((a, b), (b, a))):
        if isinstance(q, Quantized) and not isinstance(other, Quantized) and _constant(xp, q, contract[which]):
            q, contract, batch = _as_it_lies(q, which, contract, batch)
            return _scaled(xp, q, other, which, contract, batch, result)
    a, b = (dense(xp, x) if isinstance(x, Quantized) else x for x in (a, b))
    return xp.dot_general(a, b, contract, batch, dtype)


def _constant(xp: Backend, q: Quantized, axes: Sequence[int]) -> bool:
    """One scale for all that is added up, and codes that are what they mean."""
    found = axes_of(q)
    if found is None or q.zero is not None or q.encoding.kind == "table":
        return False
    grid = xp.shape(q.scale)
    along = [found[0][i].base for i in axes]
    return all(base is None or grid[base] == 1 for base in along)


def _as_it_lies(q: Quantized, which: int, contract: Axes, batch: Axes) -> tuple[Quantized, Axes, Axes]:
    """A transposed operand as its codes lie, with other axes contracted: compilers know products of bytes by that."""
    whole = q.whole()
    strides = whole.geometry.strides
    order = [strides.index(s) if s in strides else -1 for s in q.geometry.strides]
    if q.geometry.offset or sorted(order) != list(range(len(strides))) or q.shape != tuple(q.base[i] for i in order):
        return q, contract, batch
    taken = {*contract[which], *batch[which]}
    free = [order[i] for i in range(len(order)) if i not in taken]
    if free != sorted(free):
        return q, contract, batch

    def moved(axes: Axes) -> Axes:
        own = tuple(order[i] for i in axes[which])
        return (own, axes[1]) if which == 0 else (axes[0], own)

    return whole, moved(contract), moved(batch)


def _scaled(
    xp: Backend, q: Quantized, other: Array, which: int, contract: Axes, batch: Axes, result: np.dtype
) -> Array:
    codes, scale, _ = seen(xp, q)
    if xp.shape(codes) != q.shape:
        codes = xp.broadcast_to(codes, q.shape)
    ndims = len(q.shape), xp.ndim(other)
    wide = result if result == dtypes.float64 else dtypes.float32

    def multiply(xp: Backend, a: Array, b: Array, dtype: np.dtype) -> Array:
        return xp.dot_general(*((a, b) if which == 0 else (b, a)), contract, batch, dtype)

    def scaled(xp: Backend, product: Array, scale: Array, whose: int) -> Array:
        at = ndims if whose == which else ndims[::-1]
        placed = _placed(xp, scale, whose, contract, batch, *at)
        return xp.multiply(product, placed if wide == dtypes.float32 else xp.astype(placed, wide))

    def of_weights(xp: Backend, other: Array, codes: Array, scale: Array) -> Array:
        values = xp.astype(q.encoding.decode(xp, codes), xp.dtype_of(other))
        return scaled(xp, multiply(xp, values, other, wide), scale, which)

    def of_integers(xp: Backend, other: Array, codes: Array, scale: Array) -> tuple[Array]:
        rows, theirs = by_row(xp, other, contract[1 - which])
        product = xp.astype(multiply(xp, codes, rows, dtypes.int32), wide)
        return (scaled(xp, scaled(xp, product, scale, which), theirs, 1 - which),)

    def straight_through(xp: Any, arguments: Any, results: Any, cotangents: Any) -> list[Array | None]:
        """Rounding has the derivative 1."""
        other, codes, scale = arguments

        def product(inner: Backend, other: Array) -> list[Array]:
            return [of_weights(inner, other, inner.lifted(codes), inner.lifted(scale))]

        _, pullback = xp.vjp(product, other)
        return [pullback([cotangents[0]])[0], None, None]

    if q.scheme.activation == "int8" and xp.dtype_of(other) != dtypes.float64:
        (product,) = xp.custom_vjp(of_integers, straight_through, None, other, codes, scale)
    else:
        product = of_weights(xp, other, codes, scale)
    return product if wide == result else xp.astype(product, result)


def by_row(xp: Backend, x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """(int8 codes, float32 scales): quantised symmetrically, with one scale for all that is contracted along `axes`.

    The greatest number lies half a step beyond the last code, and numbers are multiplied by the scale's reciprocal, as
    in torchao: how its models round is how they round here.
    """
    values = xp.astype(x, dtypes.float32)
    if 0 in xp.shape(values):
        kept = tuple(1 if i in axes else n for i, n in enumerate(xp.shape(values)))
        return xp.astype(values, dtypes.int8), xp.ones(kept, dtypes.float32)
    largest = xp.max(xp.abs(values), axis=tuple(axes), keepdims=True)
    scale = xp.divide(xp.where(xp.equal(largest, 0.0), xp.ones_like(largest), largest), 127.5)
    codes = xp.clip(xp.round(xp.multiply(values, xp.divide(1.0, scale))), -128.0, 127.0)
    return xp.astype(codes, dtypes.int8), scale


def _placed(xp: Backend, scale: Array, which: int, contract: Axes, batch: Axes, ndim: int, others: int) -> Array:
    """Scales of an operand, where its axes are in the product: batch, free axes of the first, those of the second."""
    free = [i for i in range(ndim) if i not in contract[which] and i not in batch[which]]
    between = others - len(contract[1 - which]) - len(batch[1 - which])
    order = [*batch[which], *free, *contract[which]]
    moved = xp.permute_dims(scale, tuple(order)) if order != list(range(ndim)) else scale
    extents = xp.shape(moved)
    lead, own = extents[: len(batch[which])], extents[len(batch[which]) : len(batch[which]) + len(free)]
    shape = (*lead, *own, *(1,) * between) if which == 0 else (*lead, *(1,) * between, *own)
    return xp.reshape(moved, shape)
