"""What an operator costs at a shape that it has not had before, where nothing is compiled: on NumPy.

Each is called at some new sizes, then again at the same ones, in several rounds. The arrays are so small that the
arithmetic is nothing, and what a first call costs more than a second is its plan.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.measure import Row
from torch.nn import functional as F

import tensorgraft as tg

SHAPES, ROUNDS, WARM = 5, 20, 6
LIMIT = 3.0  # of a new shape / a seen one
Call = Callable[[], object]


def randn(device: Any, *size: int) -> torch.Tensor:
    return torch.randn(*size).to(device)


def _adam(d: Any, n: int) -> Call:
    parameters = [torch.nn.Parameter(randn(d, n, 4)), torch.nn.Parameter(randn(d, n))]
    for p in parameters:
        p.grad = p.detach().clone()
    optimizer = torch.optim.Adam(parameters)
    return optimizer.step


def _over(operator: Callable[..., Any], *sizes: Callable[[int], tuple[int, ...]], **options: Any) -> Any:
    """`operator` on tensors of these sizes."""

    def prepared(d: Any, n: int) -> Call:
        tensors = [randn(d, *size(n)) for size in sizes]
        return lambda: operator(*tensors, **options)

    return prepared


def _at(operator: Callable[..., Any]) -> Any:
    """`operator` on a table and integers, some of its rows."""

    def prepared(d: Any, n: int) -> Call:
        table, rows = randn(d, n, 4), torch.arange(n).to(d)
        return lambda: operator(table, rows)

    return prepared


OPERATORS: dict[str, Callable[[Any, int], Call]] = {
    "mul": _over(torch.mul, lambda n: (n, 5), lambda n: (n, 5)),
    "add, broadcast": _over(torch.add, lambda n: (n, 5), lambda n: (5,)),
    "matmul": _over(torch.matmul, lambda n: (n, 5), lambda n: (5, 6)),
    "linear": _over(F.linear, lambda n: (n, 5), lambda n: (6, 5), lambda n: (6,)),
    "softmax": _over(torch.softmax, lambda n: (n, 5), dim=-1),
    "layer_norm": _over(lambda x: F.layer_norm(x, (5,)), lambda n: (n, 5)),
    "conv2d": _over(F.conv2d, lambda n: (1, 2, n, 8), lambda n: (3, 2, 3, 3), padding=1),
    "sum": _over(torch.sum, lambda n: (n, 5)),
    "mean over an axis": _over(torch.mean, lambda n: (n, 5), dim=1),
    "cat": _over(lambda x, y: torch.cat((x, y)), lambda n: (n, 5), lambda n: (3, 5)),
    "index_select": _at(lambda table, rows: torch.index_select(table, 0, rows)),
    "embedding": _at(lambda table, rows: F.embedding(rows, table)),
    "transposed + add": _over(lambda x, y: x.t() + y, lambda n: (n, 5), lambda n: (5, n)),
    "gelu": _over(F.gelu, lambda n: (n, 5)),
    "cross_entropy": _at(lambda table, rows: F.cross_entropy(table, rows % 4)),
    "Adam step": _adam,
}


def seconds(prepared: Callable[[Any, int], Call], device: Any) -> tuple[float, float]:
    """CPU seconds of a call at a new shape, and of one at a seen one: of the quickest burst of each."""
    known = [prepared(device, n) for n in range(2, 2 + WARM)]  # the operator is not new
    new, seen = [], []
    gc.collect()
    gc.disable()
    for start in range(2 + WARM, 2 + WARM + ROUNDS * SHAPES, SHAPES):
        calls = [prepared(device, n) for n in range(start, start + SHAPES)]
        _burst(known)
        first, *later = (_burst(calls) for _ in range(6))
        new.append(first)
        seen += later
    gc.enable()
    return min(new), min(seen)


def _burst(calls: list[Call]) -> float:
    start = time.process_time()
    for call in calls:
        call()
    return (time.process_time() - start) / len(calls)


def measure() -> Iterator[Row]:
    device = tg.device("numpy")
    with torch.no_grad():
        for name, prepared in OPERATORS.items():
            new, seen = seconds(prepared, device)
            native, _ = seconds(prepared, "cpu")
            yield Row(f"{name} at a new shape, on NumPy", new, seen, "at a seen one", LIMIT)
            yield Row(f"{name} at a new shape, on NumPy", new, native, "CPU PyTorch")
