"""The figures of TensorFlow's raw operations over their dtypes, for docs/conformance.md.

    python -m tests.frontends.tensorflow.raw_operations [--backends numpy,jax] [--compiled] [OPERATION ...]

Without operations it runs all that have samples. What it found on all backends is kept in `tests/conformance/runs`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

# those that occur in programs, of applications, layers and training steps of Keras and plain TensorFlow: the 300 most
# frequent
FREQUENT = Path(__file__).with_name("frequent.txt").read_text().split()
KEPT = Path(__file__).parents[2] / "conformance" / "runs" / "tensorflow" / "raw_operations.json"

# a pattern of cells (of a backend: "numpy:..."), and why they are not as TensorFlow has them
KNOWN = {
    r"Round\[int(32|64)\].*": "TensorFlow's kernel for integers gives 0 for every number; here they stay as they are",
    r"Erf\[float64\].*": "TensorFlow's kernel of float64 gives NaN at infinities; here it is 1 and -1",
    r"Eig\[complex.*": "the eigenvalues are right, in the order of the framework's solver",
    r"QuantizedResizeBilinear\[qint32\].*": "one of 2**32 steps: in which order TensorFlow's kernel adds is unknown",
}


def reason_of(backend: str, cell: str) -> str | None:
    return next(
        (why for form, why in KNOWN.items() if re.fullmatch(form, cell) or re.fullmatch(form, f"{backend}:{cell}")),
        None,
    )


def figures(run: dict[str, Any], backend: str, names: set[str] | None = None) -> tuple[int, int, int, int]:
    """(operations that agree in all cells, operations, cells that agree, cells)."""
    counts = {op: n for op, n in run["cells"].items() if names is None or op in names}
    wrong = [cell for cell in run["wrong"][backend] if cell.partition("[")[0] in counts]
    off = {cell.partition("[")[0] for cell in wrong}
    total = sum(counts.values())
    return sum(n > 0 and op not in off for op, n in counts.items()), len(counts), total - len(wrong), total


def page() -> str:
    """A section of docs/conformance.md."""
    if not KEPT.exists():
        return ""
    run = json.loads(KEPT.read_text())
    lines = [
        "",
        "## Raw operations of TensorFlow",
        "",
        "Each operation that has a rule and can be called by itself, or in a small program (variables, lists, loops),",
        "is compared with TensorFlow's CPU kernel in each combination of dtypes that the kernel supports, in several",
        "shapes (empty, 0-dimensional, broadcast) and at the ends of dtypes' ranges: value, dtype, shape, signs of",
        "zeros. If TensorFlow's kernel gives an element another value alone than within an array, either is accepted;",
        "for 16-bit dtypes, so is the result of its float32 kernel, rounded once. An operation agrees if all its",
        "cells do. Made by `python -m tests.frontends.tensorflow.raw_operations`, about a quarter of an hour;",
        "*frequent* are the 300 that occur most often in programs.",
        "",
        "| backend | operations that agree | cells | frequent operations that agree | cells |",
        "| --- " * 5 + "|",
    ]
    for backend in run["wrong"]:
        good, every, right, cells = figures(run, backend)
        mine, _, known, there = figures(run, backend, set(FREQUENT))
        lines.append(
            f"| {backend} | {good} of {every} | {right} of {cells} | {mine} of {len(FREQUENT)} | {known} of {there} |"
        )
    lines += ["", "Operations that do not agree:", ""]
    reasons: dict[str, set[str]] = {}
    for backend in run["wrong"]:
        for cell in run["wrong"][backend]:
            reasons.setdefault(reason_of(backend, cell) or "no reason", set()).add(cell.partition("[")[0])
    lines += [f"- {', '.join(sorted(ops))}: {why}" for why, ops in sorted(reasons.items())]
    left = [name for name in FREQUENT if name not in run["cells"]]
    if left:
        lines.append(f"- {', '.join(left)}: of strings or functions of Python, which tests of programs have")
    return "\n".join(lines) + "\n"


def keep(run: dict[str, Any]) -> None:
    """In the place of what was known of these operations."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {"cells": {}, "wrong": {}}
    for backend, cells in run["wrong"].items():
        others = [cell for cell in known["wrong"].get(backend, ()) if cell.partition("[")[0] not in run["cells"]]
        known["wrong"][backend] = sorted([*others, *cells])
    known["cells"] |= run["cells"]
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def main() -> None:
    from tests.frontends.tensorflow.agreement import checked
    from tests.frontends.tensorflow.cells import operations
    from tests.frontends.tensorflow.common import BACKENDS

    parser = argparse.ArgumentParser()
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    backends = args.backends.split(",")
    run: dict[str, Any] = {"cells": {}, "wrong": {backend: [] for backend in backends}}
    for op in args.operations or operations():
        count, wrong = checked(op, backends, compiled=args.compiled)
        run["cells"][op] = count
        print(op, count, *(len(wrong[backend]) for backend in backends), flush=True)
        for backend in backends:
            run["wrong"][backend] += sorted(wrong[backend])
            for cell, off in wrong[backend].items():
                print(f"    {backend}:{cell} {off} {reason_of(backend, cell) or ''}", flush=True)
    for backend in backends:
        for names in (None, set(FREQUENT)):
            good, every, right, cells = figures(run, backend, names)
            print(f"{backend}: {good} of {every} operations, {right} of {cells} cells", file=sys.stderr)
    if not args.compiled and set(backends) == set(BACKENDS):
        keep(run)


if __name__ == "__main__":
    main()
