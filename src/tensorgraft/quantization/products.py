"""Rules of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.activations import by_range, by_row, in_range
from tensorgraft.quantization.quantized import Quantized, axes_of, dense, view_codes
from tensorgraft.quantization.recorded_weight import notice

Axes = tuple[Sequence[int], Sequence[int]]
_SHORT = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


def dot_general(
    xp: Backend, a: Any, b: Any, contract: Axes, batch: Axes = ((), ()), dtype: np.dtype | None = None
) -> Array:
    """Compute a product with one quantised operand or two. Scales that are the same along the contracted axes multiply
    the product of the codes; others, the codes."""
    for side, (q, other) in enumerate(((a, b), (b, a))):
        notice(xp, q, other, contract[side], contract[1 - side])
    if xp.compiles:  # eagerly one program: decoded numbers are not written to memory where that can be helped
        arrays = [part for x in (a, b) for part in (x.parts if isinstance(x, Quantized) else (x,))]
        if not any(map(xp.is_traced, arrays)):
            kinds = tuple([x.kind if isinstance(x, Quantized) else None for x in (a, b)])
            axes = tuple([tuple(map(tuple, pair)) for pair in (contract, batch)])
            return _program(xp, kinds, axes, dtype)(*arrays)[0]
    return _product(xp, a, b, contract, batch, dtype)


@functools.lru_cache(maxsize=1024)
def _program(
    xp: Backend, kinds: tuple[Any, ...], axes: tuple[Any, Any], dtype: np.dtype | None
) -> Callable[..., tuple[Array, ...]]:
    def product(*arrays: Array) -> tuple[Array]:
        rest = iter(arrays)
        a, b = (next(rest) if k is None else Quantized.of([next(rest) for _ in k[-1].parts], *k) for k in kinds)
        return (_product(xp, a, b, *axes, dtype),)

    return xp.compile(product)


def _product(xp: Backend, a: Any, b: Any, contract: Axes, batch: Axes, dtype: np.dtype | None) -> Array:
    result = dtype or (a.dtype if isinstance(a, Quantized) else xp.dtype_of(a))
    for side, (q, other) in enumerate(((a, b), (b, a))):
        out = _of_matrix(xp, q, other, side, contract, batch, result)
        if out is not None:
            return out
        if isinstance(q, Quantized) and not isinstance(other, Quantized) and _constant(xp, q, contract[side]):
            q, contract, batch = _as_it_lies(q, side, contract, batch)
            return _scaled(xp, q, other, side, contract, batch, result)
    a, b = (dense(xp, x) if isinstance(x, Quantized) else x for x in (a, b))
    return xp.dot_general(a, b, contract, batch, dtype)


def _of_matrix(
    xp: Backend, q: Any, other: Any, side: int, contract: Axes, batch: Axes, result: np.dtype
) -> Array | None:
    """Compute a product with all of a matrix, transposed or not, for which backends have kernels of their own; None for
    others."""
    if not isinstance(q, Quantized) or isinstance(other, Quantized) or len(q.base) != 2 or batch[0]:
        return None
    if q.scheme.activation or q.scheme.offset or q.encoding.kind == "dense" or len(contract[0]) != 1:
        return None
    if not xp.dtype_of(other) == q.dtype in _SHORT or result not in (q.dtype, dtypes.float32):
        return None
    q, contract, _ = _as_it_lies(q, side, contract, batch)
    if not q.is_whole:
        return None
    (axis,), (contracted_axis,) = contract[side], contract[1 - side]
    shape = xp.shape(other)
    rest = tuple(i for i in range(len(shape)) if i != contracted_axis)
    last = other if contracted_axis == len(rest) else xp.permute_dims(other, (*rest, contracted_axis))
    leading = tuple(shape[i] for i in rest)
    x = xp.reshape(last, (math.prod(leading), shape[contracted_axis]))
    product = xp.coded_matmul(x, q.codes, q.scale, q.zero, q.encoding, q.base, axis, result)
    product = xp.reshape(product, (*leading, q.base[1 - axis]))
    return xp.permute_dims(product, (len(leading), *range(len(leading)))) if side == 0 and leading else product


def _constant(xp: Backend, q: Quantized, axes: Sequence[int]) -> bool:
    """Return True if one scale serves all terms of a sum, and codes are the numbers they stand for."""
    varying = axes_of(q)
    if varying is None or q.zero is not None or q.encoding.kind in ("table", "dense"):
        return False
    grid = xp.shape(q.scale)
    grid_axes = [varying[0][i].base for i in axes]
    return all(base is None or grid[base] == 1 for base in grid_axes)


def _as_it_lies(q: Quantized, side: int, contract: Axes, batch: Axes) -> tuple[Quantized, Axes, Axes]:
    """Return a transposed operand as its codes lie, with other axes contracted: compilers know products of bytes by
    that."""
    base_view = q.full()
    strides = base_view.geometry.strides
    order = [strides.index(s) if s in strides else -1 for s in q.geometry.strides]
    if q.geometry.offset or sorted(order) != list(range(len(strides))) or q.shape != tuple(q.base[i] for i in order):
        return q, contract, batch
    used_axes = {*contract[side], *batch[side]}
    free = [order[i] for i in range(len(order)) if i not in used_axes]
    if free != sorted(free):
        return q, contract, batch

    def moved(axes: Axes) -> Axes:
        base_axes = tuple(order[i] for i in axes[side])
        return (base_axes, axes[1]) if side == 0 else (axes[0], base_axes)

    return base_view, moved(contract), moved(batch)


def _scaled(xp: Backend, q: Quantized, other: Array, side: int, contract: Axes, batch: Axes, result: np.dtype) -> Array:
    codes, scale, _ = view_codes(xp, q)
    if xp.shape(codes) != q.shape:
        codes = xp.broadcast_to(codes, q.shape)
    ndims = len(q.shape), xp.ndim(other)
    wide = result if result == dtypes.float64 else dtypes.float32

    def ndims_of(operand_side: int) -> tuple[int, int]:
        return ndims if operand_side == side else ndims[::-1]

    def multiply(xp: Backend, a: Array, b: Array, dtype: np.dtype) -> Array:
        return xp.dot_general(*((a, b) if side == 0 else (b, a)), contract, batch, dtype)

    def scaled(xp: Backend, product: Array, scale: Array, operand_side: int) -> Array:
        placed = _scales_of_operand(xp, scale, operand_side, contract, batch, *ndims_of(operand_side))
        return xp.multiply(product, placed if wide == dtypes.float32 else xp.astype(placed, wide))

    def of_weights(xp: Backend, other: Array, codes: Array, scale: Array) -> Array:
        values = xp.astype(q.encoding.decode(xp, codes), xp.dtype_of(other))
        return scaled(xp, multiply(xp, values, other, wide), scale, side)

    def of_integers(xp: Backend, other: Array, codes: Array, scale: Array) -> tuple[Array]:
        rows, other_scale = by_row(xp, other, contract[1 - side])
        product = xp.astype(multiply(xp, codes, rows, dtypes.int32), wide)
        return (scaled(xp, scaled(xp, product, scale, side), other_scale, 1 - side),)

    def of_a_range(xp: Backend, other: Array, codes: Array, scale: Array, *inputs: Array) -> tuple[Array]:
        step, zero = inputs if len(inputs) > 1 else (inputs[0], None)
        product = multiply(xp, codes, by_range(xp, other, step, zero), dtypes.int32)
        if zero is not None:
            total = xp.sum(xp.astype(codes, dtypes.int32), axis=tuple(contract[side]), keepdims=True)
            extra = xp.multiply(total, xp.astype(zero, dtypes.int32))
            product = xp.subtract(product, _scales_of_operand(xp, extra, side, contract, batch, *ndims_of(side)))
        return (scaled(xp, xp.multiply(xp.astype(product, wide), xp.astype(step, wide)), scale, side),)

    def straight_through(xp: Any, arguments: Any, results: Any, cotangents: Any) -> list[Array | None]:
        """Rounding has the derivative 1; numbers beyond a fixed range, which all become the same, have 0."""
        other, codes, scale, *inputs = arguments

        def product(inner: Backend, other: Array) -> list[Array]:
            return [of_weights(inner, other, inner.lifted(codes), inner.lifted(scale))]

        _, pullback = xp.vjp(product, other)
        slope = pullback([cotangents[0]])[0]
        if inputs:
            in_bounds = in_range(xp, other, *(inputs if len(inputs) > 1 else (inputs[0], None)))
            slope = xp.where(in_bounds, slope, xp.zeros_like(slope))
        return [slope, None, None, *(None for _ in inputs)]

    if q.scheme.activation and xp.dtype_of(other) != dtypes.float64:
        inputs = [x for x in (q.input_scale, q.input_zero) if x is not None]
        forward = of_a_range if inputs else of_integers
        (product,) = xp.custom_vjp(forward, straight_through, None, other, codes, scale, *inputs)
    else:
        product = of_weights(xp, other, codes, scale)
    return product if wide == result else xp.astype(product, result)


def _scales_of_operand(
    xp: Backend, scale: Array, side: int, contract: Axes, batch: Axes, ndim: int, other_ndim: int
) -> Array:
    """Scales of an operand, where its axes are in the product: batch, free axes of the first, those of the second."""
    free = [i for i in range(ndim) if i not in contract[side] and i not in batch[side]]
    pad = other_ndim - len(contract[1 - side]) - len(batch[1 - side])
    order = [*batch[side], *free, *contract[side]]
    moved = xp.permute_dims(scale, tuple(order)) if order != list(range(ndim)) else scale
    extents = xp.shape(moved)
    batch_sizes, free_sizes = extents[: len(batch[side])], extents[len(batch[side]) : len(batch[side]) + len(free)]
    shape = (*batch_sizes, *free_sizes, *(1,) * pad) if side == 0 else (*batch_sizes, *(1,) * pad, *free_sizes)
    return xp.reshape(moved, shape)
