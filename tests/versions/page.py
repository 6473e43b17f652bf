"""docs/versions.md, out of what cells came to."""

from __future__ import annotations

from tests.versions.cells import FRAMEWORKS, ROOT, Cell, cells
from tests.versions.ran import Outcome

PAGE = ROOT / "docs" / "versions.md"
SHOWN = 10  # failures of a cell
HEADER = """# Versions

A sample of the tests in a fresh environment for each row, where the wheel is installed with its extras: each Python
with the newest release of every framework that the index has for it, what an empty environment gets from
`pip install "tensorgraft[jax,torch]"` without any pin, then other releases of one framework among those of
`constraints.txt`, all previous and all oldest ones (of each dependency the least version that `pyproject.toml` allows),
and what machines with a GPU have. The whole suite runs with those of `constraints.txt`. Made by `make versions`, which
fails where an empty environment gets other releases than the newest; `VERSIONS_ARGS="--only torch"` for some of it. A
row whose Python a machine has not stays as it ran last. Continuous integration runs the programs of the README and a
thousand tests on the newest Python of its machine, too (`make newest`).

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
