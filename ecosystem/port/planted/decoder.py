"""A transformer decoder with rotary positions, gates and a head of its own: JAX and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ecosystem.port.planted.network import Arguments, Network, into_jax, into_torch

WIDTH, HEADS, DEPTH, VOCABULARY = 16, 2, 2, 23
SHAPES: dict[str, tuple[int, ...]] = {
    "tokens.table": (VOCABULARY, WIDTH),
    "head.kernel": (WIDTH, VOCABULARY),
    "last.scale": (WIDTH,),
}
for _i in range(DEPTH):
    SHAPES |= {f"blocks.{_i}.{part}.kernel": (WIDTH, WIDTH) for part in ("query", "key", "value", "output")}
    SHAPES |= {f"blocks.{_i}.{part}.kernel": (WIDTH, 2 * WIDTH) for part in ("gate", "up")}
    SHAPES |= {f"blocks.{_i}.down.kernel": (2 * WIDTH, WIDTH)}
    SHAPES |= {f"blocks.{_i}.{part}.scale": (WIDTH,) for part in ("first", "second")}


def rms_norm(p: Any, name: str, x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p[f"{name}.scale"]


def rotate(x: Any) -> Any:
    """Return heads with both halves of each rotated by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cosine, sine = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attend(p: Any, block: str, x: Any) -> Any:
    batch, length, _ = x.shape
    q, k, v = (
        (x @ p[f"{block}.{part}.kernel"]).reshape(batch, length, HEADS, -1) for part in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", rotate(q), rotate(k)) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(batch, length, WIDTH) @ p[f"{block}.output.kernel"]


def decoder(p: Any, ids: Any) -> Any:
    x = p["tokens.table"][ids] * WIDTH**0.5
    for i in range(DEPTH):
        block = f"blocks.{i}"
        x = x + attend(p, block, rms_norm(p, f"{block}.first", x))
        normal = rms_norm(p, f"{block}.second", x)
        gate = jax.nn.gelu(normal @ p[f"{block}.gate.kernel"], approximate=False)
        x = x + (gate * (normal @ p[f"{block}.up.kernel"])) @ p[f"{block}.down.kernel"]
    return rms_norm(p, "last", x) @ p["head.kernel"]


class Norm(torch.nn.Module):
    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.epsilon = torch.nn.Parameter(torch.ones(WIDTH)), epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight  # planted: epsilon


def rotated(x: torch.Tensor, change: str) -> torch.Tensor:
    half = x.shape[-1] // 2
    base = 500.0 if change == "rotary base" else 10000.0
    angles = torch.arange(x.shape[1])[:, None] * base ** (-torch.arange(half) / half)  # planted: rotary base
    cosine, sine = angles.cos()[:, None, :], angles.sin()[:, None, :]
    if change == "rotary":
        first, second = x[..., 0::2], x[..., 1::2]  # planted: rotary
        turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1)  # planted: rotary
        return turned.flatten(-2)  # planted: rotary
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Block(torch.nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.first, self.second = Norm(1e-3 if change == "epsilon" else 1e-6), Norm()
        for part in ("query", "key", "value", "output"):
            setattr(self, part, torch.nn.Linear(WIDTH, WIDTH, bias=False))
        self.gate, self.up = (torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (part(x).view(batch, length, HEADS, -1) for part in (self.query, self.key, self.value))
        q, k = rotated(q, self.change), rotated(k, self.change)
        if self.change == "equal: attention":
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.output(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        scale = 1.0 if self.change == "scale" else (WIDTH // HEADS) ** -0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale  # planted: scale
        below = torch.ones(length, length, dtype=torch.bool).tril(1 if self.change == "mask" else 0)  # planted: mask
        scores = scores.masked_fill(~below, -torch.inf)  # planted: scale
        shares = scores.to(torch.float16 if self.change == "dtype" else torch.float32).softmax(-1)  # planted: dtype
        mixed = torch.einsum("bhqk,bkhd->bqhd", shares.float(), v)
        return self.output(mixed.reshape(batch, length, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))  # planted: epsilon
        normal = self.second(x)
        kind = "tanh" if self.change == "gelu" else "none"
        hidden = torch.nn.functional.gelu(self.gate(normal), approximate=kind) * self.up(normal)  # planted: gelu
        if self.change == "order":
            return normal + self.down(hidden)  # planted: order
        return x + self.down(hidden)


class Decoder(torch.nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(change) for _ in range(DEPTH)])
        self.last, self.head = Norm(), torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) * WIDTH**0.5
        for block in self.blocks:
            x = block(x)
        table = self.tokens.weight if self.change == "tied" else self.head.weight
        return torch.nn.functional.linear(self.last(x), table)  # planted: tied


def examples(size: int) -> tuple[Arguments, Arguments]:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, ((2, 9), (3, 13))[size])
    return (ids,), (ids,)


NETWORK = Network(
    "decoder: JAX to PyTorch",
    Path(__file__),
    SHAPES,
    lambda values: into_jax(decoder, values),
    lambda values, change: into_torch(Decoder(change), values),
    examples,
    {"rotary base": "rotary"}
    | {name: name for name in ("epsilon", "rotary", "scale", "mask", "dtype", "gelu", "order", "tied")},
    ("equal: attention",),
)
