"""`python -m tests.versions.newest_here`: README's programs and part of the suite on the newest Python of this machine.

It has the newest releases of the frameworks for it (`newest.json`; with `--today`, what the index gives now), in an
environment made for it and deleted afterwards. Continuous integration runs it beside the whole suite, which has the
releases of `constraints.txt`. Exits with 1 where something fails, or what we ask for excludes each other; with 0 where
the machine has no other Python, or the index cannot be reached, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.versions import environment
from tests.versions.cells import FRAMEWORKS, NEWEST, ROOT, Cell

# what is near to names and options of frameworks, so that a release may change it
PART = [
    "tests/test_private_names.py",
    "tests/backends/test_jax.py",
    "tests/backends/test_late_errors.py",
    "tests/backends/test_lowered.py",
    "tests/frontends/array_api/test_promotion.py",
    "tests/frontends/array_api/test_views.py",
    "tests/frontends/jax",
    "tests/frontends/torch/compiled/test_jit.py",
    "tests/frontends/torch/device/test_patches.py",
    "tests/frontends/torch/dispatch/test_views.py",
]
BESIDE = (*environment.WITH, "flax", "lineax", "optax", "traceax")  # what these tests import
README = ROOT / "tests" / "distribution" / "programs" / "readme.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.versions.newest_here", description=__doc__)
    parser.add_argument("--today", action="store_true", help="the releases that the index gives now")
    args = parser.parse_args()
    newest = json.loads(NEWEST.read_text())
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in sorted(newest, key=_number, reverse=True):
        if _number(python) <= _number(here):
            break
        try:
            environment.find(python)
        except environment.Impossible:
            continue
        return _run(Cell("newest", python, {} if args.today else newest[python], FRAMEWORKS))
    print(f"newest releases: not run, this machine has no Python after {here}")
    return 0


def _number(python: str) -> tuple[int, ...]:
    return tuple(map(int, python.split(".")))


def _run(cell: Cell) -> int:
    """Run them with the wheel that is built of this checkout, and the tests of its source distribution."""
    folder = Path(tempfile.mkdtemp(prefix="tensorgraft-newest-"))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    environ = os.environ | quiet
    try:
        wheel, tests = environment.distributions(folder)
        python, installed = environment.make(cell, folder / "environment", wheel, folder / "cache", BESIDE)
        print(f"newest releases: Python {cell.python}, {installed}", flush=True)
        readme = subprocess.run([python, "-I", README, ROOT], cwd=folder, env=environ, stdout=subprocess.DEVNULL)
        print(f"programs of README: {'failed' if readme.returncode else 'ok'}", flush=True)
        command = [python, "-m", "pytest", "-o", "pythonpath=.", "-p", "no:cacheprovider", "-n", "auto"]
        suite = subprocess.run([*command, "--dist", "worksteal", *PART], cwd=tests, env=environ)
        return int(readme.returncode != 0 or suite.returncode != 0)
    except environment.Impossible as reason:
        print(f"newest releases: not run on Python {cell.python}: {reason}")
        return int(isinstance(reason, environment.Contradictory))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
