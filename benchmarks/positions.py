"""100 calls of operations in which a position or a number of Python changes from call to call, and nothing else: what
they cost, and how many programs XLA compiles for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import jax
import torch
from benchmarks.measure import Row

import tensorgraft as tg

CALLS = 100
SECONDS = 30  # ours / PyTorch's
PROGRAMS = 2  # for all calls
Call = Callable[[int], object]


def calls(device: torch.device) -> dict[str, Call]:
    """What is called with 0, 1, 2, ..."""
    x = torch.arange(1200.0).reshape(300, 4).to(device)
    square = torch.arange(10000.0).reshape(100, 100).to(device)
    row, ones = torch.ones(4).to(device), torch.ones(4, 1).to(device)

    def element(i: int) -> None:
        x[i, 1] = float(i)

    def whole(i: int) -> None:
        x[i] = row

    def by_view(i: int) -> None:
        x[i][1] = 2.0

    def block(i: int) -> None:
        x[i : i + 5] = 0.5

    def by_tensor(i: int) -> None:
        x[torch.tensor(i).to(device)] = row

    return {
        "x[i, 1] = number": element,
        "x[i] = row": whole,
        "x[i][1] = 2.0": by_view,
        "x[i : i + 5] = 0.5": block,
        "x[tensor i] = row": by_tensor,
        "x[i] + 1": lambda i: x[i] + 1,
        "float(x[i, 1])": lambda i: float(x[i, 1]),
        "x[i : i + 5].sum()": lambda i: x[i : i + 5].sum(),
        "x.narrow(0, i, 4) @ w": lambda i: x.narrow(0, i, 4) @ ones,
        "x.select(0, i).exp()": lambda i: x.select(0, i).exp(),
        "x.roll(i)": lambda i: x.roll(i, 0),
        "x.diagonal(i)": lambda i: square.diagonal(i)[:1] * 2,
        "x * number": lambda i: x * (0.5 + i),
        "x ** number": lambda i: row ** (1.5 + i),
        "arange(i, i + 5)": lambda i: torch.arange(i, i + 5, device=device) * 2,
        "x.tril(i)": lambda i: square.tril(i),
    }


def listening() -> list[str]:
    """A list that grows by one with each program that XLA compiles."""
    compiled: list[str] = []

    def heard(event: str, duration: float, **more: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    return compiled


def compare(n: int = CALLS, only: tuple[str, ...] = ()) -> Iterator[Row]:
    compiled = listening()
    ours, native = calls(tg.device("jax")), calls(torch.device("cpu"))
    ours["x[i] + 1"](0)  # start-up
    for name in only or ours:
        seconds = {}
        compiled.clear()
        for subject, call in (("ours", ours[name]), ("native", native[name])):
            start = time.process_time()
            for i in range(n):
                call(i)
            seconds[subject] = time.process_time() - start
        programs = float(len(compiled))
        yield Row(f"{n} calls of {name}", seconds["ours"], seconds["native"], "CPU PyTorch", SECONDS)
        yield Row(f"{n} calls of {name}, programs", programs, float(n), "calls", PROGRAMS / n, unit="")


def measure() -> Iterator[Row]:
    with torch.no_grad():
        yield from compare()
