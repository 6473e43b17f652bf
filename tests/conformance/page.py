"""Tables out of the results of conformance runs; `python -m tests.conformance.page` writes docs/conformance.md."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from tests.conformance import ran, source_jax_programs, source_models
from tests.conformance.cases import SAMPLE, fallback_reasons, known, known_failures
from tests.frontends.tensorflow import raw_operations

ROOT = Path(__file__).parents[2]

HEADER = """# Conformance

PyTorch's own test databases, run on each backend against CPU PyTorch: operators (OpInfo), modules (ModuleInfo) and
optimizers. Values, dtypes, shapes, the identity of results and the arguments after the call are compared. A case is
one operator in one mode and dtype, and passes if all its samples do (three of each). Made by `make conformance`, one
backend at a time (`CONFORMANCE_ARGS=--backends=numpy`); the results of each run are kept in `tests/conformance/runs`.
The whole database takes about nine minutes of CPU time on NumPy and on PyTorch, and an hour on TensorFlow.

| mode | what is compared |
| --- | --- |
| forward, method, inplace | the function, the method, the in-place method and operator |
| out | `out=` of the right size, empty, of another size (with its warning), not contiguous |
| strides | strides of the results, also from arguments in another memory order (channels_last) |
| error | the type of the exception for arguments that are refused |
| backward, gradgrad | gradients, and gradients of gradients |
| forward_ad, jvp, jacrev, vmap | forward-mode derivatives and `torch.func` |
"""


def share(row: dict[str, int] | None, there: int | None = None) -> str:
    """Passed of those that the CPU can do; and how many of all were run, where these are not all."""
    if row is None:
        return "-"
    part = "" if there is None or row["ran"] >= there else f" (run: {row['ran']} of {there})"
    return (f"{row['passed']}/{row['compared']}" if row["compared"] else "-") + part


def table(results: ran.Results) -> str:
    """For a terminal."""
    lines = [f"{'database':<11}{'mode':<12}{'dtype':<10} passed"]
    rows = ran.rows(results)
    for place, row in sorted(rows.items()):
        database, mode, dtype = place.split("/")
        lines.append(f"{database:<11}{mode:<12}{dtype:<10} {share(row)}")
    fell, reasons = ran.fallbacks(rows), fallback_reasons()
    lines.append(f"on the CPU for want of a kernel: {len(fell)} operators")
    for name, where in sorted(fell.items()):
        lines.append(f"  aten::{name} (in {', '.join(sorted(where)[:3])}): {reasons.get(name, 'no reason')}")
    return "\n".join(lines)


def markdown(by_backend: dict[str, ran.Rows]) -> str:
    there = {backend: ran.declared(backend) for backend in by_backend}
    lines = [HEADER, "| backend | cases run | of | passed | the CPU cannot do | fail |", "| --- " * 6 + "|"]
    for backend, rows in by_backend.items():
        count = {name: sum(row[name] for row in rows.values()) for name in ("ran", "compared", "passed")}
        everything = sum(there[backend].values())
        part = "whole" if count["ran"] == everything else f"{count['ran'] / everything:.0%}"
        figures = (f"{count['ran']} ({part})", everything, count["passed"], count["ran"] - count["compared"] or "-")
        lines.append(f"| {backend} | {' | '.join(map(str, figures))} | {count['compared'] - count['passed']} |")
    places = sorted({place for rows in by_backend.values() for place in rows})
    lines += ["", f"| database | mode | dtype | {' | '.join(by_backend)} |", "| --- " * (3 + len(by_backend)) + "|"]
    for place in places:
        cells = [share(rows.get(place), there[backend][place]) for backend, rows in by_backend.items()]
        lines.append(f"| {' | '.join((*place.split('/'), *cells))} |")
    lines += ["", "## Operators on the CPU for lack of a kernel", ""]
    fell: dict[str, set[str]] = defaultdict(set)
    for rows in by_backend.values():
        for name, where in ran.fallbacks(rows).items():
            fell[name] |= where
    reasons = fallback_reasons()
    for name, where in sorted(fell.items()):
        lines.append(f"- `aten::{name}`, in {', '.join(sorted(where)[:4])}: {reasons.get(name, 'no reason')}")
    if not fell:
        lines.append("None.")
    for backend, rows in by_backend.items():
        lines += ["", f"## Failures on {backend}", "", *_failures(backend, rows)]
    return "\n".join(lines) + "\n" + raw_operations.page() + source_models.page() + source_jax_programs.page()


def _failures(backend: str, rows: ran.Rows) -> list[str]:
    """By reason."""
    failures, found = known_failures(backend), defaultdict(list)
    for place, row in sorted(rows.items()):
        for name in row["failed"]:
            found[known(f"{place}/{name}", failures) or "no reason"].append(f"{place}/{name}")
    return [f"- {reason}: {', '.join(keys)}" for reason, keys in sorted(found.items())] or ["Nothing."]


def main() -> None:
    for file in sorted((ROOT / "out" / "conformance").glob("*.json")):
        if file.stem in SAMPLE:  # other files are of `make harness`
            ran.keep(file.stem, ran.rows(json.loads(file.read_text())))
    path = ROOT / "docs" / "conformance.md"
    path.write_text(markdown({backend: ran.kept(backend) for backend in SAMPLE}))
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
