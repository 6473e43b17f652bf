"""`python -m tests.fuzz.page`: docs/fuzzing.md, out of what counted runs have written to tests/fuzz/runs/."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.fuzz.run import FOUND, ROOT, RUNS

INTRODUCTION = """# Random programs

Written by `python -m tests.fuzz.page` from the counts of `tests/fuzz/runs/`.

A program is a few statements of Python, drawn at random on live values: operators from the source framework's own
tables with arguments drawn by their schemas, views and writes through them, gradients, modules, optimizers, regions.
It is run by the source framework (PyTorch on the CPU, JAX, ...), and on subjects: each backend, and several ways of
compiling and transforming. Compared are values (floats within the tolerances of [conformance](conformance.md)),
dtypes, shapes, strides, memory sharing, versions, histories, gradients, exceptions, and the state after an exception.

`make fuzz N=100000` runs programs of all kinds, with `KIND=torch` of one kind; seeds are printed, `--seed S -n 1`
draws a program again, and a program with a difference is minimised. `make test` runs some of each kind, others for
each commit. Every fixed difference becomes a test (`tests/fuzz/found/`); `--again` repeats the programs that differed
in a counted run.

A difference is not counted if the source framework leaves the result open, if it is one that
[differences](differences.md) documents, or if it is due to rounding: the reference, repeated with noise of the size of
a rounding error in each operator, varies as much. Such programs are counted separately, by reason, and so are those
that a compiled function refuses, with the program's line, if everything else continues as if it had not been called.
"""


def _about(kind: str) -> str:
    """The first sentence of its module, which is not imported for that."""
    folder = Path(__file__).parent / "kinds"
    path = next(p for p in (folder / f"{kind}.py", folder / kind / "__init__.py") if p.exists())
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(re.split(r"\.\s", said + " ")[0].split())


def _later(run: dict[str, Any]) -> str:
    again = run.get("again")
    return f"{len(again['differed'])} at {again['commit'][:10]}" if again else ""


def page() -> str:
    runs = [json.loads(path.read_text()) for path in sorted(RUNS.glob("*.json"))]
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        kinds[run["kind"]].append(run)
    found = Counter(path.read_text().split()[1] for path in FOUND.glob("*.py"))
    text = [INTRODUCTION, "| programs | in all | differed | |\n| --- | --: | --: | --- |"]
    for kind, parts in sorted(kinds.items()):
        total = sum(run["programs"] for run in parts)
        differed = sum(len(run["differed"]) for run in parts)
        text.append(f"| [{kind}](#{kind}) | {total:,} | {differed} | {_about(kind)} |")
    text.append("")
    for kind, parts in sorted(kinds.items()):
        played, excused = Counter[str](), Counter[str]()
        for run in parts:
            played.update(run["played"])
            excused.update(run["excused"])
        text.append(f"## {kind}\n")
        text.append("| subject | programs |\n| --- | --: |")
        text += [f"| {subject} | {count:,} |" for subject, count in played.most_common()]
        text.append("\n| seeds | programs | differed | commit | of these, later |\n| --- | --: | --: | --- | --- |")
        text += [
            f"| {run['first']} to {run['first'] + run['programs'] - 1} | {run['programs']:,} | {len(run['differed'])}"
            f" | {run['commit'][:10]} | {_later(run)} |"
            for run in sorted(parts, key=lambda run: run["first"])
        ]
        text.append(f"\nFound before, and mended: {found[kind]} in `tests/fuzz/found/`.\n")
        if excused:
            text.append("| counted for nothing | times |\n| --- | --: |")
            text += [f"| {reason} | {count:,} |" for reason, count in excused.most_common()]
            text.append("")
    return "\n".join(text)


if __name__ == "__main__":
    (ROOT / "docs" / "fuzzing.md").write_text(page())
