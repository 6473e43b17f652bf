"""PyTorch programs on TensorFlow where that is not one backend among others: compiled functions, and arrays inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def device() -> torch.device:
    return tg.device("tensorflow")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def losses(device: torch.device | str, compiled: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Three steps of training, with a learning rate that changes."""
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run: Any = tg.jit(step) if compiled else step
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(3):
        x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 5, (6,), generator=generator)
        found.append(float(run(x.to(device), y.to(device))))
        scheduler.step()
    if compiled:
        assert run.report.traces == 1
    return found, {name: t.cpu() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("compiled", [False, True])
def test_training(device: torch.device, compiled: bool) -> None:
    (found, state), (wanted, wanted_state) = losses(device, compiled), losses("cpu", False)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for name, t in state.items():
        torch.testing.assert_close(t, wanted_state[name], rtol=1e-3, atol=1e-4)


def test_control_flow_in_a_compiled_function(device: torch.device) -> None:
    @tg.jit
    def run(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        doubled = torch.while_loop(lambda x: x.sum() < limit, lambda x: (x * 2,), (x * 1,))[0]
        return torch.cond(doubled.max() > 10, lambda x: x.flip(0), lambda x: x + 1, (doubled,))

    x = torch.tensor([1.0, 2.0])
    for limit, wanted in ((20.0, [16.0, 8.0]), (4.0, [3.0, 5.0])):
        assert run(x.to(device), torch.tensor(limit).to(device)).tolist() == wanted


def test_a_factorisation_in_a_compiled_function(device: torch.device) -> None:
    """XLA's own is not exact enough: the program is TensorFlow's graph."""
    a = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = tg.jit(lambda a: torch.linalg.eigvalsh(a + a.mT) * 2)(a.to(device))
    torch.testing.assert_close(values.cpu(), torch.linalg.eigvalsh(a + a.mT) * 2)


def test_arrays_inside(device: torch.device) -> None:
    import tensorflow as tf

    t = torch.arange(6.0, device=device).reshape(2, 3).T
    array = tg.to_backend_array(t)
    assert isinstance(array, tf.Tensor) and array.numpy().tolist() == t.tolist()
    back = tg.from_backend_array(tf.constant([[1, 2]], tf.bfloat16))
    assert (back.device, back.dtype, back.tolist()) == (device, torch.bfloat16, [[1, 2]])
    back[0, 1] = 5  # tensors can be written, TensorFlow's cannot
    assert back.tolist() == [[1, 5]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_eigenvalues_in_another_order_are_those_of_their_vectors(device: torch.device, dtype: torch.dtype) -> None:
    """And what does not depend on their order has the CPU's gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 5, dtype=dtype, generator=generator)
    here, there = x.clone().requires_grad_(), x.to(device).requires_grad_()
    values, vectors = torch.linalg.eig(there)
    residual = there.to(values.dtype) @ vectors - vectors * values.unsqueeze(-2)
    assert residual.abs().max() < 1e-12
    wanted = torch.linalg.eig(here)[0]
    for a, b in ((values.cpu(), wanted), (torch.linalg.eigvals(there).cpu(), wanted)):
        distance = (a[..., :, None] - b[..., None, :]).abs()
        assert distance.amin(-1).max() < 1e-12 and distance.amin(-2).max() < 1e-12
    for w in (values, wanted):
        (w**3).abs().sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


@pytest.mark.parametrize("mode", ["tiered", "compiled"])
def test_logsumexp_of_complex_numbers(device: torch.device, mode: str) -> None:
    """One operator is one program, in which XLA has both the exponential and its logarithm."""
    from tensorgraft.hub import tiers

    x = torch.tensor([0.5 + 40j, 30 - 2j])
    with tiers.eager(mode):
        for t in (x, x[:1]):
            torch.testing.assert_close(torch.logsumexp(t.to(device), 0).cpu(), torch.logsumexp(t, 0))
