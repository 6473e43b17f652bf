"""Collectives of two processes on JAX: computed by XLA, against gloo on copies in the host's memory, which is what
other backends have; a step of `DistributedDataParallel` by both, and in `tg.jit` against the eager one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, interleaved

PROCESSES, CALLS, ROUNDS = 2, 20, 10


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
        environment = os.environ | {"TENSORGRAFT_BACKEND": "jax"}
        subprocess.run([*launcher, "-m", "benchmarks.collectives", str(out)], env=environment, check=True)
        for name, (ours, reference), against in json.loads(out.read_text()):
            yield Row(name, ours, reference, against)


def by_gloo(fn: Callable[[], object]) -> Callable[[], object]:
    """`fn` where no collective is computed by the devices."""
    from tensorgraft.frontends.torch.device.collective_rules import RULES

    def call() -> None:
        rules = dict(RULES)
        RULES.clear()
        try:
            fn()
        finally:
            RULES.update(rules)

    return call


def subjects() -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    import torch
    import torch.distributed as dist
    from torch import nn

    import tensorgraft as tg

    device = tg.device("jax")
    for size in (1, 1 << 18, 1 << 22):
        x = torch.ones(size, device=device)

        def reduce(x: torch.Tensor = x) -> None:
            dist.all_reduce(x, dist.ReduceOp.AVG)
            tg.to_backend_array(x).block_until_ready()

        what = f"{4 * size / 2**20:g} MB" if size > 1 else "4 B"
        yield f"all_reduce of {what}", {"XLA": reduce, "gloo on copies": by_gloo(reduce)}

    x = torch.randn(32, 512).to(device)

    def training(compiled: bool) -> Callable[[], object]:
        layers = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)]
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> torch.Tensor:
            loss: torch.Tensor = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = tg.jit(step, compile="first") if compiled else step
        return lambda: run().item()

    eager = training(compiled=False)
    yield "a step of DDP", {"XLA": eager, "gloo on copies": by_gloo(eager)}
    yield "a step of DDP in tg.jit", {"XLA": training(compiled=True), "eager, XLA": eager}


def main(out: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("graft")
    found: list[Any] = []
    for name, pair in subjects():
        for clock, of in ((time.perf_counter, "passed"), (time.process_time, "computed")):
            dist.barrier()
            seconds = interleaved(pair, CALLS, ROUNDS, clock)
            found.append((f"{name}, time {of}", list(seconds.values()), list(pair)[1]))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
