"""Adafactor (Shazeer and Stern 2018) as `torch.optim.Adafactor` does it, but with every number on the device.

PyTorch's own asks the device for the step and two norms of each parameter, which a trace cannot answer.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def adafactor(
    params: list[Tensor],
    grads: list[Tensor],
    row_vars: list[Tensor | None],
    col_vars: list[Tensor | None],
    variances: list[Tensor | None],
    state_steps: list[Tensor],
    *,
    d: float,
    lr: Tensor | float,
    beta2_decay: float,
    weight_decay: float,
    eps1: float | None,
    eps2: float,
    maximize: bool,
    **_: Any,
) -> None:
    """Takes the place of `torch.optim._adafactor.adafactor`. What PyTorch computes in Python is float64 here."""
    for param, grad, row_var, col_var, variance, step_t in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        grad = -grad if maximize else grad
        eps1 = torch.finfo(param.dtype).eps if eps1 is None else eps1
        step_t += 1
        step = step_t.double()
        weight = (step**beta2_decay).to(param.dtype)
        rate = torch.minimum(torch.as_tensor(lr, dtype=step.dtype, device=step.device), step.rsqrt())
        size = (param.norm(2).double() / param.numel() ** 0.5).clamp(min=eps2) * rate
        if weight_decay:
            param.mul_(1 - lr * weight_decay)
        if grad.dim() > 1:
            assert row_var is not None and col_var is not None
            row_var.lerp_(grad.norm(dim=-1, keepdim=True).square() / grad.size(-1), weight)
            col_var.lerp_(grad.norm(dim=-2, keepdim=True).square() / grad.size(-2), weight)
            estimate = (row_var @ col_var) / row_var.mean(dim=-2, keepdim=True).clamp(min=eps1)
        else:
            assert variance is not None
            variance.lerp_(grad * grad, weight)
            estimate = variance
        update = estimate.clamp(min=eps1 * eps1).rsqrt() * grad
        ratio = (update.norm(2).double() / (update.numel() ** 0.5 * d)).clamp(min=1.0)
        param.sub_(update * (size / ratio).to(update.dtype))
