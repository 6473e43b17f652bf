"""vmap over backward passes goes through PyTorch's batching rules, and not row by row."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg


def convolutional():
    return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(12, 5))


def normalised():
    return nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Softplus(), nn.Linear(6, 5))


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5)), convolutional, normalised]
)
def test_jacobians_by_batched_gradients(make, backend):
    torch.manual_seed(0)
    net, x = make(), torch.randn(4, 8)

    def jacobians(net, x):
        y = net(x).sum(0)
        parameters = list(net.parameters())
        rows = torch.eye(5, device=x.device)
        return torch.vmap(lambda v: torch.autograd.grad(y, parameters, v, retain_graph=True))(rows)

    wanted = jacobians(net, x)
    device = tg.device(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = jacobians(net.to(device), x.to(device))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)
