"""`tg.parallel` over the devices of several processes: what each of them runs. Started by `test_on_several_processes`.

Arguments: the names of what is to be run. Values are those that this process computes by itself on one device.
"""

import contextlib
import os
import sys
import time

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import parallel
from tensorgraft.frontends.torch import fallbacks

DEVICE = tg.device("jax")
LINE = parallel.mesh(8, "data")
GRID = parallel.mesh((4, 2), ("data", "model"))
INDEX, COUNT = parallel.process_index(), parallel.process_count()


def matrix(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.up = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class GPT(nn.Module):
    """One block."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 16)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.block(self.table(x), src_mask=mask, is_causal=True))


def numbers():
    return matrix(32, 8), torch.arange(32) % 8


def characters():
    codes = torch.randint(0, 16, (8, 13), generator=torch.Generator().manual_seed(1))
    return codes[:, :-1], codes[:, 1:]


LAYERS = {
    Net: {"up.weight": ("model", None), "up.bias": ("model",), "down.weight": (None, "model")},
    GPT: {"block.linear1.*": ("model",), "block.linear2.weight": (None, "model")},
}
PLANS = {
    "data": lambda kind: (LINE, parallel.data_parallel()),
    "fully sharded": lambda kind: (LINE, parallel.fully_sharded()),
    "grid": lambda kind: (GRID, LAYERS[kind]),
}


def training(kind, way, plan=None, steps=3):
    torch.manual_seed(0)
    model = kind().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = numbers() if kind is Net else characters()
    if plan is None:
        batch = [x.to(DEVICE) for x in batch]
    else:
        mesh, chosen = PLANS[plan](kind)
        parallel.shard_(model, mesh, chosen)
        part, parts = parallel.batch_part(mesh)
        batch = parallel.shard_batch([x.chunk(parts)[part] for x in batch], mesh)
        assert len(batch[0]) == (32 if kind is Net else 8)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tg.jit(step, compile="first") if way == "compiled" else step
    with tg.lazy() if way == "lazy" else contextlib.nullcontext():
        losses = [compiled(*batch).item() for _ in range(steps)]
    if plan == "fully sharded":
        held = [p for q in model.parameters() for p in (q, q.grad, *optimizer.state[q].values())]
        held = [t for t in held if t.device == DEVICE]
        whole = sum(t.numel() * t.element_size() for t in held)
        here = parallel.bytes_by_device(held)
        assert len(here) == 8 // COUNT and max(here.values()) <= 0.15 * whole
    return losses, {name: t.cpu() for name, t in model.state_dict().items()}


def follows_one_device(kind, way, plan):
    losses, weights = training(kind, way, plan)
    alone, own = training(kind, "eager")
    np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-5, err_msg=f"{kind.__name__}, {way}, {plan}")
    for name, w in weights.items():
        if name.endswith("in_proj_bias"):  # keys have no use for one: Adam makes steps of what rounding leaves
            continue
        np.testing.assert_allclose(w.double(), own[name].double(), atol=2e-3, err_msg=name)


def curves():
    """Some of all."""
    follows_one_device(Net, "eager", "grid")
    follows_one_device(Net, "compiled", "fully sharded")


def all_curves():
    for kind in (Net, GPT):
        for plan in PLANS:
            for way in ("eager", "compiled", "lazy"):
                follows_one_device(kind, way, plan)


def values():
    """What is a process's own, beside what is spread; and where values are read."""
    numbers = torch.arange(16.0).reshape(8, 2)
    x = parallel.shard(numbers, LINE, ("data",))
    own = torch.ones(8, 2, device=DEVICE)
    y = x + own
    assert parallel.placement(y).spec == (("data",), ()) and torch.equal(y.cpu(), numbers + 1)
    assert torch.equal((own @ parallel.replicate(torch.ones(2, 3), LINE)).cpu(), torch.full((8, 3), 2.0))
    assert y.sum().item() == 136 and y[3].tolist() == [7, 8] and (y > 3).nonzero().shape == (13, 2)
    y[0] = own[0] * 5
    assert y.sum().item() == 143 and parallel.placement(x).spec == (("data",), ())
    assert sorted(parallel.bytes_by_device(x).values()) == [8] * (8 // COUNT)
    moved = parallel.shard(x, parallel.mesh((4, 2), ("model", "data")), (None, "data"))
    assert torch.equal(moved.cpu(), numbers)
    part, parts = parallel.batch_part(LINE)
    assert (part, parts) == (INDEX, COUNT)
    batch = parallel.shard_batch({"x": torch.full((4, 2), float(part)), "n": 3}, LINE)
    assert batch["n"] == 3 and batch["x"][:, 0].tolist() == [float(i) for i in range(COUNT) for _ in range(4)]
    turned = parallel.mesh((2, 4), ("model", "data"))  # each process has some of all parts, or two share them
    assert parallel.batch_part(turned)[1] == max(1, COUNT // 2)

    a = parallel.shard(xp.asarray(np.ones(8)), LINE, ("data",))
    assert float(xp.sum(a * 2)) == 16 and parallel.placement(a).spec == (("data",),)
    c = parallel.shard(jnp.arange(8.0), LINE, ("data",))
    assert float(parallel.constrain(c, (), LINE).sum()) == 28
    with torch.autocast("graft", dtype=torch.bfloat16):
        assert (x @ torch.ones(2, 3, device=DEVICE)).dtype == torch.bfloat16

    @tg.jit(compile="first")
    def placing(x):  # its argument is this process's own
        return parallel.constrain(x * 2, ("data",), LINE)

    assert placing(own).sum().item() == placing(own).sum().item() == 32
    z = parallel.replicate(own, LINE)
    for _ in range(20):  # calls of one program with either
        own, z = own * 1.5, z * 1.5
    assert parallel.placement(own) is None and parallel.placement(z).is_replicated and torch.equal(own.cpu(), z.cpu())
    draws = parallel.replicate(torch.randn(4, device=DEVICE), LINE)  # never seeded, and the same on all
    assert len(draws.tolist()) == 4 and not fallbacks()


def refused(words, fn, *args):
    try:
        fn(*args)
    except (RuntimeError, ValueError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error: {words}")


def errors():
    """One on every process, before anything is changed."""
    first = INDEX == 0
    x = parallel.shard(matrix(8, 2), LINE, ("data",))
    refused("requires 16 devices, but there are", parallel.mesh, 16, "data")
    refused("all of which must be used equally", parallel.mesh, 3, "data")
    refused("differ in the array", parallel.shard, torch.ones(8) * INDEX, LINE, ("data",))
    model = nn.Linear(4, 8).to(DEVICE)
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, float(INDEX))
    refused(
        "differ in bias: process 0 places arrays on a mesh by shard_", parallel.shard_, model, LINE, {"*": ("data",)}
    )
    assert parallel.placement(model.weight) is None
    refused("differ in the program: process 0 runs", lambda: x.exp() if first else x.sin())
    refused("different things: process 0 asks for the values", lambda: x.cpu() if first else x.cos())
    refused("different things", lambda: parallel.shard_batch(torch.ones(4 * (1 + INDEX), 2), LINE).tan())
    needs = torch.ones(4, 2, requires_grad=True)
    refused("requires a gradient", parallel.shard_batch, needs, LINE)
    assert x.shape == (8, 2) and len(x.cpu()) == 8  # and goes on


def absent():
    """A process that does not come."""
    x = parallel.shard(matrix(8, 2), LINE, ("data",))
    if INDEX == 0:
        refused("process 1 of the program has not come within 3 s", x.cpu)
    else:
        time.sleep(4)


def dies():
    x = parallel.shard(matrix(8, 2), LINE, ("data",))
    for i in range(1 << 20):
        x = x - x.mean()
        x.sum().item()
        if i == 5 and INDEX == 1:
            os.kill(os.getpid(), 9)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
    print("done", *sys.argv[1:], flush=True)
