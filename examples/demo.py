"""Train two unmodified PyTorch scripts natively, on JAX (eager and compiled) and on NumPy, and compare the runs.

    python examples/demo.py     # or `make demo`; the table also goes to out/demo.json, the curves to out/demo.png

Fails where a loss curve leaves the native one by more than 1e-3, or the accuracy by more than one sample in a hundred.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

HERE = Path(__file__).parent
SCRIPTS = {"digits": ("pytorch/digits.py", 250), "gpt": ("pytorch/gpt.py", 150)}  # with the steps that each is given
RUN = ("-m", "tensorgraft", "run", "--on")
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # what stands before the script, and after its arguments
    "PyTorch": ((), ()),
    "JAX, eager": ((*RUN, "jax"), ()),
    "JAX, compiled": ((*RUN, "jax"), ("--compile",)),
    "NumPy": ((*RUN, "numpy"), ()),
}
NATIVE = "PyTorch"
CURVES_WITHIN = 1e-3
ACCURACY_WITHIN = 0.01
# Every run computes on one core: with more, the threads of PyTorch and NumPy spin while they wait for one another,
# and on a machine that has other work their times say nothing.
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
WARM_UP = 5  # steps that are not timed: they load, trace and compile


@dataclass
class Outcome:
    """One run of one script."""

    script: str
    on: str
    losses: list[float]
    accuracy: float
    step_seconds: float  # the median after the warm-up
    total_seconds: float
    remarks: str = ""  # what the run printed to standard error
    difference: float = 0.0  # the largest over the curve, from the native run
    ratio: float = 1.0  # of the time per step to the native one

    def compare(self, native: Outcome) -> None:
        self.difference = max(abs(a - b) for a, b in zip(self.losses, native.losses, strict=True))
        self.ratio = self.step_seconds / native.step_seconds

    def agrees(self, native: Outcome) -> bool:
        return self.difference <= CURVES_WITHIN and abs(self.accuracy - native.accuracy) <= ACCURACY_WITHIN


class Failed(Exception):
    """A script ended with an error; the text is what it said."""


def train(script: str, on: str, steps: int, progress: Progress) -> Outcome:
    """Run a script in a process of its own. Raises Failed."""
    before, after = WAYS[on]
    task = progress.add_task(f"{script} on {on}", total=steps)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        curve, errors = Path(folder, "curve.json"), Path(folder, "errors.txt")
        path = str(HERE / SCRIPTS[script][0])
        command = [sys.executable, *before, path, "--steps", str(steps), "--save-curve", str(curve), *after]
        # PyTorch loads the devices that are installed, and offers ours as its accelerator. Native means without it.
        env = {**os.environ, **ONE_CORE, **({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if on == NATIVE else {})}
        with (
            errors.open("w") as sink,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=env) as child,
        ):
            assert child.stdout is not None
            for line in child.stdout:
                if step := re.match(r"step +(\d+)", line):
                    progress.update(task, completed=int(step[1]) + 1)
        remarks = errors.read_text()
        if child.returncode:
            raise Failed(f"{script} on {on} ended with exit code {child.returncode}:\n{remarks}")
        saved = json.loads(curve.read_text())
    total = time.perf_counter() - start
    step_seconds = statistics.median(saved["times"][WARM_UP:] or saved["times"])
    return Outcome(script, on, saved["losses"], saved["accuracy"], step_seconds, total, remarks.strip())


def table(outcomes: list[Outcome]) -> Table:
    numbers = ("final loss", "accuracy", "difference", "per step", "ratio", "in all")
    result = Table("script", Column("on", no_wrap=True), *(Column(name, justify="right") for name in numbers))
    previous = None
    for o in outcomes:
        if previous not in (None, o.script):
            result.add_section()
        result.add_row(
            "" if previous == o.script else o.script,
            o.on,
            f"{o.losses[-1]:.5f}",
            f"{o.accuracy:.2%}",
            "" if o.on == NATIVE else f"{o.difference:.1e}",
            f"{o.step_seconds * 1e3:.1f} ms",
            "" if o.on == NATIVE else f"{o.ratio:.2f}",
            f"{o.total_seconds:.0f} s",
        )
        previous = o.script
    return result


def plot(outcomes: list[Outcome], path: Path) -> None:
    """The loss curves, and below each its distance from the native one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scripts = list(dict.fromkeys(o.script for o in outcomes))
    figure, axes = plt.subplots(
        2, len(scripts), figsize=(6 * len(scripts), 6), sharex="col", squeeze=False, height_ratios=[2, 1]
    )
    for (upper, lower), script in zip(axes.T, scripts, strict=True):
        runs = [o for o in outcomes if o.script == script]
        native = runs[0]
        upper.plot(native.losses, color="0.75", linewidth=5, label=native.on)
        for run, style in zip(runs[1:], ("-", "--", ":"), strict=False):
            upper.plot(run.losses, style, linewidth=1.3, label=run.on)
            away = [max(abs(a - b), 1e-9) for a, b in zip(run.losses, native.losses, strict=True)]
            lower.plot(away, style, linewidth=1.0, label=run.on)
        lower.axhline(CURVES_WITHIN, color="0.4", linewidth=0.8)
        lower.annotate(
            "allowed", (0, CURVES_WITHIN), xytext=(2, 2), textcoords="offset points", fontsize=8, color="0.4"
        )
        lower.set(yscale="log", xlabel="step", ylabel=f"distance from {native.on}", ylim=(5e-10, 1e-2))
        upper.set(title=SCRIPTS[script][0], ylabel="training loss")
        upper.legend(frameon=False)
        for axis in (upper, lower):
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--steps", type=int, help="steps of training, instead of each script's own number")
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()

    console = Console()
    if not console.is_terminal:
        console.width = 110
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for script in args.scripts:
            for on in WAYS:
                try:
                    outcomes.append(train(script, on, args.steps or SCRIPTS[script][1], progress))
                except Failed as error:
                    progress.stop()
                    console.print(str(error), style="red", markup=False, highlight=False)
                    return 1
    native = {o.script: o for o in outcomes if o.on == NATIVE}
    for o in outcomes:
        o.compare(native[o.script])
    console.print(table(outcomes))
    console.print(
        f"accuracy: held out; difference: the largest from {NATIVE} over the loss curve; per step: median after"
        f" {WARM_UP} steps, on one core; ratio: to {NATIVE}",
        style="dim",
        highlight=False,
    )
    for o in outcomes:
        if o.remarks:
            console.print(f"\n{o.script} on {o.on} said:\n{o.remarks}", markup=False, highlight=False)

    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "demo.json").write_text(json.dumps([asdict(o) for o in outcomes]))
    plot(outcomes, args.out / "demo.png")
    console.print(f"curves: {args.out / 'demo.png'}", highlight=False)
    strays = [o for o in outcomes if not o.agrees(native[o.script])]
    for o in strays:
        console.print(f"{o.script} on {o.on} does not agree with {NATIVE}", style="red")
    return 1 if strays else 0


if __name__ == "__main__":
    raise SystemExit(main())
