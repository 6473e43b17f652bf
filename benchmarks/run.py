"""Every number that the documentation gives, in one table: `make bench`, or `python -m benchmarks.run eager`.

Fails where a promise is not kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

AREAS = ("import_time", "eager", "array_api", "autocast", "training_step")


def shown(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    args = parser.parse_args()
    if unknown := set(args.areas) - set(AREAS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")

    os.environ["TENSORGRAFT_CACHE"] = "0"  # what is timed is compiled here
    console = Console()
    rows = []
    for area in args.areas or AREAS:
        with console.status(area):
            rows += importlib.import_module(f"benchmarks.{area}").measure()
    right = (Column(name, justify="right") for name in ("ours", "reference", "ratio", "promised"))
    table = Table("what", *right, "against")
    for row in rows:
        promise = f"+ {row.extra:g} s" if row.extra else f"{row.limit:g}" if row.limit else ""
        color = "" if not promise else "green" if row.kept else "red"
        table.add_row(
            row.name, shown(row.ours), shown(row.reference), f"{row.ratio:.2f}", promise, row.against, style=color
        )
    console.print(table)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    console.print(f"load of the machine: {load} on {os.cpu_count()} processors", highlight=False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
