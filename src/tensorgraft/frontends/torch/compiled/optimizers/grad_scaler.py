"""`GradScaler` inside a trace: whether a step is left out is decided on the device.

PyTorch asks for the value (`found_inf.item()`) and calls `optimizer.step()` or not. A program takes the step, and keeps
what was there before where a gradient was not finite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from tensorgraft.frontends.torch.compiled.capture import paused
from tensorgraft.frontends.torch.compiled.optimizers.numbers import prepare
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.device.accelerator import Patches

Optimizer = torch.optim.Optimizer


@contextlib.contextmanager
def scalers_traced() -> Iterator[None]:
    with Patches() as patches:
        patches.wrap(GradScaler, "_lazy_init_scale_growth_tracker", _made_outside)
        patches.wrap(GradScaler, "step", _unfused)
        patches.set(GradScaler, "_maybe_opt_step", _step_or_not)
        yield


def _made_outside(original: Any) -> Any:
    """Create the scale before the trace, because a program reads and writes it."""

    def lazy_init(self: GradScaler, device: torch.device) -> None:
        with paused():
            original(self, device)

    return lazy_init


def _unfused(original: Any) -> Any:
    """Run a fused optimizer unfused in a trace, since it would search for infinities itself."""

    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        fused = vars(optimizer).pop("_step_supports_amp_scaling", None)
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            if fused is not None:
                optimizer._step_supports_amp_scaling = fused  # type: ignore[attr-defined]

    return step


def _step_or_not(self: GradScaler, optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    with paused():
        prepare(optimizer)
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [value for entries in optimizer.state.values() for value in entries.values()]
    tensors = [t for t in tensors if isinstance(t, torch.Tensor) and t.device.type == TYPE]
    before = [t.detach().clone() for t in tensors]
    retval = optimizer.step(*args, **kwargs)
    overflowed = torch.stack([inf.to(tensors[0].device) for inf in state["found_inf_per_device"].values()]).sum() > 0
    with torch.no_grad():
        for t, old in zip(tensors, before, strict=True):
            t.copy_(torch.where(overflowed, old, t))
    return retval
