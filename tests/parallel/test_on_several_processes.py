"""Meshes over the devices of several processes: `on_several_processes`, by each of the ways in which these start."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("on_several_processes.py")
PAGE = Path(__file__).parents[2] / "docs" / "parallel.md"
RUN = [sys.executable, "-m", "tensorgraft", "run", "--on", "jax"]


def begin(*arguments, **environment):
    env = os.environ | {"OMP_NUM_THREADS": "1", "TENSORGRAFT_PROCESSES_TIMEOUT": "60"} | environment
    return subprocess.Popen(
        [str(a) for a in arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def launched(processes, devices, *names, **environment):
    return ended(begin(*RUN, "--processes", processes, "--devices", devices, PROGRAM, *names, **environment))


def test_two_processes():
    code, out, err = launched(2, 4, "values", "curves", "errors")
    assert code == 0, err[-4000:]
    assert out == "done values curves errors\n"  # of the first alone; what connects says nothing


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_all_curves(processes, devices):
    code, _, err = launched(processes, devices, "values", "all_curves", "errors")
    assert code == 0, err[-4000:]


@pytest.mark.slow
def test_a_process_that_does_not_come():
    code, out, err = launched(2, 4, "absent", TENSORGRAFT_PROCESSES_TIMEOUT="3")
    assert code == 0 and out == "done absent\n", err[-4000:]


@pytest.mark.slow
def test_a_process_that_dies():
    """The launcher ends the others, and says which one it was."""
    start = time.monotonic()
    code, _, err = launched(2, 4, "dies")
    assert code == 137 and re.search(r"Root Cause.*rank +: 1 ", err, re.DOTALL), err[-4000:]
    assert time.monotonic() - start < 60 + 60  # and the time to begin, on a busy machine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def on_two_hosts(*program, **environment):
    """Each process by a command of its own."""
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--devices", "4"]
    both = [begin(*RUN, *where, "--process-id", i, *program, **environment) for i in range(2)]
    return [ended(p) for p in both]


@pytest.mark.slow
def test_a_process_that_dies_without_a_launcher():
    """The others end by themselves within a minute, with an error that names it."""
    (code, _, err), (killed, _, _) = on_two_hosts(PROGRAM, "dies")
    assert killed == -9 and code not in (0, None)
    assert re.search(r"tasks are unhealthy.*\n1\n|closed|reset|/task:1", err), err[-4000:]


def script(tmp_path):
    """The script of docs/parallel.md for one host and for two."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [b for b in blocks if "DistributedSampler" in b]
    file = tmp_path / "train.py"
    file.write_text(block + "\nprint(loss)\n")
    return file


@pytest.mark.slow
def test_the_page_on_two_hosts(tmp_path):
    file = script(tmp_path)
    alone = ended(begin(sys.executable, file, XLA_FLAGS="--xla_force_host_platform_device_count=8"))
    both = on_two_hosts(file)
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", *RUN]
    by_torchrun = ended(begin(sys.executable, *elastic, "--devices", "4", file))
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    by_slurm = [
        ended(p)
        for p in [
            begin(*RUN, "--devices", 4, file, **slurm, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(2)
        ]
    ]
    losses = []
    for code, out, err in (alone, *both, by_torchrun, *by_slurm):
        assert code == 0, err[-4000:]
        losses += map(float, re.findall(r"\d\.\d{6,}", out))  # torchrun's processes write into each other's lines
        assert "saving 1865 numbers" in out or (code, out, err) in (both[1], by_slurm[1])
    assert len(losses) == 7  # torchrun shows what both say
    np.testing.assert_allclose(losses, losses[0], rtol=0, atol=1e-5)
