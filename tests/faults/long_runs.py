"""`python -m tests.faults.long_runs --steps 20000`: what grows, and what lasts.

Each run is a process of its own. It trains a small model; after a warm-up of a tenth of its steps (where each step has
another shape, of as many more as it takes to fill the caches) it looks ten times at its memory, Python's objects, open
files and threads, and at the caches.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.02  # of growth, of memory and of objects
LOOKS = 10


# ---- what is looked at -----------------------------------------------------------------------------------------------


def look() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    found = {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(gc.get_objects()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }
    if "jax" in sys.modules and "tensorgraft.backends.jax.compilation.program_cache" in sys.modules:
        from tensorgraft.backends.jax.compilation import program_cache

        found["programs"] = program_cache.count()
    return found


def growth(looks: list[dict[str, int]], name: str) -> float:
    """Of the second half of the looks over the first: what is there for good, without a collector's ups and downs."""
    values = [x[name] for x in looks]
    half = len(values) // 2
    before, after = values[:half], values[half:]
    return sorted(after)[len(after) // 2] / max(1, sorted(before)[len(before) // 2]) - 1


def looking(steps: int, step: Callable[[int], Any], fill: int = 0) -> list[dict[str, int]]:
    """`fill`: the steps in which bounded caches become full."""
    warm = max(fill + steps // 10, 1)
    every = max((steps - warm) // LOOKS, 1)
    looks = []
    for i in range(steps):
        step(i)
        if i >= warm and (i - warm) % every == every - 1:
            looks.append(look())
    return looks


# ---- training --------------------------------------------------------------------------------------------------------


def training(backend: str, mode: str, steps: int, shapes: int) -> dict[str, Any]:
    """`mode`: eager, jit or lazy; `shapes`: how many sizes of batches there are; 0: each step has another one."""
    import torch
    from torch.nn import functional as F

    import tensorgraft as tg
    from tensorgraft.frontends.torch.core.operator import MOST

    fill = 0 if shapes else MOST  # each operator keeps the plans of so many shapes
    torch.manual_seed(0)
    device = tg.device(backend)
    torch.graft.set_device(device)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sizes = random.Random(0)
    new = sizes.sample(range(1, steps + 1), steps)
    xs = torch.randn((shapes or steps) + 8, 8)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = tg.jit(step) if mode == "jit" else step

    def one(i: int) -> None:
        n = new[i] if shapes == 0 else 8 if shapes == 1 else 1 + sizes.randrange(shapes)
        x = xs[:n].to(device)
        loss = run(x, x[:, :1] * 0.5)
        if i % 100 == 0:
            assert torch.isfinite(loss.cpu())

    if mode == "lazy":
        with tg.lazy():
            looks = looking(steps, one, fill)
    else:
        looks = looking(steps, one, fill)
    return {"looks": looks, "loss": float(F.mse_loss(model(xs[:8].to(device)), (xs[:8, :1] * 0.5).to(device)).item())}


# ---- threads, workers ------------------------------------------------------------------------------------------------


def threads(backend: str, mode: str, steps: int, shapes: int) -> dict[str, Any]:
    """Four threads differentiate one module, each with inputs of its own; each result is that of one thread alone."""
    import threading

    import torch

    import tensorgraft as tg

    torch.manual_seed(0)
    device = tg.device(backend)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    params = list(model.parameters())
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    plain.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    wrong: list[str] = []
    forward = tg.jit(lambda x: model(x).square().mean()) if mode == "jit" else lambda x: model(x).square().mean()

    def work(k: int) -> None:
        try:
            for i in range(steps // 4):
                x = torch.randn(1 + (k + i) % 6, 8)
                ours = torch.autograd.grad(forward(x.to(device)), params)
                theirs = torch.autograd.grad(plain(x).square().mean(), list(plain.parameters()))
                for a, b in zip(ours, theirs, strict=True):
                    if not torch.allclose(a.cpu(), b, rtol=1e-4, atol=1e-5):
                        wrong.append(f"thread {k}, step {i}: {(a.cpu() - b).abs().max()}")
                        return
        except BaseException as error:
            wrong.append(f"thread {k}: {type(error).__name__}: {str(error)[:200]}")

    running = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    return {"looks": [], "wrong": wrong}


def numbers(n: int = 64) -> Any:
    """A data set that workers can import."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, :1] * 0.5)


def workers(backend: str, mode: str, steps: int, shapes: int) -> dict[str, Any]:
    """`mode`: fork or spawn. A `DataLoader` with two workers feeds a training loop, epoch after epoch."""
    import torch
    from torch.nn import functional as F

    import tensorgraft as tg

    device = tg.device(backend)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    F.mse_loss(model(torch.zeros(2, 8, device=device)), torch.zeros(2, 1, device=device)).backward()  # it is in use
    loader = torch.utils.data.DataLoader(
        numbers(), batch_size=8, num_workers=2, multiprocessing_context=mode, persistent_workers=False
    )
    looks = []
    losses = []
    for epoch in range(max(steps // 8, 4)):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        if epoch:
            looks.append(look())
    return {"looks": looks, "wrong": [] if losses[-1] < losses[0] else [f"the loss is {losses}"]}


SEEDS = (1, 2, 3)  # of the times at which signals come


# ---- compile cache, full disks, signals ------------------------------------------------------------------------------

_STEP = """
import os, sys, torch, tensorgraft as tg
from torch.nn import functional as F
torch.manual_seed(0)
device = tg.device("jax")
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x[:, :1])
    loss.backward()
    optimizer.step()
    return loss.detach()
run = tg.jit(step)
x = torch.ones(3, 4, device=device)
"""


def _start(program: str, cache: Path, **more: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORGRAFT", "JAX_"))}
    env = {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1",
           "TENSORGRAFT_CACHE_DIR": str(cache), **more}  # fmt: skip
    return subprocess.Popen([sys.executable, "-W", "error", "-c", program], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def _said(process: subprocess.Popen[str], quiet: bool = True) -> str:
    """`quiet`: nothing is to be on standard error. (A file that Python's import was reading is closed with a word.)"""
    out, err = process.communicate(timeout=300)
    if process.returncode or (err and quiet):
        raise AssertionError(f"{process.returncode}: {err[-600:]}")
    return out.strip()


def one_cache(folder: Path, count: int = 6) -> dict[str, Any]:
    """Processes that start at once on an empty cache; then on one with broken entries of every kind."""
    program = _STEP + "print([round(run(x).item(), 5) for _ in range(3)])"
    cache = folder / "cache"
    answers = {_said(p) for p in [_start(program, cache, TENSORGRAFT_EAGER="compiled") for _ in range(count)]}
    files = sorted(cache.rglob("*-cache"))
    whole = {f: f.read_bytes() for f in files}
    for i, f in enumerate(files):
        content = bytearray(whole[f])
        if i % 4 == 0:
            f.write_bytes(content[: len(content) // 2])
        elif i % 4 == 1:
            f.write_bytes(b"")
        elif i % 4 == 2:
            content[len(content) // 2] ^= 1
            f.write_bytes(bytes(content))
        else:
            f.unlink()
            f.mkdir()  # cannot be read
    answers |= {_said(p) for p in [_start(program, cache, TENSORGRAFT_EAGER="compiled") for _ in range(2)]}
    repaired = sum(f.is_file() and len(f.read_bytes()) > 100 for f in files)
    left = [f.name for f in cache.rglob("*.tmp")]
    wrong = [] if len(answers) == 1 and not left else [f"answers {answers}, left behind {left}"]
    if repaired < len([f for f in files if not f.is_dir()]):
        wrong.append(f"only {repaired} of {len(files)} entries are whole again")
    return {"entries": len(files), "processes": count + 2, "wrong": wrong}


def full_disk(folder: Path) -> dict[str, Any]:
    """No byte can be written beyond a few: the cache does without, and a checkpoint that was there stays as it was."""
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        + _STEP
        + """
from tensorgraft.transforms.serialisation import tree_serialise_leaves
import pathlib
path = os.environ["CHECKPOINT"]
big = {"w": torch.ones(64, 64)}
tree_serialise_leaves(path, big)
before = pathlib.Path(path).read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
print([round(run(x).item(), 5) for _ in range(3)])
try:
    tree_serialise_leaves(path, {"w": torch.zeros(64, 64)})
    print("written")
except Exception as error:
    print(type(error).__name__)
print(pathlib.Path(path).read_bytes() == before, sorted(os.listdir(os.path.dirname(path))))
"""
    )
    (folder / "files").mkdir()
    out = _said(_start(program, folder / "cache", CHECKPOINT=str(folder / "files" / "weights"))).splitlines()
    usual = _said(_start(_STEP + "print([round(run(x).item(), 5) for _ in range(3)])", folder / "other"))
    wrong = []
    if out[0] != usual:
        wrong.append(f"the answers are {out[0]}, {usual} with room")
    if out[1] == "written" or out[2] != "True ['weights']":
        wrong.append(f"the checkpoint: {out[1:]}")
    broken = [f.name for f in (folder / "cache").rglob("*-cache") if f.stat().st_size >= 1000]
    return {"wrong": wrong + ([f"in the cache are {broken}"] if broken else [])}


def signals(folder: Path) -> dict[str, Any]:
    """SIGINT and SIGTERM while a step is compiled and run, at random times: the model is whole, and goes on."""
    program = (
        """
import signal, threading, time, random
"""
        + _STEP
        + """
def stop(*_): raise SystemExit
signal.signal(signal.SIGTERM, stop)
chance = random.Random(int(os.environ["SEED"]))
plain = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
interrupted = 0
for trial in range(40):
    if trial % 2 == 0: run = tg.jit(step)
    plain.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    before = [p.detach().cpu().clone() for p in model.parameters()]
    number = signal.SIGINT if trial % 3 else signal.SIGTERM
    wait = chance.random() * (0.3 if trial % 2 == 0 else 0.001)
    timer = threading.Timer(wait, lambda: os.kill(os.getpid(), number))
    try:
        timer.start()
        run(x)
        while timer.is_alive(): time.sleep(0.001)
        time.sleep(0.01)
    except (KeyboardInterrupt, SystemExit):
        interrupted += 1
    timer.join()
    xs = torch.ones(3, 4)
    loss = F.mse_loss(plain(xs), xs[:, :1])
    grads = torch.autograd.grad(loss, list(plain.parameters()))
    after = [p.detach() - 0.1 * g for p, g in zip(plain.parameters(), grads)]
    now = [p.detach().cpu() for p in model.parameters()]
    same = lambda a: all(torch.allclose(x, y, atol=1e-5) for x, y in zip(a, now))
    assert same(before) or same(after), (trial, number)
print(interrupted)
"""
    )
    running = [_start(program, folder / "cache", SEED=str(seed)) for seed in SEEDS]
    count = sum(int(_said(p, quiet=False)) for p in running)
    return {"interrupted": count, "wrong": [] if count > 20 else [f"{count} interrupts only"]}


# ---- all of them -----------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., dict[str, Any]]] = {"training": training, "threads": threads, "workers": workers}
ALONE = {"one cache": one_cache, "full disk": full_disk, "signals": signals}


def plans(steps: int) -> Iterator[tuple[str, str, str, int, int]]:
    """(kind, backend, mode, steps, shapes)"""
    for backend in ("jax", "numpy", "torch", "tensorflow"):
        yield "training", backend, "eager", steps, 1
        if backend != "numpy":
            yield "training", backend, "jit", steps, 1
    for backend in ("jax", "numpy", "torch"):
        yield "training", backend, "lazy", steps, 1
    for backend in ("jax", "numpy", "torch", "tensorflow"):
        yield "training", backend, "eager", steps, 0
        if backend != "tensorflow":
            yield "training", backend, "lazy", steps, 0
    yield "training", "jax", "jit", steps, 0  # on the others it is an error: where nothing is cold, all is compiled
    yield "training", "tensorflow", "jit", steps, 0
    yield "training", "numpy", "eager", steps, 500
    yield "training", "jax", "eager", steps, 500
    yield "training", "jax", "jit", steps, 16
    yield "training", "jax", "lazy", steps, 16
    for backend in ("jax", "numpy", "torch", "tensorflow"):
        yield "threads", backend, "eager", min(steps, 2000), 1
    for backend in ("jax", "torch", "tensorflow"):
        yield "threads", backend, "jit", min(steps, 2000), 1
    for mode in ("fork", "spawn"):
        yield "workers", "jax", mode, min(steps // 100, 64), 1


def verdict(outcome: dict[str, Any]) -> list[str]:
    wrong = list(outcome.get("wrong", []))
    looks = outcome.get("looks", [])
    if looks:
        for name, limit in (("memory", LIMIT), ("objects", LIMIT), ("files", 0), ("threads", 0)):
            if growth(looks, name) > limit:
                wrong.append(f"{name} grow by {growth(looks, name):.1%}: {[x[name] for x in looks]}")
    return wrong


def process(kind: str, backend: str, mode: str, steps: int, shapes: int) -> dict[str, Any]:
    """One run in a process of its own."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "JAX_PLATFORMS": "cpu",
           "TENSORGRAFT_TORCH_COMPILER": "none", "TENSORGRAFT_CACHE": "0", "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.long_runs", "--one",
               json.dumps([kind, backend, mode, steps, shapes])]  # fmt: skip
    start = time.time()
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"looks": [], "wrong": [done.stderr[-800:]], "seconds": time.time() - start}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.time() - start}


def main() -> int:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--only", default="", help="runs whose name has this in it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", default=str(Path(__file__).parent / "kept" / "long_runs.json"))
    options = parser.parse_args()
    if options.one:
        kind, *rest = json.loads(options.one)
        print(json.dumps(KINDS[kind](*rest)))
        return 0
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    failed = False

    def note(name: str, outcome: dict[str, Any]) -> None:
        nonlocal failed
        looks = outcome.pop("looks", [])
        wrong = verdict({**outcome, "looks": looks})
        failed = failed or bool(wrong)
        if looks:
            outcome |= {f"{n} grow": growth(looks, n) for n in ("memory", "objects")}
            outcome |= {n: looks[-1][n] for n in ("memory", "objects", "files", "threads")}
            outcome |= {"programs": looks[-1].get("programs")}
        table = json.loads(out.read_text()) if out.exists() else {}
        table[name] = {**outcome, "wrong": wrong}
        out.write_text(json.dumps(table, indent=1))
        print(name, {k: v for k, v in table[name].items() if v not in (None, [])}, flush=True)

    for kind, backend, mode, steps, shapes in plans(options.steps):
        name = f"{kind}, {backend}, {mode}, {shapes or 'ever new'} shapes, {steps} steps"
        if options.only in name:
            note(name, process(kind, backend, mode, steps, shapes))
    for name, run in ALONE.items():
        if options.only in name:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    note(name, run(Path(folder)))
                except AssertionError as error:
                    note(name, {"wrong": [str(error)]})
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
