"""Backward passes on the calling thread, and forward mode through operators that have a kernel in place of a composite.

The autograd engine runs the backward pass of another device on a thread of its own, which has no trace of JAX's, and
knows only device index 0. `set_multithreading_enabled(False)` is per thread and per call, so the one Python function
through which `backward` and `grad` go is wrapped.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.library import Library

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.devices import TYPE

# a kernel makes autograd take the operator's own derivative formula, and this one's knows no forward mode
_COMPOSITE_IN_FORWARD_MODE = ("linear",)


def install() -> None:
    _wrap_engine()
    _wrap_forward_mode()


def _wrap_engine() -> None:
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


def _wrap_forward_mode() -> None:
    """While there are dual tensors of ours, such operators are taken apart above autograd, as on the CPU."""
    make_dual, exit_dual_level = forward_ad.make_dual, forward_ad.exit_dual_level
    taken_apart: list[Library] = []

    def make(tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
        if not taken_apart and tensor.device.type == TYPE:
            library = Library("aten", "IMPL")
            taken_apart.append(library)
            with warnings.catch_warnings():  # PyTorch notes the first kernel in a process that replaces another
                warnings.simplefilter("ignore")
                for name in _COMPOSITE_IN_FORWARD_MODE:
                    library.impl(name, getattr(torch.ops.aten, name).default.decompose, "AutogradPrivateUse1")
        return make_dual(tensor, tangent, level=level)

    def leave(*, level: int | None = None) -> None:
        exit_dual_level(level=level)
        while taken_apart:
            taken_apart.pop()._destroy()

    forward_ad.make_dual, forward_ad.exit_dual_level = make, leave
