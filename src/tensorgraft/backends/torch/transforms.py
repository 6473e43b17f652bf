"""Derivatives and batching by `torch.func`; in a program that is being recorded, by the hub's tape and loops."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.backends.torch.custom import custom_function
from tensorgraft.backends.torch.operators import followed
from tensorgraft.backends.torch.recorder import StandIn
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.tape import ByTape
from tensorgraft.hub.transforms import Backward, Forward, transposed


class TorchTransforms(ByTape):
    mutable: bool
    by_tape = False  # inside of a rule: a derivative by `torch.func` in a backward pass of `torch.func` has no level

    @functools.cached_property
    def immutable(self) -> Any:
        """This backend without writes in place, which `vmap` allows on batched tensors only."""
        twin = copy.copy(self)
        twin.mutable = False
        return twin

    @functools.cached_property
    def ruled(self) -> Any:
        """This backend inside of the rule of a derivative."""
        twin = copy.copy(self.immutable)
        twin.by_tape = True
        return twin

    def vjp(
        self, fn: Callable[..., Any], /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        if self.by_tape or _recorded(primals):
            return super().vjp(fn, *primals)
        outputs: Any = torch.func.vjp(self._smooth(fn), *primals, has_aux=True)
        _, pullback, results = outputs

        def pulled_back(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            # PyTorch's cotangents are conjugated, the hub's are transposed
            seeds = tuple(c.conj() for c, r in zip(cotangents, results, strict=True) if _is_inexact(r))
            return tuple(g.conj().resolve_conj() for g in pullback(seeds))

        return results, pulled_back

    def jvp(
        self, fn: Callable[..., Any], primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if self.by_tape or _recorded(primals):
            return super().jvp(fn, primals, tangents)
        outputs: Any = torch.func.jvp(self._smooth(fn), tuple(primals), tuple(tangents), has_aux=True)
        _, moved, results = outputs
        rest = iter(moved)
        return results, tuple(next(rest) if _is_inexact(r) else torch.zeros_like(r) for r in results)

    def vmap(self, fn: Callable[..., Any], /, *arrays: Array) -> tuple[Array, ...]:
        if _recorded(arrays):
            return super().vmap(fn, *arrays)
        return torch.func.vmap(lambda *xs: tuple(fn(self.immutable, *xs)))(*arrays)

    def custom_vjp(
        self, fn: Callable[..., Any], backward: Backward, forward: Forward | None = None, /, *arrays: Array
    ) -> tuple[Array, ...]:
        if _recorded(arrays):  # derivatives of a record are the tape's
            return super().custom_vjp(fn, backward, forward, *arrays)
        if not any(map(followed, arrays)):
            return tuple([r.clone() if any(r is x for x in arrays) else r for r in fn(self.immutable, *arrays)])
        return custom_function(self.immutable, self.ruled, fn, backward, forward or transposed(backward))(*arrays)

    def _smooth(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(*xs: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            results = tuple(fn(self.immutable, *xs))
            return tuple(r for r in results if _is_inexact(r)), results

        return run


def _recorded(xs: Sequence[Array]) -> bool:
    return any(isinstance(x, StandIn) for x in xs)


def _is_inexact(x: Array) -> bool:
    return x.is_floating_point() or x.is_complex()
