"""The data that programs begin with: from small tables, so that the same text gives the same numbers on each device."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
_SIZE = 4096


def _tables() -> dict[str, Tensor]:
    drawn = random.Random(20)
    coarse = []
    while len(coarse) < _SIZE:  # each run of 128 has no number twice: no ties
        numbers = [i / 16 for i in range(-64, 64)]
        drawn.shuffle(numbers)
        coarse += numbers
    whole = []
    while len(whole) < _SIZE:
        integers = list(range(-9, 10))
        drawn.shuffle(integers)
        whole += integers
    special = [math.inf, -math.inf, math.nan, 0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, 0.5, 100.0, -3.0, 2.0]
    return {
        "coarse": torch.tensor(coarse, dtype=torch.float64),
        "fine": torch.tensor([drawn.gauss(0, 1.5) for _ in range(_SIZE)], dtype=torch.float64),
        "special": torch.tensor([drawn.choice(special) for _ in range(_SIZE)], dtype=torch.float64),
        "whole": torch.tensor(whole[:_SIZE]),
        "extreme": torch.tensor([drawn.choice([0, 1, 127, -128, 255, 2**31 - 1, 2**63 - 1]) for _ in range(_SIZE)]),
    }


_TABLES = _tables()


def same(t: Tensor) -> Tensor:
    return t


moved = same  # what `undecided` does to numbers, to see what rounding decides


def values(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """In memory of their own. `seed % 16` says of what kind they are: special ones (0), fine ones (odd), coarse ones,
    all different."""
    drawn = moved(_values(count, dtype, seed))
    return drawn.clone() if drawn.untyped_storage().nbytes() != count * drawn.element_size() else drawn


def _values(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    start = seed * 37 % (_SIZE - 2 * count)
    if dtype.is_floating_point or dtype.is_complex:
        table = _TABLES["special" if seed % 16 == 0 else "fine" if seed % 2 else "coarse"]
        if dtype.is_complex:
            return torch.complex(table[start : start + count], table[start + count : start + 2 * count]).to(dtype)
        return table[start : start + count].to(dtype)
    if dtype is torch.bool:
        return _TABLES["fine"][start : start + count] > 0
    table = _TABLES["extreme" if seed % 16 == 0 else "whole"][start : start + count]
    return (table if dtype.is_signed else table.abs()).to(dtype)


def maker(device: torch.device) -> Callable[..., Tensor]:
    def T(shape: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 1, layout: str = "c") -> Tensor:
        """A tensor whose memory is contiguous (c), transposed (t), channels_last (l), every second place (s), one row
        for all (e), or begins later (o)."""
        shape = tuple(shape)
        if layout == "e" and shape:
            return values(math.prod(shape[1:]), dtype, seed).to(device).view(1, *shape[1:]).expand(shape)
        if layout == "s" and shape:
            return values(math.prod(shape) * 2, dtype, seed).to(device).view(*shape[:-1], -1)[..., ::2]
        if layout == "o":
            return values(math.prod(shape) + 1, dtype, seed).to(device)[1:].view(shape)
        flat = values(math.prod(shape), dtype, seed).to(device)
        if layout == "t":
            return flat.view(shape[::-1]).permute(*range(len(shape))[::-1]) if shape else flat.view(())
        if layout == "l" and len(shape) in (4, 5):
            back = [0, len(shape) - 1, *range(1, len(shape) - 1)]
            return flat.view(shape[0], *shape[2:], shape[1]).permute(back)
        return flat.view(shape)

    return T


def indices(device: torch.device) -> Callable[..., Tensor]:
    def index(shape: Sequence[int], below: int, seed: int = 1) -> Tensor:
        """Indices from 0 to `below` - 1."""
        return (_TABLES["whole"][seed % 1000 : seed % 1000 + math.prod(shape)] % max(below, 1)).view(*shape).to(device)

    return index


def prepared(module: torch.nn.Module, seed: int, device: torch.device) -> Any:
    """The module with numbers that are the same everywhere, in new tensors on the device."""
    count = itertools.count(seed)

    def fresh(t: Tensor) -> Tensor:
        numbers = (
            (values(t.numel(), t.dtype, 2 * next(count) + 1).view(t.shape) / 4).abs() if t.is_floating_point() else t
        )
        return numbers.clone().to(device)

    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return module._apply(fresh)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
