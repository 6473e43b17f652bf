"""What was run, for docs/conformance.md: one row for each database, mode and dtype of a backend, in `runs/BACKEND.json`.

The rows of a run take the place of those before that had no more cases; so runs of one backend, or of one mode, at a
time and in several checkouts come together.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.conformance import cases

FOLDER = Path(__file__).parent / "runs"
Results = dict[str, dict[str, Any]]  # `Case.key` -> outcome, fallbacks, message
# "database/mode/dtype" -> ran: cases; compared: those that the CPU can do; passed; failed: names; fallbacks: operator
# -> names of the cases in which it ran on the CPU
Rows = dict[str, dict[str, Any]]


def rows(results: Results) -> Rows:
    found: Rows = {}
    for key, result in sorted(results.items()):
        place, _, name = key.rpartition("/")
        row = found.setdefault(place, {"ran": 0, "compared": 0, "passed": 0, "failed": [], "fallbacks": {}})
        row["ran"] += 1
        row["compared"] += result["outcome"] != "skipped"
        row["passed"] += result["outcome"] == "passed"
        if result["outcome"] in ("failed", "xfailed"):
            row["failed"].append(name)
        for operator in result["fallbacks"]:
            row["fallbacks"].setdefault(operator, []).append(name)
    return found


def declared(backend: str) -> Counter[str]:
    """How many cases there are, by row."""
    every = (*cases.operator_cases(backend), *cases.module_cases(backend), *cases.optimizer_cases(backend))
    return Counter(case.key.rpartition("/")[0] for case in every)


def keep(backend: str, new: Rows) -> None:
    rows = kept(backend)
    rows |= {place: row for place, row in new.items() if row["ran"] >= rows.get(place, row)["ran"]}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{backend}.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def kept(backend: str) -> Rows:
    path = FOLDER / f"{backend}.json"
    there = declared(backend)
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {place: row for place, row in rows.items() if place in there}


def fallbacks(rows: Rows) -> dict[str, set[str]]:
    """Operator -> the database's entries in which it ran on the CPU."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows.values():
        for operator, names in row["fallbacks"].items():
            found[operator] |= set(names)
    return found
