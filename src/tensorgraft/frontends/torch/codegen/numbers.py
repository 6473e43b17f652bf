"""A module's random numbers as those that a generated file gets while it is checked: fractions of multiples of a
number, by their place in an array, instead of those of a generator. So results of programs that draw can be compared.

`codegen/verification/runners` has the same for each target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor
aten = torch.ops.aten


def uniform(shape: Sequence[int]) -> Tensor:
    n = math.prod(shape)
    return torch.from_numpy(((np.arange(n) * 0.6180339887498949 + 0.1) % 1).astype(np.float32)).reshape(tuple(shape))


def normal(shape: Sequence[int]) -> Tensor:
    return 2 * torch.cos(6 * uniform(shape))


def _filled(numbers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a rule for an operator that writes its draws into its first argument."""
    return lambda x, *args, generator=None: x.copy_(numbers(x.shape, *args))


def _like(numbers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, dtype=None, **kwargs: numbers(x.shape, *args).to(dtype or x.dtype)


def _shaped(numbers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda shape, *, dtype=None, **kwargs: numbers(shape).to(dtype or torch.get_default_dtype())


def _integers(low: int, high: int, shape: Sequence[int]) -> Tensor:
    return low + torch.floor(uniform(shape) * (high - low)).long()


def _below(shape: Sequence[int], p: Any = 0.5) -> Tensor:
    return uniform(shape) < p


OPERATORS: dict[Any, Callable[..., Tensor]] = {
    aten.bernoulli_.float: _filled(_below),
    aten.bernoulli_.Tensor: _filled(_below),
    aten.bernoulli.p: _like(_below),
    aten.bernoulli.default: lambda p, generator=None: _below(p.shape, p).to(p.dtype),
    aten.uniform_.default: _filled(lambda shape, low=0.0, high=1.0: low + (high - low) * uniform(shape)),
    aten.normal_.default: _filled(lambda shape, mean=0.0, std=1.0: mean + std * normal(shape)),
    aten.exponential_.default: _filled(lambda shape, rate=1.0: -torch.log1p(-uniform(shape)) / rate),
    **dict.fromkeys([aten.rand.default, aten.rand.generator], _shaped(uniform)),
    **dict.fromkeys([aten.randn.default, aten.randn.generator], _shaped(normal)),
    aten.rand_like.default: _like(uniform),
    aten.randn_like.default: _like(normal),
    aten.randint.default: lambda high, shape, *, dtype=None, **k: _integers(0, high, shape).to(dtype or torch.int64),
    aten.randint.low: lambda low, high, shape, *, dtype=None, **k: _integers(low, high, shape).to(dtype or torch.int64),
    aten.randperm.default: lambda n, **kwargs: torch.argsort(uniform((n,))),
}  # fmt: skip


class SameNumbers(TorchDispatchMode):
    """A dispatch mode in which random operators use the numbers of this module. `others`: operators that drew their
    own."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = OPERATORS.get(func)
        if rule is not None:
            return rule(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.others.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
