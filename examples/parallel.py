"""Train two PyTorch models on one device and on eight, of one process and of two, placed in several ways, and compare
the runs.

    python examples/parallel.py     # or `make demo-parallel`; the table goes to out/parallel.json, curves to .png

The eight devices are simulated on the CPU; the processes are this script under `tensorgraft run`. Fails where a loss
curve leaves that of one device by more than 1e-5, or a device of eight has more than 0.15 of a fully sharded model's
parameters, gradients and optimizer state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEVICES = 8
SIMULATED = f"--xla_force_host_platform_device_count={DEVICES}"
if "WORLD_SIZE" not in os.environ:  # else it is one of several processes, whose launcher has said how many each has
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {SIMULATED}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "pytorch"))

# after what JAX reads when it starts
import digits  # noqa: E402
import gpt  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Column, Table  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import tensorgraft as tg  # noqa: E402

CURVES_WITHIN = 1e-5
MEMORY_WITHIN = 0.15
ONE = "one device"
PROCESSES = 2
WAYS = ("eager", "compiled", "lazy")
Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass
class Work:
    """A model, the batches that it sees, and its plan for layers in pieces, where it has one."""

    model: nn.Module
    batches: Batches
    by_layers: dict[str, Any]
    lr: float


def digits_work() -> Work:
    generator = torch.Generator().manual_seed(0)
    loader, _, _ = digits.load(64, generator)
    plan = {"hidden.weight": ("model", None), "hidden.bias": ("model",), "classify.weight": (None, "model")}
    return Work(digits.Net(), digits.forever(loader), plan, 2e-3)


def gpt_work() -> Work:
    generator = torch.Generator().manual_seed(0)
    characters, codes, _ = gpt.load(gpt.TEXT)
    model = gpt.GPT(len(characters))

    def batches() -> Batches:
        while True:
            yield gpt.batch(codes, 16, model.block, generator)

    layer = {
        "qkv.weight": ("model", None),
        "qkv.bias": ("model",),
        "out.weight": (None, "model"),
        "mlp.0.weight": ("model", None),
        "mlp.0.bias": ("model",),
        "mlp.2.weight": (None, "model"),
    }
    return Work(model, batches(), {f"blocks.*.{name}": spec for name, spec in layer.items()}, 1e-3)


WORKS: dict[str, tuple[Callable[[], Work], int]] = {"digits": (digits_work, 25), "gpt": (gpt_work, 15)}
# name -> (shape of the mesh, names of its axes, the plan of a work)
PLACEMENTS: dict[str, tuple[tuple[int, ...], tuple[str, ...], Callable[[Work], dict[str, Any]]]] = {
    "data 8": ((8,), ("data",), lambda work: tg.parallel.data_parallel()),
    "fully sharded 8": ((8,), ("data",), lambda work: tg.parallel.fully_sharded()),
    "data 4 x tensor 2": ((4, 2), ("data", "model"), lambda work: work.by_layers),
    "sequence parallel": ((4, 2), ("data", "model"), lambda work: along_sequences(work)),
}


WITHOUT = {("digits", "sequence parallel")}  # it has no sequences
OF_PROCESSES = "processes.json"


def along_sequences(work: Work) -> dict[str, Any]:
    norms = [name for name, part in work.model.named_modules() if isinstance(part, nn.LayerNorm)]
    return work.by_layers | {name: tg.parallel.Output(("data", "model", None)) for name in norms}


@dataclass
class Outcome:
    work: str
    placement: str
    way: str
    losses: list[float]
    seconds: float
    memory: int  # bytes of parameters, gradients and optimizer state on the device that has most
    difference: float = 0.0
    share: float = 1.0  # of the memory of one device


def train(name: str, placement: str, way: str, steps: int) -> Outcome:
    start = time.perf_counter()
    torch.manual_seed(0)
    work = WORKS[name][0]()
    model = work.model.to(tg.device("jax"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.lr)
    mesh, part, parts = None, 0, 1
    if placement != ONE:
        shape, names, plan = PLACEMENTS[placement]
        mesh = tg.parallel.mesh(shape, names)
        tg.parallel.shard_(model, mesh, plan(work))
        part, parts = tg.parallel.batch_part(mesh)

    def train_step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = tg.jit(train_step, compile="first") if way == "compiled" else train_step
    losses = []
    with tg.lazy() if way == "lazy" else contextlib.nullcontext():
        for _, batch in zip(range(steps), work.batches, strict=False):
            own = [x.chunk(parts)[part] for x in batch]
            on_device = own if mesh is None else tg.parallel.shard_batch(own, mesh)
            losses.append(step(*[x.to(tg.device("jax")) for x in on_device]).item())
    state = [t for kept in optimizer.state.values() for t in kept.values() if t.device.type != "cpu"]
    held = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), *state]
    memory = max(tg.parallel.bytes_by_device(held).values())
    return Outcome(name, placement, way, losses, time.perf_counter() - start, memory)


def on_processes(work: str, steps: int) -> list[Outcome]:
    """The same, compiled, of processes that have the eight devices together."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ["run", "--on", "jax", "--processes", str(PROCESSES), "--devices", str(DEVICES // PROCESSES)]
        own = ["--models", work, "--ways", "compiled", "--steps", str(steps), "--out", folder]
        env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        subprocess.run([sys.executable, "-m", "tensorgraft", *launch, __file__, *own], env=env, check=True)
        kept = json.loads((Path(folder) / OF_PROCESSES).read_text())
    return [Outcome(**o) for o in kept]


