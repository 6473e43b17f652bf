"""`torch.distributed` on the device: in two processes, beside the same with gloo on the CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import Backend

import tensorgraft as tg
from tensorgraft.frontends.torch.device.collectives import COLLECTIVES

HERE = Path(__file__).parent
LAUNCHED = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, *arguments], env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def test_every_collective_has_a_kernel() -> None:
    schemas = torch._C._jit_get_all_schemas()
    taking_groups = {
        s.name.removeprefix("c10d::")
        for s in schemas
        if s.name.startswith("c10d::") and any(a.name == "process_group" for a in s.arguments)
    }
    assert taking_groups == {*COLLECTIVES.split()}


def test_backend_is_registered() -> None:
    assert Backend.default_device_backend_map["graft"] == "graft" and Backend("GRAFT") == "graft"


@pytest.mark.parametrize(
    ("backend", "processes"),
    [
        ("jax", 2),
        pytest.param("jax", 3, marks=pytest.mark.slow),
        pytest.param("jax", 4, marks=pytest.mark.slow),
        pytest.param("numpy", 3, marks=pytest.mark.slow),
        pytest.param("torch", 2, marks=pytest.mark.slow),
        pytest.param("tensorflow", 2, marks=pytest.mark.slow),
    ],
)
def test_distributed(backend: str, processes: int, tmp_path: Path) -> None:
    """Collectives over dtypes, operations and groups, DDP, FSDP2, DTensor, tensor parallelism and checkpoints."""
    program = str(HERE / "distributed_program.py")
    every = ["every"] if processes == 3 else []
    done = start(
        [*LAUNCHED, str(processes), program, backend, str(tmp_path), *every],
        TENSORGRAFT_BACKEND=backend,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(processes):
        result: dict[str, Any] = json.loads((tmp_path / f"result-{rank}.json").read_text())
        assert result.pop("backend") == "graft"
        assert result.pop("collectives") == {}
        assert result.pop("joined")
        if backend == "jax":
            shapes, dtypes, roots, inside = result.pop("differing")
            for r in range(processes):
                assert f"process {r} calls all_reduce (sum) of float32[{30 + r}]" in shapes
                assert f"process {r} calls broadcast from {r}" in roots
                assert f"process {r} calls a compiled function with {1 + r} collectives" in inside
            assert "of int32[30]" in dtypes and "of float32[30]" in dtypes
        assert result["releases"] == [True, True]
        assert len(result) == 14
        for name, (on_cpu, on_device) in result.items():
            _assert_close(on_cpu, on_device, name)


def _assert_close(a: Any, b: Any, name: str) -> None:
    if isinstance(a, list):
        assert len(a) == len(b), name
        for x, y in zip(a, b, strict=True):
            _assert_close(x, y, name)
    elif isinstance(a, float):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 if name == "compiled_training" else 1e-7, err_msg=name)
    else:
        assert a == b, name


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 5), torch.randint(0, 3, (32,)))
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(rank)
model = DDP(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.to(rank)).backward()
    optimizer.step()
print(next(model.parameters()).is_cuda, dist.get_world_size())
print("sum", sum(p.double().abs().sum().item() for p in model.parameters()))
if len(sys.argv) > 1 and rank == 1:
    os.kill(os.getpid(), int(sys.argv[1])) if sys.argv[1] != "0" else sys.exit("rank 1 is broken")
dist.barrier()
dist.destroy_process_group()
"""


def _reference() -> float:
    torch.manual_seed(0)
    x, y = torch.randn(32, 5), torch.randint(0, 3, (32,))
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for i in range(0, 32, 8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[i : i + 8]), y[i : i + 8]).backward()
        optimizer.step()
    return sum(p.double().abs().sum().item() for p in model.parameters())


