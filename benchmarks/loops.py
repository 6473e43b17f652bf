"""Loops of JAX functions grafted onto NumPy and PyTorch, and their gradients, beside `jax.jit` and the same loops
written by hand in NumPy and PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from benchmarks.measure import Row, interleaved
from jax import lax

import tensorgraft as tg

JAX = "jax.jit"
LIMITS = {"NumPy": 20, "PyTorch": 20, "PyTorch, tg.jit": 5}
ROUNDS = 9
STEPS = 1000  # of the integrator; the others take 200

Program = Callable[..., Any]


@dataclass
class Loop:
    """One loop: `by_hand(library, *arrays)` is it as a user of NumPy or PyTorch would write it."""

    name: str
    fn: Program
    by_hand: Program
    arrays: tuple[Any, ...]
    argnums: tuple[int, ...] = ()  # of the gradient, where there is one


def rnn(w: Any, u: Any, x: Any) -> Any:
    def cell(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ w + row @ u)
        return h, h

    return lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1].sum()


def rnn_by_hand(xp: Any, w: Any, u: Any, x: Any) -> Any:
    h, rows = x[0] * 0, []
    for row in x:
        h = xp.tanh(h @ w + row @ u)
        rows.append(h)
    return xp.stack(rows).sum()


def leapfrog(q: Any, p: Any, k: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        q, p = state
        p = p - 0.005 * k * jnp.sin(q)
        q = q + 0.01 * p
        p = p - 0.005 * k * jnp.sin(q)
        return (q, p), q

    (q, p), path = lax.scan(step, (q, p), None, length=STEPS)
    return path[-1] + p


def leapfrog_by_hand(xp: Any, q: Any, p: Any, k: Any) -> Any:
    path = []
    for _ in range(STEPS):
        p = p - 0.005 * k * xp.sin(q)
        q = q + 0.01 * p
        p = p - 0.005 * k * xp.sin(q)
        path.append(q)
    return xp.stack(path)[-1] + p


def filtered(xp: Any, state: Any, z: Any, f: Any, h: Any, noise: Any) -> Any:
    """A step of a Kalman filter: (the state after an observation, the part of it in the likelihood)."""
    m, p = f @ state[0], f @ state[1] @ f.T + noise[0]
    s = h @ p @ h.T + noise[1]
    det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
    inverse = xp.stack([xp.stack([s[1, 1], -s[0, 1]]), xp.stack([-s[1, 0], s[0, 0]])]) / det
    gain, r = p @ h.T @ inverse, z - h @ m
    return (m + gain @ r, p - gain @ h @ p), r @ inverse @ r + xp.log(det)


def kalman(f: Any, h: Any, z: Any, *noise: Any) -> Any:
    state = jnp.zeros(4), jnp.eye(4)
    return lax.scan(lambda state, z: filtered(jnp, state, z, f, h, noise), state, z)[1].sum()


def kalman_by_hand(xp: Any, f: Any, h: Any, z: Any, *noise: Any) -> Any:
    state, total = (f[0] * 0, noise[0] * 100), 0
    for row in z:
        state, part = filtered(xp, state, row, f, h, noise)
        total = total + part
    return total


def newton_step(x: Any, a: Any) -> Any:
    """A step towards a root of multiplicity four, to which Newton's method converges slowly."""
    y = x * x - a
    return x - y * y * y * y / (8 * y * y * y * x)


def newton(a: Any) -> Any:
    def goes_on(s: Any) -> Any:
        return (jnp.max(jnp.abs(s[0] * s[0] - a)) > 1e-4) & (s[1] < 500)

    return lax.while_loop(goes_on, lambda s: (newton_step(s[0], a), s[1] + 1), (1 + a, 0))[0]


def newton_by_hand(xp: Any, a: Any) -> Any:
    x, n = 1 + a, 0
    while xp.abs(x * x - a).max() > 1e-4 and n < 500:
        x, n = newton_step(x, a), n + 1
    return x


