"""A training step in lazy mode against the same step compiled by `tg.jit`: the GPT of `networks`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from benchmarks.measure import Row
from benchmarks.networks import gpt

import tensorgraft as tg

LIMIT = 1.5
CALLS, ROUNDS = 2, 8


def burst(step: Callable[[], float]) -> float:
    """CPU seconds of a step."""
    start = time.process_time()
    for _ in range(CALLS):
        step()
    return (time.process_time() - start) / CALLS


def measure() -> list[Row]:
    torch.manual_seed(0)
    tg.set_default_device("jax")
    device = tg.device("jax")
    work = gpt()
    recorded, compiled = copy.deepcopy(work).on(device), work.on(device)
    eager_step = recorded.training_step()
    step = tg.jit(compiled.training_step())

    def lazily() -> float:
        return eager_step(recorded.inputs, recorded.targets).item()

    def jitted() -> float:
        return step(compiled.inputs, compiled.targets).item()

    with tg.lazy():
        ours = [lazily() for _ in range(3)]
    theirs = [jitted() for _ in range(3)]
    assert all(abs(a - b) < 1e-3 for a, b in zip(ours, theirs, strict=True)), (ours, theirs)
    seconds: dict[str, list[float]] = {"lazy": [], "jit": []}
    for _ in range(ROUNDS):
        with tg.lazy():
            seconds["lazy"].append(burst(lazily))
        seconds["jit"].append(burst(jitted))
    best = {name: min(found) for name, found in seconds.items()}
    return [Row("lazy training step, GPT", best["lazy"], best["jit"], "tg.jit", LIMIT)]
