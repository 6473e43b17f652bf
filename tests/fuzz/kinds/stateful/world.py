"""The names that a program begins with: data, classes of results, modules, and objects that it may change."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import os
import random
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils import parametrize

Tensor = torch.Tensor
VARIABLE = "TG_FUZZ"  # of the environment


@dataclasses.dataclass
class Record:
    y: Any
    n: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    y: Any
    n: Any = 0


class Pair(NamedTuple):
    y: Any
    n: Any = 0


class Bag(dict[str, Any]):
    pass


class Row(list[Any]):
    pass


class Plain:
    def __init__(self, y: Any, n: Any = 0) -> None:
        self.y, self.n = y, n


class Slots:
    __slots__ = ("n", "y")

    def __init__(self, y: Any, n: Any = 0) -> None:
        self.y, self.n = y, n


RESULTS = (Record, Frozen, Pair, Bag, Row, Plain, Slots)


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * 2 + ctx.saved_tensors[0] * 0


class Running(nn.Module):
    """A module that keeps state in all ways: a number, a buffer that is written, one that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.scale, self.calls = 0.5, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
            self.last = x.detach().mean(0)
        return self.linear(x) * self.scale - self.mean + self.calls


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 3),
    "layers": lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "drop": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0)),
    "running": Running,
    "tied": lambda: nn.Sequential(layer := nn.Linear(3, 3), nn.Tanh(), layer),
    "scaled": lambda: nn.Sequential(nn.LayerNorm(3), nn.PReLU(), nn.Linear(3, 3, bias=False)),
    "normed": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
}


@functools.cache
def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return multiples of an eighth between -1 and 1, which are copied by whoever writes them."""
    return np.random.default_rng(seed).integers(-8, 9, shape) / 8


def tensors(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors of a result, whatever it is."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part, seen)
    elif isinstance(value, tuple | list | collections.deque):
        for part in value:
            yield from tensors(part, seen)
    elif isinstance(value, Slots):
        yield from tensors((value.y, value.n), seen)
    elif isinstance(value, (*RESULTS, types.SimpleNamespace, torch.distributions.Distribution)):
        yield from tensors(vars(value), seen)


def total(value: Any) -> Tensor:
    """Return the sum of what in a result has a history."""
    return sum((t.float().sum() for t in tensors(value) if t.requires_grad and not t.is_inference()), torch.zeros(()))  # type: ignore[return-value]


def first(value: Any) -> Tensor:
    """Return the first matrix of three columns in a result."""
    return next(t for t in tensors(value) if t.ndim == 2 and t.shape[1] == 3)


_COUNTED = """
count, log = 0, []
def counted(v):
    global count
    count += 1
    log.append(count + 0.5)
    return v * count
"""


def world(device: torch.device, jit: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that a program begins with, on a device."""

    class Box:
        """What has attributes, its class too, which is this program's own."""

        n = 1
        shared: typing.ClassVar[list[float]] = []

        def __len__(self) -> int:
            return 2

        def __init__(self, **attributes: Any) -> None:
            vars(self).update(attributes)

        def scaled(self, v: Any) -> Any:
            return v * 0.5

        @property
        def twice(self) -> Any:
            return self.k * 2

    def data(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> Tensor:
        return torch.tensor(numbers(shape, seed), dtype=getattr(torch, dtype)).to(device)

    def leaf(shape: tuple[int, ...], seed: int) -> Tensor:
        return data(shape, seed).requires_grad_()

    def net(kind: str, seed: int) -> nn.Module:
        made = NETS[kind]()
        with torch.no_grad():
            for i, p in enumerate(made.parameters()):
                p.copy_(torch.from_numpy(numbers(tuple(p.shape), seed + i)))
        return made.to(device)

    def module(forward: Callable[..., Any], **attributes: Any) -> nn.Module:
        """Return a module with a forward, tensors are its buffers and parameters."""
        made = type("Drawn", (nn.Module,), {"n": 1, "scaled": Box.scaled, "twice": Box.twice, "forward": forward})()
        for name, value in attributes.items():
            if isinstance(value, Tensor) and value.requires_grad:
                value = nn.Parameter(value.detach())
            elif isinstance(value, Tensor):
                made.register_buffer(name, value)
                continue
            setattr(made, name, value)
        return made

    place = types.ModuleType("place")  # a module of Python
    vars(place).update(k=2.0, t=data((3,), 1), scaled=lambda v: v * 0.5)
    exec(_COUNTED, vars(place))
    names = {
        "torch": torch, "nn": nn, "F": nn.functional, "random": random, "np": np, "os": os, "types": types, "copy": copy,
        "deque": collections.deque, "parametrize": parametrize, "D": device, "jit": jit, "X": data, "leaf": leaf,
        "net": net, "module": module, "total": total, "Box": Box, "place": place, "Halved": Halved,
        "optim": torch.optim, "hooks": nn.modules.module, "Doubled": Doubled, "first": first, "tensors": tensors,
        "collections": collections, "functools": functools, "itertools": itertools,
        "checkpoint": torch.utils.checkpoint.checkpoint,
        **{made.__name__: made for made in RESULTS},
    }  # fmt: skip
    return {**names, "__name__": "drawn", "given": frozenset(names) - {"Box", "place"}}
