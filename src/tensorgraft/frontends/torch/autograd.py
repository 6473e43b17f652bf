"""Backward passes on the calling thread.

The autograd engine runs the backward pass of another device on a thread of its own, which has no trace of JAX's, and
knows only device index 0. `set_multithreading_enabled(False)` is per thread and per call, so the one Python function
through which `backward` and `grad` go is wrapped.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.devices import TYPE


def install() -> None:
    """Wrap `torch.autograd.graph._engine_run_backward`, under both names that PyTorch calls it by."""
    original = torch.autograd.graph._engine_run_backward
    disabled = torch.autograd.set_multithreading_enabled

    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(t, torch.Tensor) and t.device.type == TYPE for t in t_outputs):
            if state.now.capture is not None:
                state.now.capture.note_leaves(t_outputs)
            with disabled(False):
                return original(t_outputs, *args, **kwargs)
        return original(t_outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward
