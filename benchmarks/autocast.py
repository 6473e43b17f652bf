"""What autocast costs where nothing is computed: a product of 4 x 4 matrices, inside a region and outside."""

from __future__ import annotations

import functools

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

CALLS, ROUNDS = 1000, 15


def outside(a: torch.Tensor, b: torch.Tensor) -> None:
    with torch.no_grad():
        for _ in range(CALLS):
            torch.mm(a, b)


def inside(a: torch.Tensor, b: torch.Tensor) -> None:
    with torch.autocast("graft", dtype=torch.bfloat16):
        outside(a, b)


def measure() -> list[Row]:
    rows = []
    for name in ("jax", "numpy"):
        full = torch.ones(4, 4).to(tg.device(name))
        low, weight = full.bfloat16(), full.clone().requires_grad_()
        subjects = {
            "outside": functools.partial(outside, low, low),
            "nothing to cast": functools.partial(inside, low, low),
            "a weight": functools.partial(inside, low, weight),
            "two casts": functools.partial(inside, full, full),
        }
        seconds = {what: s / CALLS for what, s in interleaved(subjects, 1, ROUNDS).items()}
        rows += [
            Row(f"mm under autocast on {name}: {what}", seconds[what], seconds["outside"], "outside")
            for what in ("nothing to cast", "a weight", "two casts")
        ]
    return rows
