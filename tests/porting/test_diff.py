"""`tg.diff`: what differs is named with its line, and nothing that is equal is called different."""

import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 8)).astype("f")
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def weights():
    shapes = {"scale": (8,), "bias": (8,), "q": (8, 8), "k": (8, 8), "v": (8, 8), "up": (8, 16), "down": (16, 8)}
    return {n: (RNG.standard_normal(s) / 2 + (n == "scale")).astype("f") for n, s in shapes.items()}


WEIGHTS = weights()


class Source(nn.Module):
    def __init__(self):
        super().__init__()
        for name, x in WEIGHTS.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(x)))

    def forward(self, x, mask):
        h = nn.functional.layer_norm(x, (8,), self.scale, self.bias, 1e-5)
        b, n, _ = x.shape
        q, k, v = ((h @ w).reshape(b, n, 2, 4).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = (q @ k.transpose(2, 3)) * 4**-0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 8)
        return x + nn.functional.gelu(x @ self.up) @ self.down


def target(change=""):
    def network(params, x, mask):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        epsilon = 1e-3 if change == "epsilon" else 1e-5
        h = (x - mean) / jnp.sqrt(variance + epsilon) * params["scale"] + params["bias"]  # epsilon
        b, n, _ = x.shape
        q, k, v = ((h @ params[name]).reshape(b, n, 2, 4) for name in ("q", "k", "v"))
        scale = 8**-0.5 if change == "scale" else 4**-0.5
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale  # scale
        if change != "mask":
            scores = jnp.where(mask[:, None, None, :] > 0, scores, -1e30)
        shares = jax.nn.softmax(scores, -1)  # mask
        x = x + jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, n, 8)
        hidden = jax.nn.gelu(x @ params["up"], approximate=change == "gelu")  # gelu
        return x + hidden @ params["down"]

    return network, WEIGHTS


def line_of(word):
    text = Path(__file__).read_text().splitlines()
    return next(k for k, line in enumerate(text, 1) if line.endswith(f"# {word}"))


def test_equal_programs():
    report = tg.diff(Source(), target(), X, MASK)
    assert report.ok and report.first_difference is None, str(report)
    assert any(c.what == "results" for c in report.comparisons)
    assert "equal to rounding" in report.table()


@pytest.mark.parametrize("change", ["epsilon", "scale", "gelu", "mask"])
def test_planted_differences(change):
    report = tg.diff(Source(), target(change), X, MASK)
    assert not report.ok, str(report)
    first = report.first_difference
    assert first is not None and first.target_place.endswith(f"test_diff.py:{line_of(change)}"), str(report)
    if change in ("epsilon", "scale", "gelu"):
        assert first.reason == change, str(report)


class Padded(nn.Module):
    def __init__(self, symmetric):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.symmetric = nn.Conv2d(3, 4, 3, 2), symmetric

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (1, 1, 1, 1) if self.symmetric else (0, 1, 0, 1)))


def test_padding():
    x = RNG.standard_normal((2, 3, 8, 8)).astype("f")
    report = tg.diff(Padded(True), Padded(False), x)
    assert not report.ok and report.first_difference.reason == "padding", str(report)
    assert tg.diff(Padded(False), Padded(False), x).ok


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1)),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2)),
    ],
)
def test_a_program_and_its_copy(make):
    torch.manual_seed(0)
    model = make().eval()
    report = tg.diff(model, copy.deepcopy(model), X)
    assert report.ok and not report.differences, str(report)


def test_one_weight_that_is_another():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight[1, 1] += 0.1
    report = tg.diff(a, b, X)
    assert not report.ok and "DIFFERS" in str(report)
