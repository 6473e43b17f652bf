"""`python -m tests.versions.newest_here`: part of the suite on the newest Python that this machine has, with the newest
releases of the frameworks for it (`newest.json`), in an environment made for it and deleted afterwards.

Continuous integration runs it beside the whole suite on `constraints.txt`. Exits with pytest's status; with 0 where the
machine has no other Python, or cannot install there, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.versions import environment
from tests.versions.cells import FRAMEWORKS, NEWEST, ROOT, Cell

PART = [
    "tests/test_private_names.py",
    "tests/backends",
    "tests/frontends/jax",
    "tests/frontends/array_api/test_operators.py",
    "tests/frontends/array_api/test_jit_calls.py",
    "tests/frontends/torch/test_patches.py",
    "tests/frontends/torch/test_jit.py",
    "tests/frontends/torch/test_jit_guards.py",
    "tests/frontends/torch/test_side_effects.py",
    "tests/frontends/torch/test_holders.py",
    "tests/frontends/torch/test_views.py",
    "tests/transforms",
]


def main() -> int:
    newest = json.loads(NEWEST.read_text())
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in sorted(newest, key=_number, reverse=True):
        if _number(python) <= _number(here):
            break
        try:
            environment.find(python)
        except environment.Impossible:
            continue
        return _run(Cell("newest", python, newest[python], FRAMEWORKS))
    print(f"newest releases: not run, this machine has no Python after {here}")
    return 0


def _number(python: str) -> tuple[int, ...]:
    return tuple(map(int, python.split(".")))


def _run(cell: Cell) -> int:
    """Run the part of the suite, with the tests of this checkout and the wheel that is built of it."""
    folder = Path(tempfile.mkdtemp(prefix="tensorgraft-newest-"))
    try:
        environment.uv("build", "--wheel", "--out-dir", str(folder / "dist"), str(ROOT))
        (wheel,) = (folder / "dist").glob("*.whl")
        python, installed = environment.make(cell, folder / "environment", wheel, folder / "cache")
    except environment.Impossible as reason:
        print(f"newest releases: not run on Python {cell.python}: {reason}")
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"newest releases: Python {cell.python}, {installed}", flush=True)
    tests = folder / "tests"
    shutil.copytree(ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "conftest.py"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tests)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    command = [str(python), "-m", "pytest", "-q", "-o", "pythonpath=.", "-p", "no:cacheprovider", "-n", "auto"]
    try:
        return subprocess.run([*command, *PART], cwd=tests, env=os.environ | quiet).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
