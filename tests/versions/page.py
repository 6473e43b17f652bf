"""docs/versions.md, out of what cells came to."""

from __future__ import annotations

from tests.versions.cells import FRAMEWORKS, ROOT, Cell, cells
from tests.versions.ran import Outcome

PAGE = ROOT / "docs" / "versions.md"
SHOWN = 10  # failures of a cell
HEADER = """# Versions

Each row is a sample of the tests in a fresh environment, in which the wheel is installed with its extras: each Python
with the newest release of every framework in the index; the result of `pip install "tensorgraft[jax,torch]"` in an
empty environment without any pin; other releases of one framework among those of `constraints.txt`; all previous and
all oldest releases (the minimum version of each dependency in `pyproject.toml`); and the releases on machines with a
GPU. The whole suite runs with the releases of `constraints.txt`. Made by `make versions`, which fails if an empty
environment gets other releases than the newest; `VERSIONS_ARGS="--only torch"` selects a part. A row whose Python is
not installed keeps its last result. Continuous integration also runs the programs of the README and a thousand tests
on the newest Python of its machine (`make newest`).

| cell | Python | PyTorch | JAX | TensorFlow | NumPy | sample | on |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def markdown(outcomes: dict[str, Outcome]) -> str:
    rows, notes = [], list[str]()
    for cell in cells():
        outcome = outcomes.get(cell.name, {"reason": "not run"})
        versions = outcome.get("installed") or cell.pins
        shown = [versions.get(name, "").partition("+")[0] or "-" for name in FRAMEWORKS]
        rows.append(f"| {' | '.join((cell.name, cell.python, *shown, said(outcome), outcome.get('on', '')))} |")
        notes += [f"- {cell.name}: {name} {cell.pins[name]} is newer" for name in _behind(cell, versions)]
        failures = [" ".join(failure.split())[:160] for failure in outcome.get("failed", ())]
        notes += [f"- {cell.name}: {failure}" for failure in failures[:SHOWN]]
        notes += [f"- {cell.name}: {len(failures) - SHOWN} more"] if len(failures) > SHOWN else []
    return HEADER + "\n".join(rows) + "\n" + ("\n" + "\n".join(notes) + "\n" if notes else "")


def _behind(cell: Cell, versions: dict[str, str]) -> list[str]:
    """The frameworks of a row of newest releases that ran with others."""
    if not cell.name.startswith("python-"):
        return []
    return [name for name in cell.pins if versions[name].partition("+")[0] != cell.pins[name]]


def said(outcome: Outcome) -> str:
    """One cell of the table."""
    if "reason" in outcome:
        return " ".join(str(outcome["reason"]).split()).replace("|", "/")
    passed, failed = outcome["passed"], len(outcome["failed"])
    return f"{passed} passed" if not failed else f"{failed} of {passed + failed} failed"
