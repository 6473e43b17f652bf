"""`docs/faults.md`: what `make faults` and `make long-runs` have found, from what they keep in `kept`."""

from __future__ import annotations

import fcntl
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).parent / "kept"
PAGE = ROOT / "docs" / "faults.md"
MARK = "<!-- generated: python -m tests.faults.page -->"
BACKENDS = ("jax", "numpy", "torch", "tensorflow")


def keep(table: Mapping[Any, Any]) -> None:
    """What was injected: the cells of another run stay where they were not run again."""
    path = KEPT / "faults.json"
    path.parent.mkdir(exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:  # of one backend each several processes may run
        fcntl.flock(lock, fcntl.LOCK_EX)
        _keep(path, table)


def _keep(path: Path, table: Mapping[Any, Any]) -> None:
    rows = json.loads(path.read_text()) if path.exists() else []
    new = {key: [*key, c.injected, c.absorbed, [str(w) for w in c.wrong]] for key, c in table.items()}
    kept = {tuple(row[:4]): row for row in rows} | new
    path.write_text("[\n" + ",\n".join(map(json.dumps, kept.values())) + "\n]\n")


def faults(cells: Sequence[Any]) -> list[str]:
    kinds = list(dict.fromkeys(row[3] for row in cells))
    total, wrong = sum(row[4] for row in cells), sum(len(row[6]) for row in cells)
    by_kind = {k: sum(row[4] for row in cells if row[3] == k) for k in kinds}
    lines = [
        f"`make faults`: {total} faults, {wrong} after which something was wrong;"
        f" {sum(row[5] for row in cells)} of them nobody saw (what failed was computed in another way).",
        "",
        "By kind: " + ", ".join(f"{k} {n}" for k, n in by_kind.items()) + ".",
        "",
        "| scenario | " + " | ".join(BACKENDS) + " |",
        "| --- |" + " --- |" * len(BACKENDS),
    ]
    rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for scenario, backend, _, _, injected, _, found in cells:
        rows[scenario][backend][0] += injected
        rows[scenario][backend][1] += len(found)
    for scenario, backends in rows.items():
        shown = [
            ""
            if b not in backends
            else f"{backends[b][0]}" + (f", **{backends[b][1]} wrong**" if backends[b][1] else "")
            for b in BACKENDS
        ]
        lines.append(f"| {scenario} | " + " | ".join(shown) + " |")
    return lines


def long_runs(kept: Mapping[str, Any]) -> list[str]:
    lines = [
        "`make long-runs`. Growth is that of the median of the second half of ten looks over the first half, after a"
        " warm-up of a tenth of the steps; with ever new shapes also of the 1,024 steps that fill the caches.",
        "",
        "| run | memory | grew by | objects grew by | files | threads | programs | wrong |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, x in kept.items():
        wrong = "<br>".join(w[:100].replace("|", "/").replace("\n", " ") for w in x["wrong"]) or "nothing"
        if "memory" in x:
            figures = [f"{x['memory'] / 2**20:.0f} MiB", f"{x['memory grow']:+.2%}", f"{x['objects grow']:+.2%}",
                       x["files"], x["threads"], "" if x.get("programs") is None else x["programs"]]  # fmt: skip
        else:
            figures = [""] * 6
        more = "".join(f", {k} {x[k]}" for k in ("processes", "entries", "interrupted") if k in x)
        lines.append(f"| {name}{more} | " + " | ".join(map(str, figures)) + f" | {wrong} |")
    return lines


def main() -> None:
    """What was not run here stays as it is on the page."""
    said, _, generated = PAGE.read_text().partition(MARK)
    before = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in generated.split("\n## ")[1:]}
    text = f"{said.rstrip()}\n\n{MARK}\n"
    for title, name, section in (("Faults", "faults", faults), ("Long runs", "long_runs", long_runs)):
        path = KEPT / f"{name}.json"
        if path.exists():
            before[title] = "\n".join(section(json.loads(path.read_text())))
        text += f"\n## {title}\n\n{before.get(title, '')}\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
