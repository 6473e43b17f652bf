"""Libraries that take any array of the standard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frontends.array_api.conftest import BACKENDS

PROGRAM = Path(__file__).with_name("program_of_libraries.py")


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.slow_with("jax", "tensorflow")
def test_libraries(device: str) -> None:
    for library in ("scipy", "sklearn", "einops"):
        pytest.importorskip(library)
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAM, device], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
