"""Scales and zero points of blocks, and codes by them."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry


@with_operators
def ranges(xp: ValueBackend, x: Value, scheme: Scheme, block: tuple[int, ...]) -> tuple[Value, Value | None]:
    """Return float32 (scales, zero points or None) of every block, one axis for each of `x`; of a block of zeros, 1.

    Of signed codes, that which is greatest in magnitude gets the lowest code, since there is one more of them below
    zero: scales may be negative.
    """
    codes = scheme.codes
    split, inner = split_of(x.shape, block)
    blocks = xp.reshape(xp.astype(x, dtypes.float32), split)
    grid = tuple(n // b for n, b in zip(x.shape, block, strict=True))
    if 0 in split:
        return xp.ones(grid, dtypes.float32), xp.zeros(grid, dtypes.float32) if scheme.has_zero_points else None

    def over(name: str, x: Value) -> Value:
        return xp.reshape(getattr(xp, name)(x, axis=inner) if inner else x, grid)

    if codes.kind == "integer" and codes.bits == 1:
        # Two levels, as far from the mean (or from zero) as numbers are on average: the extremes would be too far
        if scheme.symmetric and codes.signed:
            scale = over("mean", abs(blocks)) * 2.0
            return _not_zero(xp, scale), xp.full(grid, -0.5, dtypes.float32)
        mean = over("mean", blocks)
        wide = xp.reshape(mean, tuple(1 if i in inner else n for i, n in enumerate(split)))
        deviation = over("mean", abs(blocks - wide))
        scale, low = _not_zero(xp, deviation * 2.0), mean - deviation
        if scheme.offset:
            return scale, low - scale * float(codes.low)
        return scale, float(codes.low) - low / scale
    high, low = over("max", blocks), over("min", blocks)
    if scheme.offset:
        scale = _not_zero(xp, (high - low) / float(codes.high - codes.low))
        return scale, low - scale * float(codes.low)
    if scheme.has_zero_points:
        high, low = xp.maximum(high, 0.0), xp.minimum(low, 0.0)
        scale = _not_zero(xp, (high - low) / float(codes.high - codes.low))
        zero = xp.clip(xp.round(float(codes.low) - low / scale), codes.low, codes.high)
        return scale, zero
    if codes.kind == "integer":
        extreme = xp.where(high > -low, high, low)
        return _not_zero(xp, extreme / float(codes.low)), None
    return _not_zero(xp, xp.maximum(high, -low) / codes.largest), None


def with_ranges(xp: Backend, x: Array, scheme: Scheme, scale: Array, zero: Array | None) -> Quantized:
    """Return `x` quantised to the nearest codes, with scales and zero points given."""
    shape = xp.shape(x)
    block = tuple(max(n, 1) // max(s, 1) for n, s in zip(shape, xp.shape(scale), strict=True))
    split, inner = split_of(shape, block)
    wide = tuple(1 if i in inner else n for i, n in enumerate(split))
    values = xp.reshape(xp.astype(x, dtypes.float32), split)
    if zero is not None and scheme.offset:
        values = xp.subtract(values, xp.reshape(zero, wide))
    values = xp.divide(values, xp.reshape(scale, wide))
    if zero is not None and not scheme.offset:
        values = xp.add(values, xp.reshape(zero, wide))
    codes = xp.reshape(scheme.codes.encode(xp, values), shape)
    return Quantized(
        scheme.codes.pack(xp, codes), scale, zero, shape, contiguous_geometry(shape, xp.dtype_of(x)), scheme
    )


def split_of(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (the shape with every axis split into blocks and the elements in each, the axes of the latter)."""
    split: list[int] = []
    inner = []
    for n, b in zip(shape, block, strict=True):
        split += [n // b, b]
        inner.append(len(split) - 1)
    return tuple(split), tuple(inner)


def _not_zero(xp: Any, scale: AnyArray) -> AnyArray:
    return xp.where(xp.equal(scale, 0.0), xp.ones_like(scale), scale)
