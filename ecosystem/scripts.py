"""PyTorch scripts: by `python`, and by `tensorgraft run`, which puts a backend in the place of CUDA."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ecosystem.compare import FLOAT32, Differs, apart
from ecosystem.outcome import Outcome

PROGRAMS = Path(__file__).parent / "programs" / "torch"
RUN = (sys.executable, "-W", "ignore", "-c", "from tensorgraft.cli import main; main()", "run", "--strict-fallbacks")
LIMIT = 1200  # seconds


# packages that are not installed with the others: a program that needs one runs where it is (pip install ...)
EXTRA = {"graph_networks": "torch_geometric"}


def names() -> list[str]:
    return [name for name in sorted(path.stem for path in PROGRAMS.glob("*.py")) if is_installed(name)]


def is_installed(name: str) -> bool:
    return name not in EXTRA or find_spec(EXTRA[name]) is not None


def run(name: str, backend: str) -> Outcome:
    """The script on `backend`, compared with its native run; a fall-back to the CPU is a failure."""
    outcome = Outcome("torch", name, backend, tolerance=FLOAT32)
    try:
        want, outcome.native = native(name)
        got, outcome.seconds = _process([*RUN, "--on", backend], name)
        outcome.apart = apart(want, got)
    except (Differs, RuntimeError) as error:
        outcome.error = str(error)
    return outcome


@cache
def native(name: str) -> tuple[Any, float]:
    return _process([sys.executable, "-W", "ignore"], name)


def _process(command: list[str], name: str) -> tuple[Any, float]:
    """What the program printed last, and its CPU seconds, those of its children included."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    before = _cpu_seconds()
    try:
        done = subprocess.run(
            [*command, str(PROGRAMS / f"{name}.py")], capture_output=True, text=True, env=environment, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"more than {LIMIT} s") from None
    seconds = _cpu_seconds() - before
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1]), seconds


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
