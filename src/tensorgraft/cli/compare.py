"""`tensorgraft compare`: one program on several backends, side by side: results, gradients, time, memory."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Column, Table

from tensorgraft import files
from tensorgraft.cli.subject import NATIVE
from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.hub import registry

_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
USAGE_ERROR = 2


@dataclass
class Outcome:
    """The outcome on one backend: times, memory, and differences from the first backend, or the error."""

    backend: str
    error: str | None = None
    first: float = 0.0  # seconds
    seconds: list[float] = field(default_factory=list)
    memory: int | None = None  # bytes, in addition to those before the first call
    results: float | None = None  # the largest difference from the first backend's, relative to their largest
    gradients: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else self.first

    @property
    def spread(self) -> float:
        """The distance between the quartiles."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return high - low


def compare(
    target: str,
    arguments: Sequence[str],
    on: Sequence[str],
    *,
    repeat: int = 10,
    tolerance: float = 1e-4,
    out: Path | None = None,
    plot: Path | None = None,
) -> int:
    """Print the table; returns 0 where all backends agree, 1 where one differs or fails, 2 for wrong usage."""
    console = Console(stderr=out == Path("-"))
    script = target.endswith(".py")
    try:
        if not script and ":" not in target:
            raise ValueError(f"{target!r}: expected script.py, module:function or file.py:function")
        for backend in on:
            if backend not in NATIVE:
                registry.lookup(registry.parse(backend)[0])
    except (BackendNotAvailableError, ValueError) as error:
        console.print(f"tensorgraft: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return USAGE_ERROR
    outcomes, values = [], []
    with tempfile.TemporaryDirectory() as folder:
        for k, backend in enumerate(on):
            with console.status(f"{target} on {backend}"):
                result, value = (
                    _script(target, arguments, backend)
                    if script
                    else _function(target, backend, repeat, Path(folder) / str(k))
                )
            outcomes.append(result)
            values.append(value)
    for result, value in zip(outcomes, values, strict=True):
        if result.error is None and outcomes[0].error is None:
            result.results = _difference(values[0], value, "r/")
            result.gradients = _difference(values[0], value, "g/")
    console.print(_table(target, outcomes, tolerance))
    for result in outcomes:
        if result.error is not None:
            console.print(f"{result.backend}: {result.error}", style="red", markup=False, highlight=False)
    if out is not None:
        rows = [{**asdict(o), "median": o.median, "spread": o.spread} for o in outcomes]
        text = json.dumps({"program": target, "tolerance": tolerance, "outcomes": rows}, indent=1)
        print(text) if out == Path("-") else files.write(out, text.encode())
    if plot is not None:
        _plot(plot, target, outcomes)
    return 0 if all(_agrees(o, tolerance) for o in outcomes) else 1


def _agrees(o: Outcome, tolerance: float) -> bool:
    return o.error is None and all(d is None or d <= tolerance for d in (o.results, o.gradients))


def _function(target: str, backend: str, repeat: int, out: Path) -> tuple[Outcome, dict[str, np.ndarray]]:
    command = [sys.executable, "-m", "tensorgraft.cli.subject", target, backend, str(repeat), str(out)]
    completed = subprocess.run(command, capture_output=True, text=True, env=_environment(backend))
    if completed.returncode:
        return Outcome(backend, error=_last_line(completed.stderr)), {}
    measured = json.loads(Path(f"{out}.json").read_text())
    with np.load(f"{out}.npz") as file:
        return Outcome(backend, None, measured["first"], measured["seconds"], measured["memory"]), dict(file)


def _script(target: str, arguments: Sequence[str], backend: str) -> tuple[Outcome, dict[str, np.ndarray]]:
    """Return the whole script; its results are the numbers that it prints."""
    run = [] if backend in NATIVE else ["-m", "tensorgraft", "run", "--on", backend]
    start = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, *run, target, *arguments], capture_output=True, text=True, env=_environment(backend)
    )
    seconds = time.perf_counter() - start
    if completed.returncode:
        return Outcome(backend, error=_last_line(completed.stderr)), {}
    numbers = np.array([float(n) for n in _NUMBER.findall(completed.stdout)])
    return Outcome(backend, None, seconds), {"r/printed numbers": numbers}


def _environment(backend: str) -> dict[str, str]:
    # backends are compared: none is to leave its work to a cold tier
    settings = {} if backend in NATIVE else {"TENSORGRAFT_BACKEND": backend, "TENSORGRAFT_EAGER": "compiled"}
    return {**os.environ, **settings}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the process ended without any output"


def _difference(reference: dict[str, np.ndarray], values: dict[str, np.ndarray], kind: str) -> float | None:
    """Return the largest difference, relative to the largest value of its array; inf where shapes or names differ."""
    names = {k for k in reference if k.startswith(kind)}
    if names != {k for k in values if k.startswith(kind)}:
        return float("inf")
    largest = 0.0 if names else None
    for name in names:
        a, b = reference[name], values[name]
        if a.shape != b.shape:
            return float("inf")
        if not a.size:
            continue
        with np.errstate(all="ignore"):
            wide = np.result_type(a, b, np.float64)
            a, b = a.astype(wide), b.astype(wide)
            is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
            differences = np.where(is_equal, 0.0, np.abs(a - b))
            scale = np.max(np.abs(a), initial=0.0, where=np.isfinite(a)) or 1.0
        found_here = float(np.max(differences) / scale)
        largest = max(largest or 0.0, float("inf") if np.isnan(found_here) else found_here)
    return largest


def _table(target: str, outcomes: Sequence[Outcome], tolerance: float) -> Table:
    reference = outcomes[0]
    names = ("results", "grads", "first call", "median", "spread", f"/ {reference.backend}", "memory")
    table = Table(
        Column("backend", no_wrap=True),
        *(Column(n, justify="right", no_wrap=True) for n in names),
        title=target,
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    for o in outcomes:
        if o.error is not None:
            table.add_row(o.backend, "failed", style="red")
            continue
        ratio = o.median / reference.median if reference.error is None and reference.median else float("nan")
        texts = ["" if o is reference else _difference_text(d) for d in (o.results, o.gradients)]
        table.add_row(
            o.backend,
            *texts,
            _time(o.first),
            _time(o.median) if o.seconds else "",
            _time(o.spread) if o.seconds else "",
            f"{ratio:.2f}",
            "" if o.memory is None else f"{o.memory / 2**20:.0f} MiB",
            style="" if _agrees(o, tolerance) else "red",
        )
    return table


def _difference_text(d: float | None) -> str:
    return "" if d is None else "equal" if d == 0 else f"{d:.1e}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    return ""


def _plot(path: Path, target: str, outcomes: Sequence[Outcome]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    successful: list[Any] = [o for o in outcomes if o.error is None]
    figure, axes = pyplot.subplots(figsize=(1.6 + 1.4 * len(successful), 3.6), layout="constrained")
    at = np.arange(len(successful))
    axes.bar(at - 0.2, [o.first * 1e3 for o in successful], 0.4, label="first call", color="#b8c4d6")
    axes.bar(
        at + 0.2,
        [o.median * 1e3 for o in successful],
        0.4,
        yerr=[o.spread * 500 for o in successful],
        label="median",
        color="#2f5d8a",
    )
    axes.set_xticks(at, [o.backend for o in successful])
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds")
    axes.set_title(target, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
