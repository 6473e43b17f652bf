"""A transformer encoder with padding: PyTorch and JAX."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ecosystem.port.planted.network import Arguments, Network, into_jax, into_torch, linear, norm

WIDTH, HEADS, DEPTH, VOCABULARY = 16, 2, 2, 23
SHAPES = {"tokens.table": (VOCABULARY, WIDTH), "positions.table": (32, WIDTH)} | norm("last", WIDTH)
for _i in range(DEPTH):
    for _part in ("query", "key", "value", "output"):
        SHAPES |= linear(f"blocks.{_i}.{_part}", WIDTH, WIDTH)
    SHAPES |= linear(f"blocks.{_i}.up", WIDTH, 3 * WIDTH) | linear(f"blocks.{_i}.down", 3 * WIDTH, WIDTH)
    SHAPES |= norm(f"blocks.{_i}.first", WIDTH) | norm(f"blocks.{_i}.second", WIDTH)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH, 1e-6), torch.nn.LayerNorm(WIDTH, 1e-6)
        self.query, self.key = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.value, self.output = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, WIDTH)

    def attention(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        mixed = scores.softmax(-1) @ v
        return self.output(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(32, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(DEPTH)])
        self.last = torch.nn.LayerNorm(WIDTH, 1e-6)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x)


def layer_norm(p: Any, name: str, x: Any, epsilon: float = 1e-6, correction: int = 0) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True, ddof=correction)  # planted: variance
    return centred / jnp.sqrt(variance + epsilon) * p[f"{name}.scale"] + p[f"{name}.bias"]  # planted: epsilon


def dense(p: Any, name: str, x: Any) -> Any:
    return x @ p[f"{name}.kernel"] + p[f"{name}.bias"]


def attention(change: str, p: Any, block: str, x: Any, mask: Any) -> Any:
    batch, length, _ = x.shape
    q, k, v = (dense(p, f"{block}.{part}", x).reshape(batch, length, HEADS, -1) for part in ("query", "key", "value"))
    if change == "equal: matmul":
        scores = jnp.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)) / np.sqrt(WIDTH // HEADS)
    else:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores * (WIDTH if change == "scale" else WIDTH // HEADS) ** -0.5  # planted: scale
    lowest = -1e9 if change == "equal: mask" else -jnp.inf
    if change != "mask":
        scores = jnp.where(mask[:, None, None, :] > 0, scores, lowest)
    if change == "dtype":
        shares = jax.nn.softmax(scores.astype(jnp.bfloat16), -1).astype(jnp.float32)  # planted: dtype
    else:
        shares = jax.nn.softmax(scores, -1)  # planted: mask
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
    return dense(p, f"{block}.output", mixed.reshape(batch, length, WIDTH))


def encoder(change: str, p: Any, ids: Any, mask: Any) -> Any:
    places = jnp.arange(ids.shape[1]) + (1 if change == "offset" else 0)  # planted: offset
    x = p["tokens.table"][ids] + p["positions.table"][places]
    for i in range(DEPTH):
        block = f"blocks.{i}"
        epsilon, correction = (1e-3 if change == "epsilon" else 1e-6), int(change == "variance")
        if change == "order" and i == 1:
            x = x + attention(change, p, block, x, mask)  # planted: order
            x = layer_norm(p, f"{block}.first", x)  # planted: order
        else:
            normal = layer_norm(p, f"{block}.first", x, epsilon, correction)  # planted: epsilon, variance
            x = x + attention(change, p, block, normal, mask)
        x = layer(change, p, block, x)
    return layer_norm(p, "last", x)


def layer(change: str, p: Any, block: str, x: Any) -> Any:
    hidden = dense(p, f"{block}.up", layer_norm(p, f"{block}.second", x))
    hidden = jax.nn.gelu(hidden, approximate=change == "gelu")  # planted: gelu
    return x + dense(p, f"{block}.down", hidden)


def examples(size: int) -> tuple[Arguments, Arguments]:
    batch, length = ((2, 9), (3, 13))[size]
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length))
    mask = np.ones_like(ids)
    mask[-1, -3:] = 0
    return (ids, mask), (ids, mask)


NETWORK = Network(
    "encoder: PyTorch to JAX",
    Path(__file__),
    SHAPES,
    lambda values: into_torch(Encoder(), values),
    lambda values, change: into_jax(partial(encoder, change), values),
    examples,
    {name: name for name in ("epsilon", "gelu", "scale", "order", "mask", "offset", "dtype", "variance")},
    ("equal: matmul", "equal: mask"),
)
