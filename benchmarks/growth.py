"""How the cost of compiling grows with depth, and memory with parameters: GPTs, a training step of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.measure import Row
from benchmarks.models import FIRST, HAND, MEMORY, OURS, TRACE
from benchmarks.worker import Worker

DEPTHS = (2, 8, 24, 48)
NARROW = {"width": 96, "heads": 6, "length": 32, "words": 64}  # so that compiling is what is measured
SIZES = {"1 M": (128, 4), "10 M": (384, 6), "100 M": (1024, 8), "500 M": (1536, 17)}  # width and layers
BYTES_FOR_EACH = 24  # parameter: itself, two of the optimizer, as many while they are made


def deep() -> Iterator[Row]:
    for layers in DEPTHS:
        options = {**NARROW, "layers": layers}
        traced, first = {}, {}
        for name in (OURS, HAND):
            with Worker(name, ("gpt", options), True) as worker:
                first[name] = worker.ask("first")[1]
                traced[name] = min(worker.ask("trace") for _ in range(2))
        what = f"GPT of {layers} layers, training step"
        yield Row(f"{what}, tracing", traced[OURS], traced[HAND], "jax.make_jaxpr by hand", TRACE)
        yield Row(f"{what}, first call", first[OURS], first[HAND], HAND, FIRST)


def wide() -> Iterator[Row]:
    for size, (width, layers) in SIZES.items():
        needed = 12 * layers * width**2 * BYTES_FOR_EACH
        if needed > available():
            print(f"left out: {size} parameters need {needed / 1e9:.0f} GB, {available() / 1e9:.0f} GB are free")
            continue
        options: dict[str, Any] = {"width": width, "layers": layers, "heads": 8, "length": 64, "words": 256, "batch": 1}
        found = {}
        for name in (OURS, HAND):
            with Worker(name, ("gpt", options), True) as worker:
                found[name] = worker.ask("memory")
        yield Row(f"GPT of {size} parameters, memory", found[OURS], found[HAND], HAND, MEMORY, unit="B")


def available() -> int:
    """Bytes of memory that nobody uses (Linux)."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def measure() -> Iterator[Row]:
    yield from deep()
    yield from wide()
