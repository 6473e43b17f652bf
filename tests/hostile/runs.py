"""What was run, kept batch by batch: numbers add up, and a run that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "runs.json"


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"batches": [], "formats": {}}


def done(seed: str, name: str) -> int:
    """The number of the mutant of a format after the last one that was loaded."""
    spans = (batch.rpartition("/") for batch in read()["batches"])
    return max((sum(map(int, span.split("+"))) for form, _, span in spans if form == f"{seed}/{name}"), default=0)


def add(batch: str, name: str, found: Any) -> None:
    """What a batch of one format found, under the batch's name."""
    data = read()
    data["batches"].append(batch)
    row = data["formats"].setdefault(name, {"counts": {}, "errors": {}, "seconds": 0, "peak": 0, "failures": []})
    for key, new in (("counts", found.counts), ("errors", found.errors)):
        row[key] = dict(Counter(row[key]) + Counter(new))
    row["seconds"] = round(row["seconds"] + found.seconds, 1)
    row["peak"] = max(row["peak"], found.peak)
    told = [{"batch": batch, **failure} for failure in found.failures if failure["kind"] != "memory"]
    row["failures"] = (row["failures"] + told)[:20]
    FILE.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
