"""Other people's training loops in two processes on a backend, beside the same in two on the CPU with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = str(Path(__file__).with_name("on_two_processes.py"))
ON_JAX = ["-m", "tensorgraft", "run", "--on", "jax"]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--no_python", sys.executable, *ON_JAX),
]


def losses(launcher: list[str], name: str, folder: Path, *where: str) -> list[float]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *launcher, PROGRAM, name, str(folder), *where],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[float] = json.loads((folder / "losses.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate", "lightning", "lightning_fsdp", "trainer"])
def test_two_processes(name: str, tmp_path: Path) -> None:
    pytest.importorskip({"trainer": "transformers"}.get(name, name.partition("_")[0]))
    launcher = ACCELERATE if name == "accelerate" else [*ON_JAX, "--processes", "2"]
    on_cpu = losses(LAUNCH, name, tmp_path / "cpu", "cpu")
    on_device = losses(launcher, name, tmp_path / "device")
    assert len(on_cpu) == 4
    np.testing.assert_allclose(on_device, on_cpu, rtol=1e-5)
