"""A JAX function among PyTorch's tensors: PyTorch computes it, but on the device of JAX JAX itself does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch

from tensorgraft.frontends.jax.grafted import Grafted
from tensorgraft.frontends.jax.objects import Objects
from tensorgraft.hub.backend import Backend


class AmongTensors(Grafted):
    def __init__(self, fn: Any, xp: Backend, compiled: bool = False, onto: str | None = None) -> None:
        super().__init__(fn, xp, compiled, onto)
        self._bridged: Any = None

    def operand(self, x: Any) -> tuple[Any, tuple[Any, ...]] | None:
        if isinstance(x, torch.Tensor) and x.device.type == "graft":
            from tensorgraft.frontends.torch.tensors import numpy_dtype

            return x, (tuple(x.shape), jax.dtypes.canonicalize_dtype(numpy_dtype(x.dtype)))
        return super().operand(x)

    def run(
        self, args: Any, kwargs: Any, held: Objects | None = None, values: Sequence[Any] = ()
    ) -> tuple[Any, Mapping[int, Any]]:
        leaves = [*jax.tree.leaves((args, kwargs)), *(x for x, _ in values)]
        if any(isinstance(x, torch.Tensor) and x.device.type == "graft" for x in leaves):
            if self._bridged is None:
                from tensorgraft.frontends.jax.bridged import Bridged

                self._bridged = Bridged(self.fn)
            return self._bridged.run(args, kwargs, held, values)
        return super().run(args, kwargs, held, values)
