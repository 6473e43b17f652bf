"""What one eager operation costs, on arrays so small that the arithmetic is nothing and the call is everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from benchmarks.measure import Row, interleaved
from torch.nn import functional as F

import tensorgraft as tg

CALLS, ROUNDS = 100, 40
LIMIT, TIERED = 2.5, 2.05  # of the addition / jnp.add, compiled and in the cold tier
# torchax cannot share a process with another device of PyTorch written in Python: seconds that an operation took it
# on the machine on which this was written (git b2d44f0), add 4 x 4, linear + relu, elementwise
TORCHAX = {"a + b, 4 x 4": 337e-6, "linear, relu, 4 x 16": 738e-6, "elementwise, 4 x 16": 267e-6}
TORCHAX_LIMIT = 0.1


def add(o: Any, x: Any, w: Any, b: Any) -> Any:
    return o.add(x, x)


def layers(o: Any, x: Any, w: Any, b: Any) -> Any:
    for _ in range(5):
        x = o.relu(o.linear(x, w, b))
    return x


def elementwise(o: Any, x: Any, w: Any, b: Any) -> Any:
    for _ in range(4):
        x = o.abs(o.tanh(x * 0.5 + b) - x)
    return x


class Torch:
    add, relu, linear, tanh, abs = torch.add, torch.relu, F.linear, torch.tanh, torch.abs


class Jax:
    add, relu, tanh, abs = jnp.add, jax.nn.relu, jnp.tanh, jnp.abs

    @staticmethod
    def linear(x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, int], int]] = {  # and how many operations it has
    "a + b, 4 x 4": (add, (4, 4), 1),
    "linear, relu, 4 x 16": (layers, (4, 16), 10),
    "elementwise, 4 x 16": (elementwise, (4, 16), 20),
}


def compare(name: str) -> list[Row]:
    program, (rows, n), operations = PROGRAMS[name]
    random = np.random.default_rng(0)
    values = [random.standard_normal(shape, np.float32) for shape in ((rows, n), (n, n), (n,))]
    host = [torch.from_numpy(v) for v in values]
    arrays = [jnp.asarray(v) for v in values]
    on = {where: [x.to(tg.device(where)) for x in host] for where in ("jax", "numpy")}
    subjects = {
        "jnp": lambda: program(Jax, *arrays),
        "CPU PyTorch": lambda: program(Torch, *host),
        "jax": lambda: program(Torch, *on["jax"]),
        "numpy": lambda: program(Torch, *on["numpy"]),
    }
    calls = max(1, CALLS // operations)
    with tg.eager("tiered"):  # first: an operator that has been compiled stays so
        cold = [x.to(tg.device("jax")) for x in host]
        tiers = {"jnp": subjects["jnp"], "tiered": lambda: program(Torch, *cold)}
        tiered = {k: s / operations for k, s in interleaved(tiers, calls, ROUNDS, time.process_time).items()}
    seconds = {k: s / operations for k, s in interleaved(subjects, calls, ROUNDS, time.process_time).items()}
    ours, limit = f"eager {name}, an operation", LIMIT if program is add else None
    return [
        Row(f"{ours} on JAX", seconds["jax"], seconds["jnp"], "jax.numpy", limit),
        Row(f"{ours} on JAX", seconds["jax"], TORCHAX[name], "torchax, measured before", TORCHAX_LIMIT),
        Row(f"{ours} on JAX", seconds["jax"], seconds["CPU PyTorch"], "CPU PyTorch"),
        Row(f"{ours} on JAX, tiered", tiered["tiered"], tiered["jnp"], "jax.numpy", TIERED if program is add else None),
        Row(f"{ours} on NumPy", seconds["numpy"], seconds["CPU PyTorch"], "CPU PyTorch"),
    ]


def measure() -> list[Row]:
    with torch.no_grad():
        return [row for name in PROGRAMS for row in compare(name)]