def loops() -> list[Loop]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (0.2 * rng.normal(size=shape)).astype(np.float32)

    motion = np.eye(4, dtype=np.float32) + 0.1 * np.eye(4, k=1, dtype=np.float32)
    noise = 0.01 * np.eye(4, dtype=np.float32), 0.1 * np.eye(2, dtype=np.float32)
    numbers = np.float32(1), np.float32(0.1), np.float32(2)
    return [
        Loop("RNN of 32 units", rnn, rnn_by_hand, (normal(32, 32), normal(32, 32), normal(200, 8, 32)), (0, 1)),
        Loop("leapfrog of two numbers", leapfrog, leapfrog_by_hand, numbers, (0, 1, 2)),
        Loop("Kalman filter", kalman, kalman_by_hand, (motion, normal(2, 4) + 1, normal(200, 2), *noise), (0, 1)),
        Loop("Newton's steps", newton, newton_by_hand, (np.linspace(1, 5, 16, dtype=np.float32),)),
    ]


def subjects(loop: Loop, gradient: bool) -> dict[str, Callable[[], Any]]:
    fn = jax.grad(loop.fn, loop.argnums) if gradient else loop.fn
    compiled, arrays = jax.jit(fn), [jnp.asarray(x) for x in loop.arrays]
    host = [np.array(x) for x in loop.arrays]
    tensors = [torch.from_numpy(np.array(x)) for x in loop.arrays]
    onto_numpy, onto_torch = tg.graft(fn, onto="numpy"), tg.graft(fn, onto="torch")
    in_jit = tg.jit(onto_torch)

    def by_pytorch() -> Any:
        wanted = [t.clone().requires_grad_() if i in loop.argnums else t for i, t in enumerate(tensors)]
        return torch.autograd.grad(loop.by_hand(torch, *wanted), [wanted[i] for i in loop.argnums])

    found: dict[str, Callable[[], Any]] = {
        JAX: lambda: jax.block_until_ready(compiled(*arrays)),
        "NumPy": lambda: onto_numpy(*host),
        "PyTorch": lambda: onto_torch(*tensors),
        "PyTorch, tg.jit": lambda: in_jit(*tensors),
        "PyTorch by hand": by_pytorch if gradient else lambda: loop.by_hand(torch, *tensors),
    }
    if not gradient:
        found["NumPy by hand"] = lambda: loop.by_hand(np, *loop.arrays)
    wanted = jax.tree.leaves(found[JAX]())
    for name, subject in found.items():
        for x, y in zip(jax.tree.leaves(subject()), wanted, strict=True):
            assert np.abs(np.asarray(x) - np.asarray(y)).max() <= 2e-2 * np.abs(np.asarray(y)).max(), name
    return found


def compare(loop: Loop, gradient: bool, rounds: int = ROUNDS) -> Iterator[Row]:
    """Raises AssertionError where results differ."""
    seconds = interleaved(subjects(loop, gradient), 1, rounds, time.process_time)
    what = f"{loop.name}, {'gradient' if gradient else 'forward'}"
    for onto, limit in LIMITS.items():
        yield Row(f"{what}, onto {onto}", seconds[onto], seconds[JAX], JAX, limit)
        hand = f"{onto.partition(',')[0]} by hand"
        if hand in seconds:
            yield Row(f"{what}, onto {onto}", seconds[onto], seconds[hand], hand)


def measure() -> Iterator[Row]:
    for loop in loops():
        yield from compare(loop, gradient=False)
        if loop.argnums:
            yield from compare(loop, gradient=True)


if __name__ == "__main__":
    from benchmarks.run import shown
    from benchmarks.worker import pinned

    pinned()
    torch.set_num_threads(1)
    for row in measure():
        print(f"{row.name}: {row.ratio:.2f} of {row.against}: {shown(row.ours, 's')}, {shown(row.reference, 's')}")
