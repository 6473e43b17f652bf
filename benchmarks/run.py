"""Every number that the documentation gives, in one table: `make bench`, or `python -m benchmarks.run eager`.

Each area runs in a process of its own, on one core. Fails where a promise is not kept, and names what was missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import platforms
from benchmarks.measure import Row
from benchmarks.worker import ONE_CORE, pinned
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

AREAS = ("import_time", "unmodified", "first_calls", "positions", "eager", "small_calls", "new_shapes", "array_api",
         "writes", "autocast", "training_step", "models", "decoding", "lazy", "call_overhead", "convolution", "growth",
         "grafted", "loops", "operators", "tensorflow_programs", "onnx_models",
         "source", "quantized", "sparse", "optimizers", "trace", "parallel",
         "collectives")  # fmt: skip

IN_PROCESSES = ("import_time", "models", "growth")  # of their own
TIERED = (
    "unmodified",
    "first_calls",
    "decoding",
    "positions",
    "small_calls",
    "operators",
    "tensorflow_programs",
    "sparse",
)  # take what --eager says; the others ask what a backend takes


def shown(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:.1f} MB"
    if not unit:
        return f"{value:g}"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.2f} ms"


def promise(row: Row) -> str:
    return f"+ {row.extra:g} s" if row.extra else f"{row.limit:g}" if row.limit else ""


def mode(area: str, eager: str) -> str:
    """How an area computes eager operations (`docs/tiers.md`)."""
    return eager if area in TIERED else "compiled"


def in_a_process(area: str, eager: str) -> tuple[list[Row], str | None]:
    """The rows of an area, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.run", area, "--child", "--out", str(out)]
        environment = {**os.environ, **ONE_CORE, "JAX_PLATFORMS": os.environ["JAX_PLATFORMS"]}
        done = subprocess.run(command, env={**environment, "TENSORGRAFT_EAGER": mode(area, eager)})
        rows = [Row(**fields) for fields in json.loads(out.read_text())] if out.exists() else []
        return rows, f"{area} ended with {done.returncode}" if done.returncode else None


def table_of(rows: list[Row]) -> Table:
    right = (Column(name, justify="right") for name in ("ratio", "promised", "ours", "reference"))
    table = Table("what", *right, "against")
    for row in rows:
        color = "" if not promise(row) else "green" if row.kept else "red"
        values = shown(row.ours, row.unit), shown(row.reference, row.unit)
        table.add_row(escape(row.name), f"{row.ratio:.2f}", promise(row), *values, row.against, style=color)
    return table


def machine() -> dict[str, Any]:
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else []  # fmt: skip
    return {"processor": names[0] if names else platform.processor(), "cores": os.cpu_count()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--plot", type=Path, help="draw the ratios into this file (png, svg, pdf)")
    parser.add_argument("--page", type=Path, help="write them as a page, as docs/benchmarks.md is")
    parser.add_argument("--eager", choices=("tiered", "compiled"), default="tiered", help=f"for {', '.join(TIERED)}")
    parser.add_argument("--platform", choices=platforms.JAX_PLATFORMS, help="where JAX computes; by default on the CPU")
    parser.add_argument("--without", default="", help="peers that take long, with commas: torch.compile,torchax")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.areas) - set(AREAS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if args.child:
        if args.areas[0] not in IN_PROCESSES:
            pinned()
        rows = []
        for row in importlib.import_module(f"benchmarks.{args.areas[0]}").measure():
            rows.append(asdict(row))
            args.out.write_text(json.dumps(rows))
        return 0

    platforms.choose(args.platform)
    os.environ["BENCHMARKS_WITHOUT"] = args.without
    console = Console()
    loads, found, failed = [os.getloadavg()[0]], {}, []
    for area in args.areas or AREAS:
        console.print(area, highlight=False)
        found[area], failure = in_a_process(area, args.eager)
        failed += [failure] if failure else []
        loads.append(os.getloadavg()[0])
        report = {**machine(), "load": [min(loads), max(loads)], "failed": failed,
                  "modes": {area: mode(area, args.eager) for area in found},
                  "areas": {area: [asdict(row) for row in rows] for area, rows in found.items()}}  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1))
    rows = [row for area in found.values() for row in area]
    console.print(table_of(rows))
    console.print(f"load of the machine: {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} processors")
    if args.plot:
        importlib.import_module("benchmarks.plot").draw(report, args.plot)
    if args.page:
        args.page.write_text(importlib.import_module("benchmarks.page").page(report))
    missed = [row for row in rows if not row.kept]
    for row in missed:
        console.print(
            f"missed: {row.name}: {row.ratio:.2f}, promised {promise(row)}", style="red", highlight=False, markup=False
        )
    for failure in failed:
        console.print(failure, style="red")
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
