"""A JAX function among PyTorch's tensors: PyTorch computes it, but on the device of JAX JAX itself does."""

from __future__ import annotations

from typing import Any

import jax
import torch

from tensorgraft.frontends.jax.grafted import Grafted
from tensorgraft.hub.backend import Backend


class AmongTensors(Grafted):
    def __init__(self, fn: Any, xp: Backend, compiled: bool = False) -> None:
        super().__init__(fn, xp, compiled)
        self._bridged: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.Tensor) and x.device.type == "graft" for x in jax.tree.leaves((args, kwargs))):
            if self._bridged is None:
                from tensorgraft.frontends.jax.bridged import Bridged

                self._bridged = Bridged(self.fn)
            return self._bridged(*args, **kwargs)
        return super().__call__(*args, **kwargs)
