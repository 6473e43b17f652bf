"""A vision transformer whose positions are those of another image size: JAX and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ecosystem.port.pair import channels_first, images
from ecosystem.port.planted.network import Arguments, Network, into_jax, into_torch, linear, norm

WIDTH, HEADS, PATCH, SIDE = 16, 2, 8, 3
SHAPES: dict[str, tuple[int, ...]] = {"patches.kernel": (PATCH, PATCH, 3, WIDTH), "patches.bias": (WIDTH,)}
SHAPES |= {"class.table": (1, WIDTH), "positions.table": (SIDE * SIDE, WIDTH), "class_position.table": (1, WIDTH)}
SHAPES |= linear("fused", WIDTH, 3 * WIDTH) | linear("output", WIDTH, WIDTH) | linear("head", WIDTH, 5)
SHAPES |= linear("up", WIDTH, 2 * WIDTH) | linear("down", 2 * WIDTH, WIDTH)
SHAPES |= norm("first", WIDTH) | norm("second", WIDTH) | norm("last", WIDTH)


def layer_norm(p: Any, name: str, x: Any) -> Any:
    return jax.nn.standardize(x, axis=-1, epsilon=1e-6) * p[f"{name}.scale"] + p[f"{name}.bias"]


def dense(p: Any, name: str, x: Any) -> Any:
    return x @ p[f"{name}.kernel"] + p[f"{name}.bias"]


def vit(p: Any, image: Any) -> Any:
    x = jax.lax.conv_general_dilated(
        image, p["patches.kernel"], (PATCH, PATCH), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    batch, height, width, _ = x.shape
    x = (x + p["patches.bias"]).reshape(batch, height * width, WIDTH)
    grid = p["positions.table"].reshape(SIDE, SIDE, WIDTH)
    grid = jax.image.resize(grid, (height, width, WIDTH), "bilinear", antialias=False)
    start = jnp.broadcast_to(p["class.table"] + p["class_position.table"], (batch, 1, WIDTH))
    x = jnp.concatenate([start, x + grid.reshape(height * width, WIDTH)], 1)
    qkv = dense(p, "fused", layer_norm(p, "first", x)).reshape(batch, -1, 3, HEADS, WIDTH // HEADS)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    x = x + dense(p, "output", mixed.reshape(batch, -1, WIDTH))
    x = x + dense(p, "down", jax.nn.gelu(dense(p, "up", layer_norm(p, "second", x)), approximate=False))
    return dense(p, "head", layer_norm(p, "last", x)[:, 0])


class Target(torch.nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.patches = torch.nn.Conv2d(3, WIDTH, PATCH, PATCH)
        for name, rows in {"class": 1, "positions": SIDE * SIDE, "class_position": 1}.items():
            self.add_module(name, torch.nn.Embedding(rows, WIDTH))
        self.fused, self.output = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.first = torch.nn.LayerNorm(WIDTH, 1e-6)
        self.second = torch.nn.LayerNorm(WIDTH, 1e-2 if change == "epsilon" else 1e-6)
        self.last, self.head = torch.nn.LayerNorm(WIDTH, 1e-6), torch.nn.Linear(WIDTH, 5)

    def embedded(self, image: torch.Tensor) -> torch.Tensor:
        if self.change == "padding":
            image = torch.nn.functional.pad(image, (1, 0, 1, 0))[:, :, :-1, :-1]  # planted: padding
        x = self.patches(image)  # planted: padding
        batch, _, height, width = x.shape
        grid = self.positions.weight.view(1, SIDE, SIDE, WIDTH).permute(0, 3, 1, 2)
        aligned = self.change == "corners"
        size = height, width
        grid = torch.nn.functional.interpolate(grid, size, mode="bilinear", align_corners=aligned)  # planted: corners
        x, grid = x.flatten(2).transpose(1, 2), grid.flatten(2).transpose(1, 2)
        start = self.get_submodule("class").weight + self.class_position.weight
        if self.change == "offset":
            start = self.get_submodule("class").weight + grid[0, :1]  # planted: offset
        return torch.cat([start.expand(batch, 1, WIDTH), x + grid], 1)  # planted: offset

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.fused(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scale = WIDTH**-0.5 if self.change == "scale" else (WIDTH // HEADS) ** -0.5
        if self.change == "equal: attention":
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        elif self.change == "dtype":
            scores = q.bfloat16() @ k.bfloat16().transpose(-1, -2)  # planted: dtype
            mixed = (scores.float() * scale).softmax(-1) @ v
        else:
            scores = q @ k.transpose(-1, -2) * scale  # planted: scale, dtype
            mixed = scores.softmax(-1) @ v
        return self.output(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.embedded(image)
        x = x + self.attention(self.first(x))
        normal = self.second(x)  # planted: epsilon, order
        kind = "tanh" if self.change == "gelu" else "none"
        hidden = torch.nn.functional.gelu(self.up(normal), approximate=kind)  # planted: gelu
        x = (normal if self.change == "order" else x) + self.down(hidden)  # planted: order
        return self.head(self.last(x)[:, 0])


def examples(size: int) -> tuple[Arguments, Arguments]:
    image = images(2 + size, (32, 48)[size])
    return (image,), (channels_first(image),)


NETWORK = Network(
    "vision transformer: JAX to PyTorch",
    Path(__file__),
    SHAPES,
    lambda values: into_jax(vit, values),
    lambda values, change: into_torch(Target(change), values),
    examples,
    {name: name for name in ("epsilon", "padding", "corners", "offset", "scale", "dtype", "gelu", "order")},
    ("equal: attention",),
)
