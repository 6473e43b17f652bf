"""PyTorch's optimizer database on every backend, against CPU PyTorch: parameters, losses and state of five steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.conformance import cases
from tests.conformance.compare import compare

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = cases.optimizer_cases
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "forloop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}


def test_optimizer(case: cases.Case, device: torch.device) -> None:
    info = cases.optimizers()[case.name]
    compared = 0
    for given in info.optim_inputs_func(device="cpu"):
        options = dict(given.kwargs)
        if case.mode != "default":
            if set(options) & {"foreach", "fused", "differentiable", "capturable"}:
                continue
            options |= WAYS[case.mode]
        if info.only_supports_sparse_grads:
            pytest.skip("sparse gradients")
        on_cpu = {k: v for k, v in options.items() if k not in ("capturable", "fused")}
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        if case.name == "Muon":
            model = torch.nn.Sequential(torch.nn.Linear(6, 5, bias=False), torch.nn.Linear(5, 3, bias=False))
        x, y = torch.randn(64, 6), torch.randn(64, 3)
        if info.step_requires_closure:  # LBFGS: a hundred evaluations amplify the rounding of float32
            model, x, y = model.double(), x.double(), y.double()
        there = copy.deepcopy(model).to(device)
        try:
            want = _train(model, info.optim_cls, on_cpu, x, y)
        except (RuntimeError, ValueError, TypeError):  # options that exclude one another
            continue
        got = _train(there, info.optim_cls, _moved(options, device), x.to(device), y.to(device))
        compare(want, got, f"{case.name}({given.desc or 'default'})")
        compared += 1
    if not compared:
        pytest.skip("no options for this way")


def _moved(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, torch.Tensor) and v.ndim else v for k, v in options.items()}


def _train(model: torch.nn.Module, cls: Any, options: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """Losses, parameters and state after five steps, in the third of which the state is saved and loaded."""
    optimizer = cls(model.parameters(), **options)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(5):
        if step == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = cls(model.parameters(), **options)
            optimizer.load_state_dict(saved)
        loss = optimizer.step(closure)
        losses.append(loss.detach().cpu())
    state = [
        value.detach().cpu().to(torch.float64)
        for p in model.parameters()
        for _, value in sorted(optimizer.state[p].items())
        if isinstance(value, torch.Tensor)
    ]
    return losses, [p.detach().cpu() for p in model.parameters()], [s.float() for s in state]
