"""What autocast costs where nothing is computed: an operator on 4 x 4, inside a region and outside."""

from __future__ import annotations

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

CALLS, ROUNDS = 1000, 15


def measure() -> list[Row]:
    rows = []
    for name in ("jax", "numpy"):
        full = torch.ones(4, 4).to(tg.device(name))
        low = full.bfloat16()
        weight = torch.ones(4, 4).to(tg.device(name)).requires_grad_()

        def inside(a: torch.Tensor, b: torch.Tensor) -> None:
            with torch.no_grad():
                for _ in range(CALLS):
                    torch.mm(a, b)

        def region(a: torch.Tensor, b: torch.Tensor) -> None:
            with torch.autocast("graft", dtype=torch.bfloat16):
                inside(a, b)

        subjects = {
            "outside": lambda: inside(low, low),
            "nothing to cast": lambda: region(low, low),
            "two casts": lambda: region(full, full),
            "a weight": lambda: region(low, weight),
        }
        seconds = {what: s / CALLS for what, s in interleaved(subjects, 1, ROUNDS).items()}
        rows += [
            Row(f"mm under autocast on {name}: {what}", seconds[what], seconds["outside"], "outside")
            for what in ("nothing to cast", "a weight", "two casts")
        ]
    return rows
