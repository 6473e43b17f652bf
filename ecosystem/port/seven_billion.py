"""Converts a sharded checkpoint of 7 billion parameters of zeros, with the names and shapes of Llama, and prints the
peak memory above the interpreter's, and the time. The mapping is found with two layers of width 24 and written for the
large shapes.

    python -m ecosystem.port.seven_billion FOLDER

FOLDER is on a disk with 14 GB free: shards are sparse files of bfloat16, what is written is not.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import tensorgraft as tg
from tensorgraft.porting.expressions import from_json
from tensorgraft.porting.mapping import Mapping

SHARDS = 8


@dataclass(frozen=True)
class Configuration:
    """The sizes of a Llama."""

    width: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int

    def of_source(self) -> dict[str, tuple[int, ...]]:
        """The arrays of the checkpoint, in PyTorch's layout."""
        width, hidden = self.width, self.hidden
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, width)}
        for i in range(self.layers):
            block = f"model.layers.{i}"
            found |= {f"{block}.self_attn.{n}_proj.weight": (width, width) for n in "qkvo"}
            found |= {f"{block}.mlp.{n}_proj.weight": (hidden, width) for n in ("gate", "up")}
            found[f"{block}.mlp.down_proj.weight"] = (width, hidden)
            found |= {f"{block}.{n}_layernorm.weight": (width,) for n in ("input", "post_attention")}
        return found | {"model.norm.weight": (width,), "lm_head.weight": (self.vocabulary, width)}

    def of_target(self) -> dict[str, tuple[int, ...]]:
        """The arrays of the target: kernels have their inputs first, those of attention an axis of heads."""
        width, hidden, heads = self.width, self.hidden, (self.heads, self.width // self.heads)
        found: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, width)}
        for i in range(self.layers):
            found |= {f"layers_{i}.{n}.kernel": (width, *heads) for n in "qkv"}
            found |= {f"layers_{i}.o.kernel": (*heads, width), f"layers_{i}.down.kernel": (hidden, width)}
            found |= {f"layers_{i}.{n}.kernel": (width, hidden) for n in ("gate", "up")}
            found |= {f"layers_{i}.{n}.scale": (width,) for n in ("first", "second")}
        return found | {"norm.scale": (width,), "head.kernel": (width, self.vocabulary)}


SMALL, LARGE = Configuration(24, 40, 2, 3, 29), Configuration(4096, 11008, 32, 32, 32000)


def rotated(xp: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """Heads with both halves turned; `xp` is the framework."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return xp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def angles(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    turns = np.arange(length)[:, None, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


class Source(torch.nn.Module):
    """Llama, with the names of its checkpoints."""

    def __init__(self, sizes: Configuration) -> None:
        super().__init__()
        self.sizes, self.names = sizes, {n: n.replace(".", "/") for n in sizes.of_source()}
        self.weights = torch.nn.ParameterDict()
        for name, shape in sizes.of_source().items():
            self.weights[self.names[name]] = torch.nn.Parameter(
                torch.randn(shape) / max(shape) ** 0.5 + (len(shape) == 1)
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        p = {n: self.weights[own] for n, own in self.names.items()}
        x = p["model.embed_tokens.weight"][ids]
        batch, length = ids.shape
        size = self.sizes.width // self.sizes.heads
        turns = [torch.from_numpy(a) for a in angles(length, size)]

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * p[f"{name}.weight"]

        for i in range(self.sizes.layers):
            block = f"model.layers.{i}"
            h = norm(x, f"{block}.input_layernorm")
            q, k, v = ((h @ p[f"{block}.self_attn.{n}_proj.weight"].T).view(batch, length, -1, size) for n in "qkv")
            q, k = rotated(torch, q, *turns), rotated(torch, k, *turns)
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5
            scores = scores.masked_fill(torch.ones(length, length).tril() == 0, -torch.inf)
            mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(batch, length, -1)
            x = x + mixed @ p[f"{block}.self_attn.o_proj.weight"].T
            h = norm(x, f"{block}.post_attention_layernorm")
            gate, up = (h @ p[f"{block}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            x = x + (torch.nn.functional.silu(gate) * up) @ p[f"{block}.mlp.down_proj.weight"].T
        return norm(x, "model.norm") @ p["lm_head.weight"].T


def target(p: Any, ids: Any) -> Any:
    """The same, in JAX."""
    x = p["embedding"][ids]
    length, size = ids.shape[1], p["layers_0.q.kernel"].shape[-1]

    def norm(x: Any, name: str) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.scale"]

    for i in range(SMALL.layers):
        h = norm(x, f"layers_{i}.first")
        q, k, v = (jnp.einsum("bnw,whd->bnhd", h, p[f"layers_{i}.{n}.kernel"]) for n in "qkv")
        q, k = (rotated(jnp, a, *angles(length, size)) for a in (q, k))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(size)
        shares = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length))) > 0, scores, -jnp.inf), -1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        x = x + jnp.einsum("bqhd,hdw->bqw", mixed, p[f"layers_{i}.o.kernel"])
        h = norm(x, f"layers_{i}.second")
        gate, up = (h @ p[f"layers_{i}.{n}.kernel"] for n in ("gate", "up"))
        x = x + (jax.nn.silu(gate) * up) @ p[f"layers_{i}.down.kernel"]
    return norm(x, "norm") @ p["head.kernel"]


def small_mapping() -> Mapping:
    """The mapping at the small sizes, with the names of checkpoints."""
    weights = {n: np.ones(shape, np.float32) for n, shape in SMALL.of_target().items()}
    source = Source(SMALL).eval()
    found = tg.port(source, (target, weights), np.random.default_rng(0).integers(0, SMALL.vocabulary, (2, 5)))
    if not found.ok:
        raise ValueError(f"the small networks are not equal:\n{found}")
    text = json.dumps([e.expression.json() for e in found.mapping if e.expression is not None])
    for name, own in source.names.items():
        text = text.replace(f'weights.{own}"', f'{name}"')
    entries = zip(found.mapping, json.loads(text), strict=True)
    return Mapping({e.target: replace(e, expression=from_json(data)) for e, data in entries})


def write_zeros(folder: Path, arrays: dict[str, tuple[int, ...]]) -> None:
    """Sparse files of bfloat16."""
    names = list(arrays)
    for k in range(SHARDS):
        header, at = {}, 0
        for name in names[k::SHARDS]:
            size = 2 * math.prod(arrays[name])
            header[name] = {"dtype": "BF16", "shape": arrays[name], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with (folder / f"model-{k:05}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + at)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: Path) -> int:
    arrays = LARGE.of_source()
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    write_zeros(source, arrays)
    mapping = small_mapping().resized(source, LARGE.of_target())
    largest = 2 * max(map(math.prod, arrays.values()))
    before, start = peak(), time.process_time()
    mapping.convert(source, folder / "out.safetensors")
    above = peak() - before
    count, seconds = sum(map(math.prod, arrays.values())) / 1e9, time.process_time() - start
    print(f"{count:.2f} billion parameters, {seconds:.0f} s of CPU")
    print(f"peak {above / 2**20:.0f} MiB above the interpreter; the largest array has {largest / 2**20:.0f} MiB")
    return 0 if above <= largest + 2e9 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
