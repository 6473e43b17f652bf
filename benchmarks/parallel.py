"""The GPT's compiled training step on eight simulated devices against the same step by hand in JAX, with the same
shardings: what the devices exchange, time, and the memory of a device against that of one."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks import networks, planned
from benchmarks import networks_by_hand as hand
from benchmarks.measure import Row, interleaved
from jax.sharding import NamedSharding, PartitionSpec

import tensorgraft as tg
from tensorgraft.backends.jax.compilation.analysis import collectives
from tensorgraft.backends.jax.sharding.meshes import sharding_of

SIZES = {"batch": 16, "words": 64, "length": 32, "width": 96, "heads": 6, "layers": 2}
LAYERS = {"qkv.weight": ("model", None), "qkv.bias": ("model",), "out.weight": (None, "model"),
          "up.weight": ("model", None), "up.bias": ("model",), "down.weight": (None, "model")}  # fmt: skip
PLACEMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "data 8": (((8,), ("data",)), {}),
    "fully sharded 8": (((8,), ("data",)), tg.parallel.fully_sharded()),
    "data 4 x tensor 2": (((4, 2), ("data", "model")), {f"blocks.*.{n}": spec for n, spec in LAYERS.items()}),
}
CHECKED, CALLS, ROUNDS = 4, 4, 8


def gpt(params: Any, tokens: Any, batched: Callable[[Any], Any]) -> Any:
    """`networks_by_hand.gpt`, with `batched` of what embeddings, layers and normalisations give."""

    def linear(x: Any, name: str) -> Any:
        return batched(hand.linear(x, name, params))

    def norm(x: Any, name: str) -> Any:
        return batched(hand.layer_norm(x, name, params))

    batch, length = tokens.shape
    x = batched(params["token.weight"][tokens]) + params["position.weight"][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for i in range(SIZES["layers"]):
        name = f"blocks.{i}"
        parts = jnp.split(linear(norm(x, f"{name}.norm1"), f"{name}.qkv"), 3, -1)
        q, k, v = (part.reshape(batch, length, SIZES["heads"], -1).transpose(0, 2, 1, 3) for part in parts)
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -jnp.inf)
        x = x + linear((jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.out")
        h = jax.nn.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.up"), approximate=False)
        x = batched(x + linear(h, f"{name}.down"))
    return batched(norm(x, "norm") @ params["token.weight"].T)


def by_hand(
    state: dict[str, np.ndarray], shardings: dict[str, NamedSharding], rows: NamedSharding | None
) -> tuple[list[Any], Callable[..., Any]]:
    """What a step holds, placed, and the step: what it gives lies as what it takes, and so do gradients. `rows`: how
    activations lie, where the program says so."""
    optimizer = hand.ADAMW

    def batched(x: Any) -> Any:
        return x if rows is None else jax.lax.with_sharding_constraint(x, rows)

    params = {name: jax.device_put(x, shardings[name]) for name, x in hand.load(state)[0].items()}
    mesh = next(iter(shardings.values())).mesh
    held = [params, jax.tree.map(lambda x: x, optimizer.init(params))]
    where = jax.tree.map(lambda x: x.sharding if x.ndim else NamedSharding(mesh, PartitionSpec()), held)
    held = jax.device_put(held, where)

    def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
        outputs = gpt(params, inputs, batched)
        kept = targets != -100  # PyTorch's meaning of a mean: of the targets that are not to be ignored
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.where(kept, targets, 0))
        return jnp.where(kept, losses, 0).sum() / kept.sum()

    def step(params: Any, moments: Any, inputs: Any, targets: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, inputs, targets)
        grads = jax.lax.with_sharding_constraint(grads, where[0])
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    return held, jax.jit(step, donate_argnums=(0, 1), out_shardings=(*where, None))


def compare(name: str) -> list[Row]:
    """Raises AssertionError where the two steps do not compute the same losses."""
    (shape, axes), plan = PLACEMENTS[name]
    mesh = tg.parallel.mesh(shape, axes)
    work = networks.gpt(**SIZES)
    known: dict[int, np.ndarray] = {}
    state = {k: known.setdefault(v.data_ptr(), v.numpy().copy()) for k, v in work.model.state_dict().items()}
    inputs, targets = (x.numpy().astype(np.int32) for x in (work.inputs, work.targets))
    work = work.on(tg.device("jax"))
    tg.parallel.shard_(work.model, mesh, plan)
    placed = {n: tg.parallel.placement(p) for n, p in work.model.named_parameters()}
    shardings = {n: sharding_of(p, "cpu") for n, p in placed.items() if p is not None}
    rows = NamedSharding(next(iter(shardings.values())).mesh, PartitionSpec("data"))
    held, theirs = by_hand(state, shardings, rows if "**" in plan else None)
    batch = [jax.device_put(x, rows) for x in (inputs, targets)]
    text = theirs.lower(*held, *batch).compile().as_text()

    step = tg.jit(work.training_step(), compile="first")
    ours_batch = tg.parallel.shard_batch([work.inputs, work.targets], mesh)
    losses: list[tuple[float, float]] = []
    for _ in range(CHECKED):
        *held[:], loss = theirs(*held, *batch)
        losses.append((step(*ours_batch).item(), float(loss)))
    assert max(abs(a - b) for a, b in losses) < 1e-4, losses
    ours, reference = tg.explain(step, *ours_batch).program.collectives, collectives(text)

    def one() -> None:
        jax.block_until_ready(tg.to_backend_array(step(*ours_batch)))

    def other() -> None:
        *held[:], loss = theirs(*held, *batch)
        jax.block_until_ready(loss)

    seconds = interleaved({"ours": one, "by hand": other}, CALLS, ROUNDS, time.process_time)
    found = [
        Row(f"{name}: collectives", len(ours), len(reference), "by hand in JAX", 1.0, unit=""),
        Row(f"{name}: bytes exchanged", sum(c.bytes for c in ours), sum(c.bytes for c in reference),
            "by hand in JAX", 1.0, unit="B"),
        Row(f"{name}: time of a step", seconds["ours"], seconds["by hand"], "by hand in JAX", 1.05),
    ]  # fmt: skip
    if name == "fully sharded 8":
        parameters = list(work.model.parameters())
        everything = [t for p in parameters for t in (p, p.grad)]
        each = max(tg.parallel.bytes_by_device(everything).values())
        total = sum(t.numel() * t.element_size() for t in everything)
        found.append(Row(f"{name}: parameters and gradients of a device", each, total, "one device", 0.15, unit="B"))
    return found


def measure() -> Iterator[Row]:
    for name in PLACEMENTS:
        yield from compare(name)
    yield from planned.measure()
