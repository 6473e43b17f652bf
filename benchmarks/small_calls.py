"""What calls on single elements and tiny tensors cost, of which loops over elements consist, against CPU PyTorch."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

CALLS, ROUNDS = 12, 100
Call = Callable[[], Any]


def calls(device: Any) -> dict[str, Call]:
    """Return calls by name, of tensors on a device."""
    x = torch.arange(60.0).reshape(3, 4, 5).to(device)
    a, b = (torch.arange(16.0).reshape(4, 4).add(n).to(device) for n in range(2))
    number, position, truth = (torch.tensor(value).to(device) for value in (3.0, 1, True))
    index, on_cpu = torch.zeros(1, 4, dtype=torch.int64).to(device), torch.ones(4, 4)

    def write(target: torch.Tensor, at: Any, value: Any) -> Call:
        return lambda: target.__setitem__(at, value)

    return {
        "x[i, j, k] = 5": write(x, (1, 2, 3), 5),
        "x[i, j, k] = tensor": write(x, (1, 2, 3), number),
        "x[i] = 5": write(x, 1, 5),
        "x[i] = row": write(a, 1, b[2]),
        "x[tensor] = 5": write(a, position, 5),
        "x[i]": lambda: x[1],
        "x[i, j, k]": lambda: x[1, 2, 3],
        "x[tensors]": lambda: a[index],
        "x.t()": a.t,
        "for row in x": lambda: list(a),
        "x.item()": number.item,
        "x[i, j, k].item()": lambda: x[1, 2, 3].item(),
        "float(x)": lambda: float(number),
        "int(x)": lambda: int(position),
        "bool(x)": lambda: bool(truth),
        "x.tolist()": a.tolist,
        'x.to("cpu")': lambda: a.to("cpu"),
        "x.to(device)": lambda: on_cpu.to(device),
        "torch.zeros": lambda: torch.zeros(3, 3, device=device),
        "torch.tensor": lambda: torch.tensor([1.0, 2.0], device=device),
        "torch.arange": lambda: torch.arange(5, device=device),
        "torch.randn": lambda: torch.randn(5, 5, device=device),
        "torch.randint": lambda: torch.randint(0, 5, (5, 5), device=device),
        "torch.randperm": lambda: torch.randperm(5, device=device),
        "x + y": lambda: a + b,
        "x @ y": lambda: a @ b,
        "x.sum()": a.sum,
        "x.fill_(1)": lambda: a.fill_(1),
        "x.copy_(y)": lambda: a.copy_(b),
        "x.scatter_": lambda: a.scatter_(0, index, 1.0),
        "torch.equal": lambda: torch.equal(a, b),
    }


def measure() -> Iterator[Row]:
    with torch.no_grad():
        ours, theirs = calls(tg.device("jax")), calls("cpu")
        logarithms = []
        for name, call in ours.items():
            seconds = interleaved({"ours": call, "theirs": theirs[name]}, CALLS, ROUNDS, time.process_time)
            row = Row(f"eager {name} on JAX", seconds["ours"], seconds["theirs"], "CPU PyTorch")
            logarithms.append(math.log(row.ratio))
            yield row
        mean = math.exp(sum(logarithms) / len(logarithms))
        yield Row("eager calls above on JAX, geometric mean of ratios", mean, 1.0, "CPU PyTorch", unit="")


if __name__ == "__main__":
    from benchmarks.run import shown

    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    with tg.eager("tiered"):
        for row in measure():
            print(f"{row.name}: {row.ratio:.2f}: {shown(row.ours, row.unit)}, {shown(row.reference, row.unit)}")
