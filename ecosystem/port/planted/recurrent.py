"""An LSTM after which a GRU comes, of padded sequences: PyTorch and JAX."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ecosystem.port.planted.network import Arguments, Network, into_jax, linear, norm

FEATURES, UNITS = 6, 8
SHAPES: dict[str, tuple[int, ...]] = {
    "lstm.inputs.kernel": (FEATURES, 4 * UNITS),
    "lstm.state.kernel": (UNITS, 4 * UNITS),
    "lstm.inputs.bias": (4 * UNITS,),
    "lstm.state.bias": (4 * UNITS,),
    "gru.inputs.kernel": (UNITS, 3 * UNITS),
    "gru.state.kernel": (UNITS, 3 * UNITS),
    "gru.inputs.bias": (3 * UNITS,),
    "gru.state.bias": (3 * UNITS,),
}
SHAPES |= norm("norm", UNITS) | linear("head", UNITS, 3)


class Source(torch.nn.Module):
    def __init__(self, values: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(FEATURES, UNITS, batch_first=True)
        self.norm = torch.nn.LayerNorm(UNITS, 1e-5)
        self.gru = torch.nn.GRU(UNITS, UNITS, batch_first=True)
        self.head = torch.nn.Linear(UNITS, 3)
        state = {"norm.weight": values["norm.scale"], "norm.bias": values["norm.bias"]}
        state |= {"head.weight": values["head.kernel"].T, "head.bias": values["head.bias"]}
        for kind in ("lstm", "gru"):
            for to, of in {"ih": "inputs", "hh": "state"}.items():
                state[f"{kind}.weight_{to}_l0"] = values[f"{kind}.{of}.kernel"].T
                state[f"{kind}.bias_{to}_l0"] = values[f"{kind}.{of}.bias"]
        self.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in state.items()})
        self.eval()

    def forward(self, sequences: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.lstm(sequences)[0])
        x = self.gru(x)[0] * mask[:, :, None]
        return self.head(x.sum(1) / mask.sum(1)[:, None])


def lstm_step(change: str, p: Any, state: Any, x: Any) -> Any:
    hidden, cell = state
    both = x @ p["lstm.inputs.kernel"] + p["lstm.inputs.bias"] + hidden @ p["lstm.state.kernel"] + p["lstm.state.bias"]
    if change == "gates":
        f, i, g, o = jnp.split(both, 4, -1)  # planted: gates
    elif change == "gates of the candidate":
        i, f, o, g = jnp.split(both, 4, -1)  # planted: gates of the candidate
    else:
        i, f, g, o = jnp.split(both, 4, -1)  # planted: gates, gates of the candidate
    if change == "bias":
        f = f + 1.0  # planted: bias
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)  # planted: bias
    hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
    return (hidden, cell), hidden


def gru_step(change: str, p: Any, state: Any, x: Any) -> Any:
    if change == "dtype":
        state = state.astype(jnp.bfloat16).astype(jnp.float32)  # planted: dtype
    inputs = x @ p["gru.inputs.kernel"] + p["gru.inputs.bias"]
    ri, zi, ni = jnp.split(inputs, 3, -1)
    if change == "second bias":
        rs, zs, ns = jnp.split(state @ p["gru.state.kernel"], 3, -1)
        rb, zb, nb = jnp.split(p["gru.state.bias"], 3)
        r, z = jax.nn.sigmoid(ri + rs + rb), jax.nn.sigmoid(zi + zs + zb)
        n = jnp.tanh(ni + r * ns + nb)  # planted: second bias
    else:
        rs, zs, ns = jnp.split(state @ p["gru.state.kernel"] + p["gru.state.bias"], 3, -1)
        r, z = jax.nn.sigmoid(ri + rs), jax.nn.sigmoid(zi + zs)
        n = jnp.tanh(ni + r * ns)  # planted: second bias
    if change == "gates of the update":
        state = z * n + (1 - z) * state  # planted: gates of the update
    elif change == "equal: update":
        state = n + z * (state - n)
    else:
        state = (1 - z) * n + z * state  # planted: gates of the update, dtype
    return state, state


def network(change: str, p: Any, sequences: Any, mask: Any) -> Any:
    zeros = jnp.zeros((sequences.shape[0], UNITS))
    steps = jnp.swapaxes(sequences, 0, 1)
    outputs = jax.lax.scan(partial(lstm_step, change, p), (zeros, zeros), steps)[1]
    centred = outputs - outputs.mean(-1, keepdims=True)
    variance = (centred * centred).sum(-1, keepdims=True) / (UNITS - int(change == "variance"))  # planted: variance
    epsilon = 1e-2 if change == "epsilon" else 1e-5
    x = centred / jnp.sqrt(variance + epsilon) * p["norm.scale"] + p["norm.bias"]  # planted: epsilon
    x = jnp.swapaxes(jax.lax.scan(partial(gru_step, change, p), zeros, x)[1], 0, 1)
    if change != "mask":
        x = x * mask[:, :, None]
    x = x.sum(1) / mask.sum(1)[:, None]  # planted: mask
    return x @ p["head.kernel"] + p["head.bias"]


def examples(size: int) -> tuple[Arguments, Arguments]:
    batch, length = ((2, 7), (3, 11))[size]
    sequences = np.random.default_rng(3).standard_normal((batch, length, FEATURES)).astype(np.float32)
    mask = np.ones((batch, length), np.float32)
    mask[-1, -3:] = 0
    return (sequences, mask), (sequences, mask)


NETWORK = Network(
    "recurrent network: PyTorch to JAX",
    Path(__file__),
    SHAPES,
    Source,
    lambda values, change: into_jax(partial(network, change), values),
    examples,
    {"gates of the candidate": "gates", "gates of the update": "gates", "second bias": "bias"}
    | {name: name for name in ("gates", "bias", "dtype", "variance", "epsilon", "mask")},
    ("equal: update",),
)
