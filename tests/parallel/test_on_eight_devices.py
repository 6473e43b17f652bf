"""What the files `on_eight_*` test, in a process whose JAX has eight devices; and what one device says."""

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import parallel

FILES = sorted(Path(__file__).parent.glob("on_eight_*.py"))
TESTS = [node.name for file in FILES for node in ast.parse(file.read_text()).body
         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, pytestconfig):
    """{test: what it said where it failed} of those that ran."""
    report = tmp_path_factory.mktemp("eight") / "report.xml"
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        *map(str, FILES),
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
    ]
    command += ["--slow"] * pytestconfig.getoption("--slow")
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=FILES[0].parents[2])
    assert report.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(report).getroot().iter("testcase")
    found = {}
    for case in cases:
        name = case.get("name").partition("[")[0]
        failed = [e.text or e.get("message") for kind in ("failure", "error") for e in case.iter(kind)]
        found.setdefault(name, []).extend(failed)
    return found


@pytest.mark.parametrize("name", TESTS)
def test_on_eight_devices(name, outcomes):
    assert outcomes.get(name, ["did not run"]) == []


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_mesh_of_one_device(backend):
    mesh = parallel.mesh((1, 1), ("data", "model"), device=backend)
    x = parallel.shard(torch.arange(6.0).reshape(2, 3), mesh, ("data", "model"))
    assert x.device == tg.device(backend) and x.tolist() == [[0, 1, 2], [3, 4, 5]]
    model = parallel.shard_(torch.nn.Linear(3, 2).to(tg.device(backend)), mesh, parallel.fully_sharded())
    parallel.constrain(model(x), ("data", None), mesh).sum().backward()
    assert model.weight.grad.tolist() == [[3, 5, 7], [3, 5, 7]]
    a = parallel.shard(xp.asarray(np.ones((2, 2)), device=tg.device(backend)), mesh, ("data",))
    assert float(xp.sum(a)) == 4


def test_other_backends_have_one_device():
    with pytest.raises(ValueError, match=r"shape \(2,\) requires 2 devices, but numpy has 1 here"):
        parallel.mesh(2, "data", device="numpy")
