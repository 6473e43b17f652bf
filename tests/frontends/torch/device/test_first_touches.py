"""Whatever touches the device first loads the front end, which `import torch` does not."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("first_touches.py")
DEFINED = [f.name for f in ast.parse(PROGRAM.read_text()).body if isinstance(f, ast.FunctionDef)]
NAMES = [name for name in DEFINED if not name.startswith("_") and name not in ("is_ones", "main")]
SAMPLE = [*NAMES[::4], "no_device"]  # each loads the front end, in a process of its own


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param([name for name in NAMES if name not in SAMPLE], id="others", marks=pytest.mark.slow),
    ],
)
def test_first_touches(names):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TENSORGRAFT_BACKEND": "numpy"}
    done = subprocess.run([sys.executable, "-W", "ignore", PROGRAM, *names], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
