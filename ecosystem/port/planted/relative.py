"""An encoder with relative positions, root mean squares and a tied head, like T5: PyTorch and JAX."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ecosystem.port.planted.network import Arguments, Network, into_jax, into_torch

WIDTH, HEADS, REACH, VOCABULARY = 16, 2, 4, 19
SHAPES: dict[str, tuple[int, ...]] = {"tokens.table": (VOCABULARY, WIDTH), "distances.table": (2 * REACH + 1, HEADS)}
SHAPES |= {f"{part}.kernel": (WIDTH, WIDTH) for part in ("query", "key", "value", "output")}
SHAPES |= {"up.kernel": (WIDTH, 2 * WIDTH), "down.kernel": (2 * WIDTH, WIDTH)}
SHAPES |= {f"{part}.scale": (WIDTH,) for part in ("first", "second", "last")}


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Source(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.distances = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(2 * REACH + 1, HEADS)
        for part in ("query", "key", "value", "output"):
            setattr(self, part, torch.nn.Linear(WIDTH, WIDTH, bias=False))
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.first, self.second, self.last = Norm(), Norm(), Norm()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids)
        normal = self.first(x)
        q, k, v = (part(normal).view(batch, length, HEADS, -1) for part in (self.query, self.key, self.value))
        places = torch.arange(length)
        apart = (places[None, :] - places[:, None]).clamp(-REACH, REACH) + REACH
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) + self.distances(apart).permute(2, 0, 1)
        scores = scores + (1 - mask[:, None, None, :].float()) * -1e9
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        x = x + self.output(mixed.reshape(batch, length, WIDTH))
        x = x + self.down(torch.relu(self.up(self.second(x))))
        return self.last(x) * WIDTH**-0.5 @ self.tokens.weight.T


def rms_norm(p: Any, name: str, x: Any, epsilon: float = 1e-6) -> Any:
    return p[f"{name}.scale"] * x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon)  # planted: epsilon


def attention(change: str, p: Any, x: Any, mask: Any) -> Any:
    batch, length, _ = x.shape
    q, k, v = ((x @ p[f"{part}.kernel"]).reshape(batch, length, HEADS, -1) for part in ("query", "key", "value"))
    places = jnp.arange(length)
    apart = jnp.clip(places[None, :] - places[:, None], -REACH, REACH) + REACH
    if change == "offset":
        apart = jnp.clip(places[None, :] - places[:, None] + 1, -REACH, REACH) + REACH  # planted: offset
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if change == "scale":
        scores = scores / np.sqrt(WIDTH // HEADS)  # planted: scale
    scores = scores + p["distances.table"][apart].transpose(2, 0, 1)  # planted: offset, scale
    if change == "mask":
        scores = scores + mask[:, None, None, :] * -1e9  # planted: mask
    else:
        scores = scores + (1 - mask[:, None, None, :]) * -1e9  # planted: mask
    if change == "dtype":
        scores = scores.astype(jnp.float16).astype(jnp.float32)  # planted: dtype
    shares = jax.nn.softmax(scores, -1)  # planted: dtype
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
    return mixed.reshape(batch, length, WIDTH) @ p["output.kernel"]


def encoder(change: str, p: Any, ids: Any, mask: Any) -> Any:
    x = p["tokens.table"][ids]
    x = x + attention(change, p, rms_norm(p, "first", x), mask)
    normal = rms_norm(p, "second", x, 1e-2 if change == "epsilon" else 1e-6)  # planted: epsilon
    hidden = jax.nn.relu(normal @ p["up.kernel"]) @ p["down.kernel"]
    x = (normal if change == "order" else x) + hidden  # planted: order
    if change == "equal: norm":
        x = x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) / WIDTH + 1e-6) * p["last.scale"]
    else:
        x = rms_norm(p, "last", x)
    scale = 1.0 if change == "scale of the head" else WIDTH**-0.5
    return x * scale @ p["tokens.table"].T  # planted: scale of the head


def examples(size: int) -> tuple[Arguments, Arguments]:
    batch, length = ((2, 9), (3, 13))[size]
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length))
    mask = np.ones_like(ids)
    mask[-1, -3:] = 0
    return (ids, mask), (ids, mask)


NETWORK = Network(
    "relative positions: PyTorch to JAX",
    Path(__file__),
    SHAPES,
    lambda values: into_torch(Source(), values),
    lambda values, change: into_jax(partial(encoder, change), values),
    examples,
    {"scale of the head": "scale"} | {name: name for name in ("epsilon", "offset", "scale", "mask", "dtype", "order")},
    ("equal: norm",),
)
