"""The next number, which PyTorch has for fewer dtypes."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def nextafter(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype not in _BITS:
        return torch.nextafter(x, y)
    return _next_of_bits(x, y)


_BITS = {torch.float16: torch.int16}


def _next_of_bits(x: Tensor, y: Tensor) -> Tensor:
    """Return the next number by its bits, which are in the order of the numbers on each side of zero."""
    x, y = torch.broadcast_tensors(x, y)
    carrier = _BITS[x.dtype]
    bits = x.contiguous().view(carrier)
    least = torch.iinfo(carrier).min
    away_from_zero = (y > x) == (x > 0)
    next_bits = torch.where(away_from_zero, bits + 1, bits - 1)
    from_zero = torch.where(y > 0, torch.ones_like(bits), torch.full_like(bits, least + 1))
    neighbour = torch.where(x == 0, from_zero, next_bits).view(x.dtype)
    neighbour = torch.where(x == y, y, neighbour)
    return torch.where(torch.isnan(x) | torch.isnan(y), x + y, neighbour)
