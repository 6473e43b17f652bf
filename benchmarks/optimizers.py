"""A step of Adam with moments of 8 bits, against PyTorch's Adam, and torchao's of 8 bits where that is installed: four
matrices of 512 x 512. On the CPU's own tensors and, compiled, on devices of ours. And the memory of the state.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg
from tensorgraft.hub import registry

SIZE, COUNT, ROUNDS, CALLS = 512, 4, 8, 3
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def measure() -> list[Row]:
    makers: dict[str, Make] = {
        "Adam8bit": lambda params: tg.quantization.Adam8bit(params, 1e-3),
        "Adam": lambda params: torch.optim.Adam(params, 1e-3),
    }
    if importlib.util.find_spec("torchao"):
        makers["torchao's"] = _torchaos
    here = {name: _step(make, torch.device("cpu"))[0] for name, make in makers.items()}
    seconds = interleaved(here, CALLS, ROUNDS, time.process_time)
    rows = [
        Row(f"step of Adam8bit, against {name}, on the CPU", seconds["Adam8bit"], seconds[name], name)
        for name in makers
        if name != "Adam8bit"
    ]
    for backend in registry.backends():
        if backend == "numpy":
            continue
        device = tg.device(backend)
        subjects = {name: _step(makers[name], device, compiled=True)[0] for name in ("Adam8bit", "Adam")}
        seconds = interleaved(subjects, CALLS, ROUNDS, time.process_time)
        name = f"step of Adam8bit, compiled, on {backend}"
        rows.append(Row(name, seconds["Adam8bit"], seconds["Adam"], "Adam"))
    kept = {name: _kept(_step(makers[name], torch.device("cpu"))[1]) for name in ("Adam8bit", "Adam")}
    rows.append(Row("memory of Adam8bit's state", kept["Adam8bit"], kept["Adam"], "Adam", 0.27, unit="B"))
    return rows


def _step(make: Make, device: Any, compiled: bool = False) -> tuple[Callable[[], object], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(COUNT):
        p = torch.nn.Parameter(torch.randn(SIZE, SIZE, generator=generator).to(device))
        p.grad = torch.randn(SIZE, SIZE, generator=generator).to(device)
        params.append(p)
    optimizer = make(params)

    def step(p: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        return p.detach()[0, 0].clone()

    run = tg.jit(step) if compiled else step
    return (lambda: run(params[0]).item()), optimizer


def _torchaos(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit

    return AdamW8bit(params, 1e-3, weight_decay=0.0)


def _kept(optimizer: torch.optim.Optimizer) -> float:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()
    return sum(v.numel() * v.element_size() for entries in optimizer.state.values() for v in entries.values())
