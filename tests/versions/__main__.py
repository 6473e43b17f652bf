"""`python -m tests.versions`: a sample of the tests in a fresh environment for each cell, and docs/versions.md.

The wheel is installed with its extras and what a cell pins; the tests are those of the source distribution, so nothing
of this checkout is in the way. An environment is deleted before the next one is made.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.versions import environment, newest, page, ran
from tests.versions.cells import ROOT, Cell, cells

OUT = ROOT / "out" / "versions"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.versions", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="these cells, or those whose names contain this")
    parser.add_argument("--list", action="store_true", help="print the cells")
    parser.add_argument("--keep", action="store_true", help="leave environments and the cache of packages")
    parser.add_argument("--folder", type=Path, default=OUT, help="where they are made; one at a time takes 10 GB")
    args = parser.parse_args()
    if args.list:
        for cell in _chosen(args.only):
            print(cell.name, "on Python", cell.python, cell.pins)
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    wheel, tests = environment.distributions(args.folder)
    held_back = newest.ask(wheel)
    for line in held_back:
        print(line, flush=True)
    failed = bool(held_back)
    try:
        for cell in _chosen(args.only):
            try:
                environment.find(cell.python)
            except environment.Impossible as reason:
                print(f"{cell.name}: {reason}; its row stays", flush=True)
                continue
            outcome = run(cell, args.folder.absolute(), wheel, tests, args.keep)
            print(f"{cell.name}: {page.said(outcome)}", flush=True)
            ran.keep(cell.name, outcome)
            page.PAGE.write_text(page.markdown(ran.kept()))
            failed |= bool(outcome.get("failed"))
    finally:
        if not args.keep:
            shutil.rmtree(args.folder / "cache", ignore_errors=True)
            shutil.rmtree(tests)
    return int(failed)


def _chosen(only: list[str]) -> list[Cell]:
    names = {cell.name for cell in cells()}
    wanted = [name for part in only or [""] for name in ([part] if part in names else names) if part in name]
    return [cell for cell in cells() if cell.name in wanted]


def run(cell: Cell, folder: Path, wheel: Path, tests: Path, keep: bool) -> dict[str, object]:
    """What came of a cell: what was installed, which tests passed, or why there is nothing to say."""
    place = folder / cell.name
    try:
        python, installed = environment.make(cell, place, wheel, folder / "cache")
        return {"python": cell.python, "installed": installed, **sample(python, place, tests, cell)}
    except environment.Impossible as reason:
        return {"python": cell.python, "pins": cell.pins, "reason": str(reason)}
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def sample(python: Path, place: Path, tests: Path, cell: Cell) -> dict[str, object]:
    report = place / "report.xml"
    command = [
        *shlex.split(os.environ.get("VERSIONS_RUN", "nice")),
        str(python),
        "-m",
        "pytest",
        "-q",
        "-o",
        "pythonpath=.",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--tb=short", f"--junitxml={report}", *ran.sample(cell)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    log = place.with_name(f"{place.name}.log")
    with log.open("w") as output:
        process = subprocess.run(command, cwd=tests, env=os.environ | quiet, stdout=output, stderr=subprocess.STDOUT)
    if not report.exists():
        raise environment.Impossible(f"pytest ended with {process.returncode}: {log.read_text().strip()[-300:]}")
    return ran.read(report)


if __name__ == "__main__":
    sys.exit(main())
