"""Reasons and lines of differences: the operation that differs is named, whichever program has what."""

import copy
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tensorgraft as tg

RNG = np.random.default_rng(0)
WIDTH, HEADS, LENGTH = 8, 2, 5
X = RNG.standard_normal((2, LENGTH, WIDTH)).astype("f")
IMAGE = RNG.standard_normal((2, 3, 8, 8)).astype("f")


def random(**shapes):
    return {n: (RNG.standard_normal(s) * 0.4).astype("f") for n, s in shapes.items()}


class Target(torch.nn.Module):
    """A function of PyTorch, with its weights and a change."""

    def __init__(self, function, weights, change):
        super().__init__()
        self.function, self.change = function, change
        self.weights = torch.nn.ParameterDict({n: torch.from_numpy(w) for n, w in weights.items()})

    def forward(self, x):
        return self.function(self.weights, x, self.change)


def first_difference(source, target, weights, change, x=X):
    report = tg.diff((source, {n: jnp.asarray(w) for n, w in weights.items()}), Target(target, weights, change), x)
    assert report.ok == (not change), str(report)
    return report.first_difference


def lines(word):
    text = Path(__file__).read_text().splitlines()
    return [k for k, line in enumerate(text, 1) if word in line.rpartition("  # ")[2].split(", ") and "  # " in line]


def judge(source, target, weights, change, reason, x=X):
    found = first_difference(source, target, weights, change, x)
    assert found is not None
    assert found.reason == reason, str(found)
    assert int(found.target_place.rpartition(":")[2]) in lines(change), str(found)


# ---- attention -------------------------------------------------------------------------------------------------------

ATTENTION = random(q=(WIDTH, WIDTH), k=(WIDTH, WIDTH), v=(WIDTH, WIDTH), o=(WIDTH, WIDTH), b=(WIDTH,), s=(WIDTH,))


def attention(p, x):
    def rotated(x):
        half = x.shape[-1] // 2
        angles = jnp.arange(LENGTH)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate(
            [a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1
        )

    def norm(x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + p["s"])

    h = norm(x)
    q, k, v = ((h @ p[n]).reshape(2, LENGTH, HEADS, -1).transpose(0, 2, 1, 3) for n in "qkv")
    scores = rotated(q) @ rotated(k).swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return norm(x + mixed @ p["o"] + p["b"])


def attention_of_torch(p, x, change):
    def rotated(x):
        half = x.shape[-1] // 2
        base = 100.0 if change == "base" else 10000.0
        angles = torch.arange(LENGTH)[:, None] * base ** (-torch.arange(half) / half)  # base
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def norm(x, epsilon=1e-6):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * (1 + p["s"])

    h = norm(x, 1e-2 if change == "epsilon" else 1e-6)  # epsilon
    q, k, v = ((h @ p[n]).view(2, LENGTH, HEADS, -1).transpose(1, 2) for n in "qkv")
    scores = rotated(q) @ rotated(k).mT * (WIDTH if change == "scale" else WIDTH // HEADS) ** -0.5  # scale
    keep = torch.ones(LENGTH, LENGTH).tril(1 if change == "mask" else 0) > 0  # mask
    scores = scores.masked_fill(~keep, -torch.inf)
    shares = scores.bfloat16().softmax(-1).float() if change == "dtype" else scores.softmax(-1)  # dtype
    mixed = (shares @ v).transpose(1, 2).reshape(x.shape) @ p["o"]  # bias
    if change != "bias":
        mixed = mixed + p["b"]
    return norm((h if change == "operand" else x) + mixed)  # operand


@pytest.mark.parametrize(
    ("change", "reason"),
    [("base", "rotary"), ("epsilon", "epsilon"), ("scale", "scale"), ("mask", "mask"), ("dtype", "dtype"),
     ("operand", "order"), ("bias", "bias")],
)  # fmt: skip
def test_attention(change, reason):
    judge(attention, attention_of_torch, ATTENTION, change, reason)


def test_attention_without_a_difference():
    assert first_difference(attention, attention_of_torch, ATTENTION, "") is None


# ---- gates -----------------------------------------------------------------------------------------------------------

GATES = random(i=(WIDTH, 3 * WIDTH), h=(WIDTH, 3 * WIDTH), bi=(3 * WIDTH,), bh=(3 * WIDTH,))


def gates(p, x):
    h = jnp.tanh(x[:, 0])
    for t in range(1, 3):
        (ri, zi, ni), (rh, zh, nh) = (jnp.split(a, 3, -1) for a in (x[:, t] @ p["i"] + p["bi"], h @ p["h"] + p["bh"]))
        r, z = jax.nn.sigmoid(ri + rh), jax.nn.sigmoid(zi + zh)
        h = (1 - z) * jnp.tanh(ni + r * nh) + z * h
    return h


def gates_of_torch(p, x, change):
    h = x[:, 0].tanh()
    for t in range(1, 3):
        ri, zi, ni = (x[:, t] @ p["i"] + p["bi"]).chunk(3, -1)
        if change == "second":
            rh, zh, nh = (h @ p["h"]).chunk(3, -1)  # second
            rb, zb, nb = p["bh"].chunk(3)
            r, z = (ri + rh + rb).sigmoid(), (zi + zh + zb).sigmoid()
            n = (ni + r * nh + nb).tanh()  # second
        else:
            rh, zh, nh = (h @ p["h"] + p["bh"]).chunk(3, -1)
            r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
            n = (ni + (z if change == "reset" else r) * nh).tanh()  # reset
        h = z * n + (1 - z) * h if change == "update" else (1 - z) * n + z * h  # update
    return h


@pytest.mark.parametrize(("change", "reason"), [("second", "bias"), ("reset", "gates"), ("update", "gates")])
def test_gates(change, reason):
    judge(gates, gates_of_torch, GATES, change, reason)


# ---- images ----------------------------------------------------------------------------------------------------------

IMAGES = random(one=(4, 3, 3, 3), two=(4, 4, 3, 3), s=(4,), b=(4,))


def images(p, x):
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))

    x = jax.nn.relu(conv(x, p["one"]) * p["s"][:, None, None] + p["b"][:, None, None])
    x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    x = x / jax.lax.reduce_window(
        jnp.ones_like(x, shape=(1, 1, 8, 8)), 0.0, jax.lax.add, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"
    )
    return conv(x, p["two"])


