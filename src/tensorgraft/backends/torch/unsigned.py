"""Arithmetic of uint16, uint32 and uint64 where signed integers of the same bits give something else.

Everything is done in integers of the same size. Division is that of Warren, "Hacker's Delight", section 9-3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorgraft.backends.torch.precision import SIGNED, UNSIGNED, as_bits, from_ordered, ordered

Tensor = torch.Tensor


def shift_right(x: Tensor, y: Tensor) -> Tensor:
    """Shift right with zeros from the left. `x` and `y` are signed integers of the same bits."""
    most = torch.iinfo(x.dtype).max
    halved = (x >> 1) & most
    # PyTorch keeps the sign in shifts by negative numbers, which are large unsigned ones
    return torch.where(y == 0, x, halved >> (y - 1))


def _divided(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and remainder of the bits of unsigned numbers; by zero: unspecified."""
    least = torch.iinfo(x.dtype).min
    great = y < 0  # the highest bit is set: the quotient is 0 or 1
    safe = torch.where(y <= 0, torch.ones_like(y), y)
    half = torch.div((x >> 1) & torch.iinfo(x.dtype).max, safe, rounding_mode="trunc")
    quotient = half << 1
    rest = x - quotient * safe
    quotient = quotient + ((rest ^ least) >= (safe ^ least)).to(x.dtype)
    quotient = torch.where(great, ((x ^ least) >= (y ^ least)).to(x.dtype), quotient)
    return quotient, x - quotient * y


def _on_bits(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, y: Tensor) -> Tensor:
        return fn(*torch.broadcast_tensors(as_bits(x), as_bits(y))).view(x.dtype)

    return apply


def _on_order(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, y: Tensor) -> Tensor:
        return from_ordered(fn(ordered(x), ordered(y)), x.dtype)

    return apply


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": lambda x: x,
    "sign": lambda x: (as_bits(x) != 0).to(SIGNED[x.dtype]).view(x.dtype),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "maximum": _on_order(torch.maximum),
    "minimum": _on_order(torch.minimum),
    "bitwise_right_shift": _on_bits(shift_right),
    "integer_floor_divide": _on_bits(lambda x, y: _divided(x, y)[0]),
    "fmod": _on_bits(lambda x, y: _divided(x, y)[1]),
}


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an unsigned array as one of another dtype."""
    bits = as_bits(x)
    if dtype == torch.bool:
        return bits != 0
    if dtype.itemsize <= x.dtype.itemsize and not (dtype.is_floating_point or dtype.is_complex):
        return bits.to(SIGNED[dtype]).view(dtype) if dtype in UNSIGNED else bits.to(dtype)
    if x.dtype != torch.uint64:
        wide = bits.to(torch.int64) & (2 ** (8 * x.dtype.itemsize) - 1)
        return wide.to(SIGNED[dtype]).view(dtype) if dtype in UNSIGNED else wide.to(dtype)
    # great numbers are halved, with the lowest bit kept so that they round as the whole number does, and doubled
    halved = (((bits >> 1) & torch.iinfo(torch.int64).max) | (bits & 1)).to(dtype)
    return torch.where(bits < 0, halved + halved, bits.to(dtype))