def as_a_process(works: list[str], way: str, steps: int, out: Path) -> int:
    """What each of several processes does."""
    outcomes = [train(w, p, way, steps) for w in works for p in PLACEMENTS if (w, p) not in WITHOUT]
    for o in outcomes:
        o.placement += f", {PROCESSES} processes"
    if tg.parallel.process_index() == 0:
        (out / OF_PROCESSES).write_text(json.dumps([asdict(o) for o in outcomes]))
    return 0


def table(outcomes: list[Outcome]) -> Table:
    numbers = ("final loss", "difference", "memory", "share", "in all")
    result = Table("model", "placed", "runs", *(Column(n, justify="right") for n in numbers))
    for i, o in enumerate(outcomes):
        if i and outcomes[i - 1].work != o.work:
            result.add_section()
        figures = f"{o.losses[-1]:.5f}", f"{o.difference:.1e}", f"{o.memory / 1e3:.0f} kB", f"{o.share:.3f}"
        result.add_row(o.work, o.placement, o.way, *figures, f"{o.seconds:.1f} s")
    return result


def plot(outcomes: list[Outcome], path: Path) -> None:
    """The loss curves, and below each its distance from that of one device."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    works = list(dict.fromkeys(o.work for o in outcomes))
    figure, axes = plt.subplots(2, len(works), figsize=(6 * len(works), 6), squeeze=False, height_ratios=[2, 1])
    styles = dict(zip(WAYS, ("-", "--", ":"), strict=True))
    for (upper, lower), work in zip(axes.T, works, strict=True):
        runs = [o for o in outcomes if o.work == work]
        colors = {p: f"C{i}" for i, p in enumerate(dict.fromkeys(o.placement for o in runs))}
        one = {o.way: o for o in runs if o.placement == ONE}
        for o in runs:
            alone = o.placement == ONE
            style = {"color": "0.8", "linewidth": 4} if alone else {"color": colors[o.placement], "linewidth": 1}
            label = f"{o.placement}, {o.way}"
            upper.plot(o.losses, styles[o.way], label=label, **style)
            away = [max(abs(a - b), 1e-9) for a, b in zip(o.losses, one[o.way].losses, strict=True)]
            if not alone:
                lower.plot(away, styles[o.way], **style)
        lower.axhline(CURVES_WITHIN, color="0.4", linewidth=0.8)
        lower.set(yscale="log", xlabel="step", ylabel=f"distance from {ONE}", ylim=(5e-10, 1e-4))
        upper.set(title=work, ylabel="training loss")
        upper.legend(frameon=False, fontsize=6, ncol=2)
        for axis in (upper, lower):
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--on-processes", nargs="*", choices=WORKS, default=["gpt"], help="models for two processes")
    parser.add_argument("--steps", type=int, help="steps of training, instead of each model's own number")
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="lazy mode has compiled")

    console = Console()
    if not console.is_terminal:
        console.width = 110
    if "WORLD_SIZE" in os.environ:
        return as_a_process(args.models, args.ways[0], args.steps, args.out)
    outcomes: list[Outcome] = []

    def compared(o: Outcome) -> None:
        one = next((x for x in outcomes if (x.work, x.placement, x.way) == (o.work, ONE, o.way)), o)
        o.difference = max(abs(a - b) for a, b in zip(o.losses, one.losses, strict=True))
        o.share = o.memory / one.memory
        outcomes.append(o)

    for work in args.models:
        for placement in (ONE, *PLACEMENTS):
            if (work, placement) in WITHOUT:
                continue
            for way in args.ways:
                console.print(f"{work}, {placement}, {way}", style="dim", highlight=False)
                compared(train(work, placement, way, args.steps or WORKS[work][1]))
        if "compiled" in args.ways and work in args.on_processes:
            console.print(f"{work}, {PROCESSES} processes, compiled", style="dim", highlight=False)
            for o in on_processes(work, args.steps or WORKS[work][1]):
                compared(o)
    console.print(table(outcomes))
    console.print(
        f"difference: the largest from {ONE} over the loss curve; memory: parameters, gradients and optimizer state of"
        " the device that has most; share: of one device's",
        style="dim",
        highlight=False,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "parallel.json").write_text(json.dumps([asdict(o) for o in outcomes]))
    plot(outcomes, args.out / "parallel.png")
    console.print(f"curves: {args.out / 'parallel.png'}", highlight=False)
    missed = [o for o in outcomes if o.difference > CURVES_WITHIN]
    missed += [o for o in outcomes if o.placement.startswith("fully sharded 8") and o.share > MEMORY_WITHIN]
    for o in missed:
        console.print(f"{o.work}, {o.placement}, {o.way} is not within what is promised", style="red")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
