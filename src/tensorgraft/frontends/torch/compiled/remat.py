"""`torch.utils.checkpoint` inside compiled functions: what it does not keep is really computed again.

A compiler that sees a computation twice keeps the first result, which is the memory that checkpointing was to save.
Whatever a recomputation reads from before therefore goes through an optimisation barrier, which also says that it
begins after what was computed last, as `jax.checkpoint` does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

from tensorgraft.frontends.torch.compiled.capture import Capture
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.hub.array import Array
from tensorgraft.storage import Storage


class Recomputation:
    """A context for running a checkpointed function again: storages from before that it reads hold guarded arrays."""

    def __init__(self, capture: Capture) -> None:
        self.own: weakref.WeakSet[Storage] = weakref.WeakSet()  # made by the recomputation itself
        self._capture = capture
        self._guarded: dict[int, tuple[Storage, Array, Array]] = {}
        newest = (cell for ref in reversed(capture.born) if (cell := ref()) is not None)
        self._after = next((codes.apart([cell])[0].array for cell in newest), None)

    def reads(self, cell: Storage) -> None:
        if cell in self.own or id(cell) in self._guarded:
            return
        before = cell.array
        for part in codes.apart([cell]):
            after = part.array if self._after is None else self._after
            part.array = self._capture.backend.optimization_barrier(part.array, after)
        self._guarded[id(cell)] = (cell, before, cell.array)

    def __enter__(self) -> None:
        self._outer, self._capture.recomputation = self._capture.recomputation, self

    def __exit__(self, *_: object) -> None:
        self._capture.recomputation = self._outer
        for cell, before, guarded in self._guarded.values():
            if cell.array is guarded:  # it was not written
                cell.array = before


def _recomputed(recompute: Callable[..., None], *args: Any) -> None:
    capture = state.now.capture
    if capture is None:
        return recompute(*args)
    with Recomputation(capture):
        return recompute(*args)


class CheckpointFrame(checkpoint._CheckpointFrame):
    """One call of a checkpointed function, without reentrant autograd."""

    def __init__(self, recompute_fn: Callable[..., None], *rest: Any) -> None:
        super().__init__(functools.partial(_recomputed, recompute_fn), *rest)

    def save_inputs(self, *args: Any) -> None:
        super().save_inputs(*args)
        if state.now.capture is not None:
            state.now.capture.checkpoints.append(weakref.ref(self))


def without_reentrance(original: Callable[..., Any]) -> staticmethod[..., Any]:
    """The reentrant variant inside a compiled function: the same results and gradients by the other one, whose graph
    can be followed by a backward pass outside."""

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
