"""One subject in a process of its own, on one core, that does what it is told on its standard input.

Peers that own the same dispatch key of PyTorch cannot share a process, and the first call of a process is one that a
user sees. Idle workers take no time from the one that is asked.
"""

from __future__ import annotations

import compileall
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorgraft

ONE_CORE = {
    "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),  # `benchmarks.run --platform`
    "OMP_NUM_THREADS": "1",
    "TENSORGRAFT_CACHE": "0",  # what is timed is compiled here
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
}

SETTINGS = {  # of subjects
    "torchax": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "tensorgraft, eager, memory apart": {"TENSORGRAFT_TIER": "none"},
    "tensorgraft, every operator compiled": {"TENSORGRAFT_EAGER": "compiled"},
}


def as_installed() -> dict[str, str]:
    """This process's environment for others, once our modules have their bytecode, as pip leaves them."""
    compileall.compile_dir(Path(tensorgraft.__file__).parent, quiet=2)
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def pinned() -> None:
    """This process and its threads on one of the cores that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


class Worker:
    """`work` is a function of `benchmarks.networks` and its arguments: ("gpt", {"layers": 2})."""

    def __init__(self, subject: str, work: tuple[str, dict[str, Any]], training: bool, cache: str = "0") -> None:
        """`cache`: a folder of compiled programs that other processes use as well."""
        self.subject = subject
        environment = {**os.environ, **ONE_CORE, "TENSORGRAFT_CACHE": cache, **SETTINGS.get(subject, {})}
        if cache != "0":
            environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, "-m", "benchmarks.worker", subject, json.dumps(work), json.dumps(training)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, what: str, *args: Any) -> Any:
        """Raises RuntimeError with the last line that the process wrote where it has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([what, *args]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            lines = self._process.stderr.read().strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"{self.subject} ended")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: Any, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def serve(subject: str, work: tuple[str, dict[str, Any]], training: bool) -> None:
    pinned()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    time.perf_counter = time.process_time  # the machine is busy, and `tg.jit` reports in it
    import torch
    from benchmarks.subjects import SUBJECTS

    torch.set_num_threads(1)
    name, options = work
    made = getattr(importlib.import_module("benchmarks.networks"), name)(**options)
    begun = time.process_time()  # PyTorch is imported, which makes the network
    it = SUBJECTS[subject](made, training)

    def first() -> list[float]:
        """The value of the first call, its seconds, and those with the imports of everything beside PyTorch."""
        start = time.process_time()
        value = it.call()
        return [value, time.process_time() - start, time.process_time() - begun]

    def calls(n: int) -> list[float]:
        return [it.call() for _ in range(n)]

    def burst(n: int) -> float:
        start = time.process_time()
        for _ in range(n):
            it.call()
        return (time.process_time() - start) / n

    def elapsed(n: int) -> list[float]:
        """Seconds from the beginning of the first call to the end of each, of all threads, which share the core."""
        start = time.process_time()
        return [(it.call(), time.process_time() - start)[1] for _ in range(n)]

    does = {"ready": lambda: True, "first": first, "calls": calls, "burst": burst, "elapsed": elapsed,
            "trace": it.trace, "memory": it.memory}  # fmt: skip
    for line in sys.stdin:
        what, *args = json.loads(line)
        action = does[what]
        answers.write(json.dumps(action(*args) if action else None) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
