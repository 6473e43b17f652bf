"""Derivatives and batching by `torch.func`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

Array = Any


class TorchTransforms:
    @functools.cached_property
    def immutable(self) -> Any:
        """This backend without writes in place, which `vmap` allows on batched tensors only."""
        kind = type("Pure" + type(self).__name__, (type(self),), {"mutable": False})
        made = kind.__new__(kind)
        made.__dict__.update(self.__dict__)
        return made

    def vjp(
        self, fn: Callable[..., Any], /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        _, pullback, results = torch.func.vjp(self._smooth(fn), *primals, has_aux=True)

        def pulled_back(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            # PyTorch's cotangents are conjugated, the hub's are transposed
            given = tuple(c.conj() for c, r in zip(cotangents, results, strict=True) if _is_inexact(r))
            return tuple(g.conj().resolve_conj() for g in pullback(given))

        return results, pulled_back

    def jvp(
        self, fn: Callable[..., Any], primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        _, moved, results = torch.func.jvp(self._smooth(fn), tuple(primals), tuple(tangents), has_aux=True)
        rest = iter(moved)
        return results, tuple(next(rest) if _is_inexact(r) else torch.zeros_like(r) for r in results)

    def vmap(self, fn: Callable[..., Any], /, *arrays: Array) -> tuple[Array, ...]:
        return torch.func.vmap(lambda *xs: tuple(fn(self.immutable, *xs)))(*arrays)

    def _smooth(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(*xs: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            results = tuple(fn(self.immutable, *xs))
            return tuple(r for r in results if _is_inexact(r)), results

        return run


def _is_inexact(x: Array) -> bool:
    return x.is_floating_point() or x.is_complex()
