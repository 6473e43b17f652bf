"""What a call of a compiled function costs as the number of captured tensors grows: `tg.jit` of a module with many
small parameters against `jax.jit` of a function that is given as many arrays; of training steps, against `jax.jit`
that is given the state and takes its memory; and `tg.jit` of functions of arrays, against that and `tf.function`. The
arithmetic is next to nothing."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import tensorflow as tf
import torch
from benchmarks.measure import Row, interleaved
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.frontends.torch.core.tensors import cell_of

COUNTS = (2, 10, 100, 1000, 5000)
ROUNDS = 60


def read_by_hand(x: Any, arrays: list[Any]) -> Any:
    return sum(arrays, x)


def write_by_hand(x: Any, arrays: list[Any]) -> Any:
    arrays = [a + 1 for a in arrays]
    return arrays, read_by_hand(x, arrays)


class Many(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.items = nn.ParameterList([torch.full((2,), float(i)) for i in range(n)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.items, x)


def subjects(n: int) -> dict[str, Callable[[], object]]:
    device = tg.device("jax")
    x, array = torch.ones(2, device=device), jnp.ones(2)
    reader, writer = Many(n).to(device), Many(n).to(device)

    @tg.jit
    @torch.no_grad()
    def read(x: torch.Tensor) -> torch.Tensor:
        return reader(x)

    @tg.jit
    @torch.no_grad()
    def write(x: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_(list(writer.items), 1.0)
        return writer(x)

    by_hand, in_place = jax.jit(read_by_hand), jax.jit(write_by_hand, donate_argnums=1)
    arrays = [jnp.full((2,), float(i)) for i in range(n)]
    held = [[a + 0 for a in arrays]]

    def step() -> Any:
        held[0], out = in_place(array, held[0])
        return out.block_until_ready()

    return {
        "read": lambda: cell_of(read(x)).array.block_until_ready(),
        "read by hand": lambda: by_hand(array, arrays).block_until_ready(),
        "write": lambda: cell_of(write(x)).array.block_until_ready(),
        "write by hand": step,
    }


def of_arguments() -> dict[str, Callable[[], object]]:
    """Two arguments, and nothing captured."""
    x, array = torch.ones(2, device=tg.device("jax")), jnp.ones(2)
    added, by_hand = tg.jit(lambda x, y: x + y), jax.jit(lambda x, y: x + y)
    y, other = x + 1, array + 1
    return {"tensors": lambda: added(x, y), "jax.jit": lambda: by_hand(array, other)}


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], optax.GradientTransformation]] = {
    "SGD": (functools.partial(torch.optim.SGD, lr=0.01), optax.sgd(0.01)),
    "AdamW": (functools.partial(torch.optim.AdamW, lr=1e-3), optax.adamw(1e-3, weight_decay=1e-2)),
}


def of_steps(kind: str) -> dict[str, Callable[[], object]]:
    """A training step of two layers, and the same by hand. Raises AssertionError where their losses differ."""
    device = tg.device("jax")
    make, by_hand = OPTIMIZERS[kind]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(4, 8), torch.randint(4, (4,))
    state = [jnp.asarray(p.detach().numpy().copy()) for p in model.parameters()]
    inputs, labels = jnp.asarray(x.numpy()), jnp.asarray(y.numpy().astype("int32"))
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = make(model.parameters())

    @tg.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def loss_of(params: list[Any], x: Any, y: Any) -> Any:
        w, b, v, c = params
        outputs = jax.nn.relu(x @ w.T + b) @ v.T + c
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    def step_by_hand(params: Any, moments: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, moments = by_hand.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    compiled = jax.jit(step_by_hand, donate_argnums=(0, 1))
    held = [state, by_hand.init(state)]

    def call() -> Any:
        held[0], held[1], loss = compiled(*held, inputs, labels)
        return loss.block_until_ready()

    for _ in range(3):
        ours, own = step(x, y).item(), float(call())
        assert abs(ours - own) < 1e-4 * own, f"{kind}: {ours}, {own} by hand"
    return {"step": lambda: cell_of(step(x, y)).array.block_until_ready(), "by hand": call}


def of_arrays(n: int) -> dict[str, Callable[[], object]]:
    """Of `n` arrays one sum."""
    made: dict[str, Callable[[], object]] = {}
    added = tg.jit(lambda arrays: sum(arrays[1:], arrays[0]))
    for backend in ("jax", "tensorflow", "torch"):
        arrays = [xp.asarray([float(i)] * 2, dtype=xp.float32, device=backend) for i in range(n)]
        made[backend] = lambda arrays=arrays: added(arrays)  # type: ignore[misc]
    by_hand, native = jax.jit(lambda arrays: sum(arrays[1:], arrays[0])), [jnp.full((2,), float(i)) for i in range(n)]
    made["jax.jit"] = lambda: by_hand(native)
    compiled = tf.function(lambda arrays: sum(arrays[1:], arrays[0]), jit_compile=True)
    tensors = [tf.constant([float(i)] * 2) for i in range(n)]
    made["tf.function"] = lambda: compiled(tensors)
    return made


def measure() -> list[Row]:
    seconds = interleaved(of_arguments(), 100, ROUNDS, time.process_time)
    rows = [Row("call of tg.jit, 2 tensors", seconds["tensors"], seconds["jax.jit"], "jax.jit")]
    for kind in OPTIMIZERS:
        seconds = interleaved(of_steps(kind), 100, ROUNDS, time.process_time)
        rows.append(Row(f"call of tg.jit, a training step with {kind}", seconds["step"], seconds["by hand"], "jax.jit"))
    for n in (2, 20):
        seconds = interleaved(of_arrays(n), 100, ROUNDS, time.process_time)
        for backend, against in (("jax", "jax.jit"), ("tensorflow", "tf.function"), ("torch", "jax.jit")):
            name = f"call of tg.jit, {n} arrays on {backend}"
            rows.append(Row(name, seconds[backend], seconds[against], against))
    for n in COUNTS:
        # short bursts, in processor time: a busy machine does other things in between
        seconds = interleaved(subjects(n), max(1, 500 // n), ROUNDS, time.process_time)
        for what, said in (("read", "read"), ("write", "written in place")):
            name = f"call of tg.jit, {n} captured tensors {said}"
            rows.append(Row(name, seconds[what], seconds[f"{what} by hand"], "jax.jit"))
    return rows
