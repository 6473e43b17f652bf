"""A process that is killed while it saves, and the run that goes on from the checkpoint before."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resumed_program.py")


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("fsdp", "jax"),
        pytest.param("ddp", "jax", marks=pytest.mark.slow),
        pytest.param("fsdp", "numpy", marks=pytest.mark.slow),
        pytest.param("mesh", "jax", marks=pytest.mark.slow),
    ],
)
def test_resumed(kind: str, backend: str, tmp_path: Path) -> None:
    """Of two processes one is killed (`kill -9`); started again, they follow the uninterrupted run bit for bit."""

    def start(*how: str) -> subprocess.CompletedProcess[str]:
        devices = ("--devices", "4") if kind == "mesh" else ()
        command = ["run", "--on", backend, "--processes", "2", *devices, str(PROGRAM), kind, str(tmp_path), *how]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "tensorgraft", *command], env=env, capture_output=True, text=True, timeout=300
        )

    killed = start("dies")
    assert killed.returncode == 137 and re.search(r"Root Cause.*rank +: 1 ", killed.stderr, re.DOTALL), killed.stderr
    resumed = start()
    assert resumed.returncode == 0 and "resumed" in resumed.stdout, resumed.stderr[-4000:]
