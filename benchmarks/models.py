"""GPT-2 (our own and that of `transformers`), ResNet-18 and LSTM, inference and whole training steps: `tg.jit` against
JAX by hand and the peers.

CPU time of one core. All subjects start from the same parameters and see the same batch, and are compared only after
they have computed the same; bursts of them take turns.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.measure import Row
from benchmarks.worker import Worker

ROUNDS = 7
CHECKED = 3  # calls
TRACES = 3
LIMITS = {"gpt": 1.05, "resnet": 0.3, "lstm": 1.05, "public_gpt": 1.05}
PYTORCH = {("resnet", True): 1.2, ("lstm", True): 1.3}  # of training steps / CPU PyTorch's
NAMES = {"gpt": "GPT-2", "resnet": "ResNet-18", "lstm": "LSTM", "public_gpt": "transformers' GPT-2"}
MEMORY, FIRST, TRACE = 1.1, 1.5, 4.0
OURS, HAND = "tensorgraft", "JAX by hand"
WITHOUT = "BENCHMARKS_WITHOUT"  # environment variable: names of peers, with commas


def peers() -> dict[str, str | None]:
    """The other subjects, and why one is left out."""
    compiler = None if shutil.which("g++") or shutil.which("clang++") else "torch.compile needs a C++ compiler"
    torchax = None if importlib.util.find_spec("torchax") else "torchax is not installed"
    found = {"CPU PyTorch": None, "torch.compile": compiler, "torchax": torchax}
    unwanted = os.environ.get(WITHOUT, "").split(",")
    return {name: f"{name} is not wanted" if name in unwanted else reason for name, reason in found.items()}


def compare(work: str, training: bool) -> list[Row]:
    """Raises AssertionError where ours and the hand-written do not compute the same."""
    what = f"{NAMES[work]}, {'training step' if training else 'inference'}"
    others = [name for name, reason in peers().items() if reason is None]
    wrong = {}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, (work, {}), training)) for name in (OURS, HAND, *others)}
        values, first, imported = {}, {}, {}
        for name, worker in list(workers.items()):
            try:
                value, first[name], imported[name] = worker.ask("first")
                values[name] = [value, *worker.ask("calls", CHECKED - 1)]
            except RuntimeError as error:
                if name in (OURS, HAND):
                    raise
                print(f"{name} fails at {what}: {error}")
                del workers[name]
        for name, found in values.items():
            apart = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, values[HAND], strict=True))
            assert apart < 1e-3 or name not in (OURS, HAND), f"{what}: {found}, {HAND} {values[HAND]}"
            wrong[name] = apart >= 1e-3
        bursts: dict[str, list[float]] = {name: [] for name in workers}
        once = {name: worker.ask("burst", 1) for name, worker in workers.items()}
        calls = {name: max(1, int(0.3 / seconds)) for name, seconds in once.items()}
        for _ in range(ROUNDS):
            for name, worker in workers.items():
                bursts[name].append(worker.ask("burst", calls[name]))
        best = {name: min(found) for name, found in bursts.items()}
        memory = [workers[name].ask("memory") for name in (OURS, HAND)]
        traces = [min(workers[name].ask("trace") for _ in range(TRACES)) for name in (OURS, HAND)]
    rows = [Row(what, best[OURS], best[HAND], HAND, LIMITS[work])]
    for n in workers:
        if n not in (OURS, HAND):
            promise = PYTORCH.get((work, training)) if n == "CPU PyTorch" else None
            rows.append(Row(what, best[OURS], best[n], n + " (other values)" * wrong[n], promise))
    rows.append(Row(f"{what}, first call", first[OURS], first[HAND], HAND, FIRST))
    rows.append(Row(f"{what}, imports and first call", imported[OURS], imported[HAND], HAND))
    rows += [Row(f"{what}, first call", first[OURS], first[n], n) for n in ("torch.compile", "torchax") if n in workers]
    rows.append(Row(f"{what}, memory", *memory, HAND, MEMORY, unit="B"))
    rows.append(Row(f"{what}, tracing", *traces, "jax.make_jaxpr by hand", TRACE))
    return rows


def measure() -> Iterator[Row]:
    for reason in peers().values():
        if reason is not None:
            print(f"left out: {reason}")
    for work in NAMES:
        for training in (False, True):
            yield from compare(work, training)