def images_of_torch(p, x, change):
    if change == "moved":
        x = F.pad(x, (1, 0, 1, 0))[:, :, :-1, :-1]  # moved
    x = F.conv2d(x, p["one"], padding=1)  # moved
    if change == "swapped":
        x = x.relu() * p["s"][:, None, None] + p["b"][:, None, None]  # swapped
    else:
        x = (x * p["s"][:, None, None] + p["b"][:, None, None]).relu()
    x = F.pad(x, (0, 1, 0, 1))
    counts = F.avg_pool2d(F.pad(torch.ones(1, 1, 8, 8), (0, 1, 0, 1)), 3, 2)
    x = F.avg_pool2d(x, 3, 2) / (1 if change == "counts" else counts)  # counts
    return F.conv2d(x, p["two"], padding=1)


@pytest.mark.parametrize(("change", "reason"), [("moved", "padding"), ("swapped", "order"), ("counts", "padding")])
def test_images(change, reason):
    judge(images, images_of_torch, IMAGES, change, reason, IMAGE)


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_a_line_that_is_right_elsewhere():
    """The helper computes the same in its other call: the caller is named."""
    p = random(one=(WIDTH, WIDTH), two=(WIDTH, WIDTH))

    def source(p, x):
        return jnp.tanh(jnp.tanh(x @ p["one"] * 0.5) @ p["two"] * 0.5)

    def dense(x, w, scale=0.5):
        return torch.tanh(x @ w * scale)

    def target(p, x, change):
        x = dense(x, p["one"])
        return dense(x, p["two"], 0.25 if change else 0.5)  # caller

    judge(source, target, p, "caller", "scale")


def test_large_masks_do_not_hide_other_values():
    p = random(one=(WIDTH, LENGTH))
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, "f"), 1)

    def source(p, x):
        return jax.nn.softmax(x @ p["one"] / 2 + mask, -1)

    def target(p, x, change):
        scores = x @ p["one"] / (3 if change else 2)  # hidden
        return torch.softmax(scores + torch.from_numpy(mask), -1)

    judge(source, target, p, "hidden", "scale")


def test_quantised_weights_are_weights_of_other_values() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    small = tg.quantize_(copy.deepcopy(network), "int8_per_channel")
    report = tg.diff(network, small, torch.randn(5, 64))
    assert not report.ok
    assert "weights of other values: 0.weight here, and 0.weight there" in str(report)
    assert tg.diff(network, tg.jit(copy.deepcopy(network)), torch.randn(5, 64)).ok
