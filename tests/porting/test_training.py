"""Networks in training mode: statistics that they move, masks that they draw."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensorgraft as tg


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.drop(torch.relu(self.norm(self.one(x)))))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network().train()


X = torch.linspace(-2, 2, 30).reshape(5, 6)


def test_equal_networks_draw_the_same_masks_and_move_the_same_statistics(network: Network) -> None:
    assert tg.diff(network, copy.deepcopy(network), X).ok


def test_statistics_that_move_at_another_rate_are_a_difference(network: Network) -> None:
    other = copy.deepcopy(network)
    other.norm.momentum = 0.3
    assert tg.diff(network.eval(), other.eval(), X).ok
    report = tg.diff(network.train(), other.train(), X)
    assert not report.ok
    assert "0.3 here, 0.1 there" in str(report)


def test_another_rate_of_dropout_is_a_difference(network: Network) -> None:
    other = copy.deepcopy(network)
    other.drop.p = 0.1
    report = tg.diff(network, other, X)
    assert not report.ok
    assert "dropout" in str(report)


def test_running_statistics_are_mapped(network: Network) -> None:
    result = tg.port(network, Network().train(), X)
    assert result.ok, str(result)
    assert {e.target for e in result.mapping if "running" in e.target} == {"norm.running_mean", "norm.running_var"}
