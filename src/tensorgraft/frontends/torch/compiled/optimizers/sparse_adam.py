"""SparseAdam as PyTorch's, with its step on the device: PyTorch's own computes the step size with `math`."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def sparse_adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    eps: float,
    beta1: float,
    beta2: float,
    lr: Tensor | float,
    maximize: bool,
) -> None:
    """Update the rows of parameters and moments that gradients have values of."""
    for param, grad, mean, square, step in zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True):
        ascent = (-grad if maximize else grad).coalesce()
        indices, g = ascent._indices(), ascent._values()
        if not g.numel():
            continue
        old_mean, old_square = mean.sparse_mask(ascent)._values(), square.sparse_mask(ascent)._values()
        mean_change, square_change = (g - old_mean) * (1 - beta1), (g * g - old_square) * (1 - beta2)
        updates = torch.sqrt(1 - beta2**step) / (1 - beta1**step) * lr
        direction = (mean_change + old_mean) / (torch.sqrt(square_change + old_square) + eps)
        for target, change in ((mean, mean_change), (square, square_change), (param, -updates * direction)):
            target.add_(torch.sparse_coo_tensor(indices, change, grad.size()))


def prepare(optimizer: torch.optim.SparseAdam) -> None:
    """Create the state that the first step would create, with the step counter on the device."""
    for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
        entries = optimizer.state[p]
        if not entries:
            entries["step"] = 0
            entries["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            entries["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if isinstance(entries["step"], int):
            entries["step"] = torch.tensor(float(entries["step"]), device=p.device)