@pytest.mark.parametrize("backend", [pytest.param("numpy", marks=pytest.mark.slow), "jax"])
def test_script_for_nccl(backend: str, tmp_path: Path) -> None:
    """A script for several GPUs, unmodified: two processes follow one with the whole batch."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = start(["-m", "tensorgraft", "run", "--on", backend, "--processes", "2", str(script)])
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = done.stdout.splitlines()  # of the first process alone
    assert first == "True 2"
    np.testing.assert_allclose(float(second.split()[1]), _reference(), rtol=1e-6)


def test_processes_that_a_program_starts(tmp_path: Path) -> None:
    """They have its backend as their CUDA; the CPU counts as so many devices as are asked for."""
    script = tmp_path / "spawning.py"
    script.write_text(
        "import torch\n"
        "def main(rank):\n"
        "    x = torch.ones(2, device=f'cuda:{rank}')\n"
        "    print(torch.cuda.is_available(), torch.cuda.device_count(), x.is_cuda, x.device.index)\n"
        "if __name__ == '__main__':\n"
        "    n = torch.cuda.device_count()\n"
        "    torch.multiprocessing.start_processes(main, nprocs=n)\n"
    )
    done = start(["-m", "tensorgraft", "run", "--on", "numpy", "--devices", "2", str(script)])
    assert sorted(done.stdout.splitlines()) == ["True 2 True 0", "True 2 True 1"], done.stderr[-3000:]


MISMATCH = """
import torch, torch.distributed as dist
dist.init_process_group("graft")
x = torch.ones(3 + dist.get_rank(), device="graft")
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print("Detected mismatch" in str(error), flush=True)
"""


@pytest.mark.slow
def test_detail_names_calls_that_do_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "mismatch.py"
    script.write_text(MISMATCH)
    done = start([*LAUNCHED, "2", str(script)], TORCH_DISTRIBUTED_DEBUG="DETAIL", TENSORGRAFT_BACKEND="numpy")
    assert re.findall("True|False", done.stdout) == ["True", "True"], done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("0", 1), ("9", 137)])
def test_process_that_ends(how: str, code: int, tmp_path: Path) -> None:
    """The others end too, and the launcher says which one it was."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = start(["-m", "tensorgraft", "run", "--on", "numpy", "--processes", "2", str(script), how])
    assert done.returncode == code
    assert re.search(r"Root Cause.*rank +: 1 ", done.stderr, re.DOTALL)
    assert how == "9" or "[default1]:rank 1 is broken" in done.stderr


@pytest.mark.slow
def test_fsdp(tmp_path: Path) -> None:
    """Both kinds: offloaded parameters, whole states in other models, what is saved while the training goes on."""
    program = str(HERE / "fsdp_program.py")
    done = start(["-m", "tensorgraft", "run", "--on", "jax", "--processes", "2", program, str(tmp_path)])
    assert done.returncode == 0 and "all follow" in done.stdout, done.stderr[-4000:]


def test_accelerator_of_who_never_uses_the_device() -> None:
    """FSDP, meshes and process groups take the CPU, as without us; after the first use the device."""
    done = start(
        [
            "-c",
            "import torch\nask = lambda: (torch._C._get_accelerator().type, torch.accelerator.is_available())\n"
            "print(*ask()); torch.ones(1, device='graft'); print(*ask())",
        ]
    )
    assert done.stdout.split() == ["cpu", "False", "graft", "True"], done.stderr


def test_mesh_chooses_the_device_of_a_process() -> None:
    """That of its number on the machine, as with CUDA, unless the program has chosen or used one."""
    program = (
        "import sys, torch\nfrom torch.distributed.device_mesh import init_device_mesh as mesh\n"
        "exec(sys.argv[1])\nmesh('graft', (1,))\n"
        "print(torch.graft.is_initialized(), torch.ones(1, device='graft').device)"
    )
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TENSORGRAFT_BACKEND": "numpy"}
    for first, device in (
        ("", "graft:1"),
        ("torch.graft.set_device(0)", "graft:0"),
        ("torch.ones(1).to('graft')", "graft:0"),
    ):
        done = start(["-c", program, first], **launched)
        assert done.stdout.split() == ["True", device], done.stderr[-3000:]


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_released_storage(backend: str) -> None:
    """What FSDP does with gathered parameters: memory is given back, and comes again."""
    x = torch.arange(6.0, device=tg.device(backend))
    view, storage = x[2:4], x.untyped_storage()
    assert storage.resize_(0) is storage and storage.size() == storage.nbytes() == len(storage) == 0
    for use in (lambda: x + 1, lambda: view.fill_(1.0), lambda: x.cpu(), lambda: view.clone()):
        with pytest.raises(RuntimeError, match=r"released \(resize_\(0\)\): resize_\(24\)"):
            use()
    storage.resize_(24)
    x.zero_()
    view.fill_(3.0)
    assert x.tolist() == [0, 0, 3, 3, 0, 0] and storage.nbytes() == 24
    with pytest.raises(RuntimeError, match="not resizable, of 24 bytes to 32"):
        storage.resize_(32)
