"""The numbers of a run as a page: `python -m benchmarks.page out/bench.json > docs/benchmarks.md`.

Areas that ran at the same time on cores of their own are given as several files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.run import promise, shown

HEAD = """# Benchmarks

Made by `make bench` (`python -m benchmarks.run --page docs/benchmarks.md`); not written by hand.

Times are CPU time of one core where the work is long, else the quickest of many short bursts; what is compared takes
turns, in one run. A ratio is ours / the other. {processor}, {cores} cores, load of the machine {load[0]:.1f} to
{load[1]:.1f}.

Eager operations compute as [tiers.md](tiers.md) says, in the mode `compiled` but where a section says `tiered`.
"""
AREAS = {
    "import_time": "Start-up",
    "unmodified": "Whole scripts",
    "first_calls": "First calls",
    "positions": "Positions and numbers that change",
    "eager": "Eager operations",
    "small_calls": "Eager calls on single elements and tiny tensors",
    "array_api": "Array API",
    "writes": "Writes into an array",
    "autocast": "Autocast",
    "training_step": "The demo's training steps",
    "models": "Networks",
    "decoding": "Decoding with transformers",
    "lazy": "Lazy mode",
    "call_overhead": "Calls of compiled functions",
    "convolution": "Convolutions on a CPU",
    "growth": "How compiling and memory grow",
    "grafted": "Modules on TensorFlow and NumPy",
    "loops": "Loops of JAX functions",
    "operators": "Operators beyond 3 times CPU PyTorch",
    "tensorflow_programs": "TensorFlow programs on JAX",
    "onnx_models": "ONNX models on JAX",
    "source": "Source in another framework",
    "quantized": "Quantised products",
    "sparse": "Sparse matrices",
    "optimizers": "Optimizers of 8 bits",
    "trace": "Estimates of traces",
    "parallel": "Eight simulated devices",
    "collectives": "Two processes",
}


def page(report: dict[str, Any]) -> str:
    parts = [HEAD.format(**report)]
    for area, rows in report["areas"].items():
        found = [Row(**fields) for fields in rows]
        said = "Mode: `tiered`.\n\n" if report["modes"].get(area) == "tiered" else ""
        parts.append(f"## {AREAS.get(area, area)}\n\n{said}{_table(found)}\n")
    missed = [row for rows in report["areas"].values() for row in (Row(**f) for f in rows) if not row.kept]
    parts.append("## Missed\n\n" + _list(missed, report["failed"]))
    return "\n".join(parts)


def _table(rows: list[Row]) -> str:
    lines = ["| | ratio | target | | ours | other | against |", "| --- | --: | --: | --- | --: | --: | --- |"]
    for row in rows:
        verdict = "" if not promise(row) else "kept" if row.kept else "**missed**"
        values = f"{shown(row.ours, row.unit)} | {shown(row.reference, row.unit)}"
        lines.append(f"| {row.name} | {row.ratio:.2f} | {promise(row)} | {verdict} | {values} | {row.against} |")
    return "\n".join(lines)


def _list(missed: list[Row], failed: list[str]) -> str:
    lines = [f"- {row.name}: {row.ratio:.2f}, target {promise(row)}" for row in missed] + [f"- {f}" for f in failed]
    return "\n".join(lines or ["Nothing."]) + "\n"


def joined(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one report of several that were made at the same time."""
    found = {area: rows for report in reports for area, rows in report["areas"].items()}
    low, high = zip(*(report["load"] for report in reports), strict=True)
    return {
        **reports[0],
        "load": [min(low), max(high)],
        "failed": [text for report in reports for text in report["failed"]],
        "modes": {area: mode for report in reports for area, mode in report["modes"].items()},
        "areas": {area: found[area] for area in AREAS if area in found},
    }


if __name__ == "__main__":
    print(page(joined([json.loads(Path(name).read_text()) for name in sys.argv[1:]])), end="")
