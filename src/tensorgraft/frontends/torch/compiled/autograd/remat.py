"""`torch.utils.checkpoint` inside compiled functions: results that it does not save are really recomputed.

A compiler that finds a computation twice would keep the first result, and thus use the memory that checkpointing is to
save. All inputs of a recomputation therefore pass an optimisation barrier, which also orders it after the last
computation before it, as in `jax.checkpoint`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

from tensorgraft.frontends.torch.compiled.capture import current
from tensorgraft.frontends.torch.core import state


def _recomputed(recompute: Callable[..., None], *args: Any) -> None:
    capture = current()
    if capture is None:
        return recompute(*args)
    with capture.recomputing():
        return recompute(*args)


class CheckpointFrame(checkpoint._CheckpointFrame):
    """One call of a checkpointed function, without reentrant autograd."""

    def __init__(self, recompute_fn: Callable[..., None], *rest: Any) -> None:
        super().__init__(functools.partial(_recomputed, recompute_fn), *rest)

    def save_inputs(self, *args: Any) -> None:
        super().save_inputs(*args)
        if (capture := current()) is not None:
            capture.checkpoints.append(weakref.ref(self))


def without_reentrance(original: Callable[..., Any]) -> staticmethod[..., Any]:
    """Replace the reentrant variant of checkpointing inside a compiled function by the other one. It has the same
    results and gradients, and a backward pass outside can follow its graph."""

    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if state.now.capture is None:
            return original(function, preserve_rng_state, *args)
        checkpoint.check_backward_validity(args)
        if not any(isinstance(t, torch.Tensor) and t.requires_grad for t in args):
            with torch.no_grad():
                return function(*args)
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, early_stop=False
        )

    return staticmethod(apply)
