"""Checkpoints of what lies on a mesh, and runs that go on from them. Run by `test_on_eight_devices`."""

import json
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import parallel
from tensorgraft.backends.jax.backend import JaxBackend

DEVICE = tg.device("jax")
MESH = parallel.mesh((4, 2), ("data", "model"))
LINE = parallel.mesh(8, "data")
SIZE = 16 * 16 * 4  # bytes of the weight


@pytest.fixture(autouse=True)
def _one_process():
    """DCP says each time that there is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
        yield


@pytest.fixture
def brought(monkeypatch):
    """[bytes of the largest array that has been brought to the host]"""
    most, original = [0], JaxBackend.to_numpy

    def to_numpy(self, x):
        host = original(self, x)
        most[0] = max(most[0], host.nbytes)
        return host

    monkeypatch.setattr(JaxBackend, "to_numpy", to_numpy)
    return most


class Net(nn.Module):
    """A weight that lies transposed, half precision, whole numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.turned = nn.Parameter(torch.randn(16, 8).T)
        self.register_buffer("short", torch.randn(8, 4).bfloat16())
        self.register_buffer("count", torch.tensor(3))


PLANS = {
    "fully sharded": (LINE, parallel.fully_sharded()),
    "tensor": (MESH, {"weight": ("model", "data"), "turned": ("model", "data"), "short": ("data",)}),
    "two devices": (parallel.mesh(2, "data"), {"count": (), "*": (None, "data")}),
    "replicated": (LINE, parallel.data_parallel()),
}


def placed(plan):
    mesh, chosen = PLANS[plan]
    return parallel.shard_(Net(), mesh, chosen)


def specs(model):
    return {name: parallel.placement(t) for name, t in model.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name].cpu(), b[name].cpu()), name


def test_a_piece_at_a_time(tmp_path, brought):
    model = placed("tensor")
    metadata = dcp.save(model.state_dict(), checkpoint_id=tmp_path)
    chunks = {name: [(*c.offsets, *c.sizes) for c in m.chunks] for name, m in metadata.state_dict_metadata.items()}
    assert sorted(chunks["weight"]) == [(i, j, 8, 4) for i in (0, 8) for j in (0, 4, 8, 12)]
    assert len(chunks["turned"]) == 8 and len(chunks["short"]) == 4 and len(chunks["count"]) == 1  # replicas once
    assert brought[0] == SIZE / 8
    same = placed("tensor")
    dcp.load(same.state_dict(), checkpoint_id=tmp_path)
    assert brought[0] == SIZE / 8
    assert_same(same.state_dict(), model.state_dict())


def test_onto_other_devices(tmp_path):
    model = placed("fully sharded")
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "placed")
    wanted = {name: t.cpu() for name, t in model.state_dict().items()}
    for plan in PLANS:
        other = placed(plan)
        before = specs(other)
        with tg.lazy() if plan == "tensor" else warnings.catch_warnings():
            dcp.load(other.state_dict(), checkpoint_id=tmp_path / "placed")
        assert_same(other.state_dict(), wanted)
        assert specs(other) == before, plan
    for other in (Net().to(DEVICE), Net()):  # one device, and plain PyTorch
        dcp.load(other.state_dict(), checkpoint_id=tmp_path / "placed")
        assert_same(other.state_dict(), wanted)
    plain = Net()
    dcp.save(plain.state_dict(), checkpoint_id=tmp_path / "plain")
    other = placed("tensor")
    saved = other.weight.detach().square().sum()  # noqa: F841  (a graph's version of the weight)
    loss = (other.weight * other.weight).sum()
    dcp.load(other.state_dict(), checkpoint_id=tmp_path / "plain")
    assert_same(other.state_dict(), plain.state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_while_the_program_goes_on(tmp_path, brought):
    model = placed("fully sharded")
    wanted = {name: t.cpu() for name, t in model.state_dict().items()}
    brought[0] = 0
    saving = dcp.async_save(model.state_dict(), checkpoint_id=tmp_path)
    assert brought[0] == SIZE / 8
    with torch.no_grad():
        model.weight.add_(1)
    assert len(saving.result().state_dict_metadata["weight"].chunks) == 8
    other = placed("tensor")
    dcp.load(other.state_dict(), checkpoint_id=tmp_path)
    assert_same(other.state_dict(), wanted)


def test_an_interrupted_save(tmp_path, monkeypatch):
    """The checkpoint in the folder stays; a new folder has none, and says so. What is left is cleared later."""
    model, written = placed("fully sharded"), []
    save = torch.save

    def interrupted(*args, **kwargs):
        written.append(args)
        if len(written) == 5:
            raise KeyboardInterrupt
        save(*args, **kwargs)

    def attempt(folder):
        written.clear()
        with monkeypatch.context() as patch, pytest.raises(BaseException, match="KeyboardInterrupt"):
            patch.setattr(torch, "save", interrupted)
            dcp.save(model.state_dict(), checkpoint_id=folder)

    attempt(tmp_path / "new")
    with pytest.raises(BaseException, match=r"\.metadata"):
        dcp.load(placed("tensor").state_dict(), checkpoint_id=tmp_path / "new")
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "last")
    wanted = {name: t.cpu() for name, t in model.state_dict().items()}
    with torch.no_grad():
        model.weight.add_(1)
    for _ in range(2):
        attempt(tmp_path / "last")
        other = placed("tensor")
        dcp.load(other.state_dict(), checkpoint_id=tmp_path / "last")
        assert_same(other.state_dict(), wanted)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "last")
    assert len(list((tmp_path / "last").iterdir())) == 2  # the files of the checkpoints before are gone
    dcp.load(other.state_dict(), checkpoint_id=tmp_path / "last")
    assert_same(other.state_dict(), model.state_dict())


def test_safetensors(tmp_path, brought):
    model = placed("fully sharded")
    state = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}  # whole files have no others
    with pytest.raises(
        BaseException, match="'weight' is sharded over devices, in 8 pieces: pass save_distributed=True"
    ):
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(tmp_path / "refused")))
    whole = tmp_path / "whole"
    files = dict.fromkeys(state, 1) | {"weight": 2}
    writer = HuggingFaceStorageWriter(
        str(whole), fqn_to_index_mapping=files, save_distributed=True, enable_consolidation=True
    )
    dcp.save(state, storage_writer=writer)
    assert brought[0] == SIZE / 8
    index = json.loads((whole / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == state.keys() and len(set(index.values())) == 2
    assert_same({name: load_file(whole / file)[name] for name, file in index.items()}, state)
    for folder in (whole, whole / "sharded"):
        other = placed("tensor")
        there = {name: t for name, t in other.state_dict().items() if name in state}
        dcp.load(there, storage_reader=HuggingFaceStorageReader(str(folder)))
        assert_same(there, state)


# ---- runs that go on ------------------------------------------------------------------------------------------------


class Run:
    """A model with dropout and its optimizer, data in an order that is drawn, and all that a run consists of."""

    def __init__(self, plan):
        self.mesh, chosen = {"1": (LINE, parallel.fully_sharded()), "2": (MESH, {"0.weight": ("model", "data")})}[plan]
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8)).to(DEVICE)
        parallel.shard_(self.model, self.mesh, chosen)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.order = torch.Generator().manual_seed(7)
        self.data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        self.compiled = tg.jit(self.step, compile="first")

    def step(self, x):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self, steps):
        batches = (self.data[torch.randint(64, (16,), generator=self.order)] for _ in range(steps))
        return [self.compiled(parallel.shard_batch(x, self.mesh)).item() for x in batches]

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        random = {"device": torch.graft.get_rng_state(), "order": self.order.get_state()}
        return {"model": model, "optimizer": optimizer, "random": random}

    def load(self, folder):
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        torch.graft.set_rng_state(state["random"]["device"])
        self.order.set_state(state["random"]["order"])


def test_a_run_that_is_resumed(tmp_path):
    """It equals the uninterrupted one: bit for bit on the same mesh, to 1e-5 on another."""
    whole = Run("1")
    whole.train(2)
    dcp.async_save(whole.state(), checkpoint_id=tmp_path).result()
    losses = whole.train(3)
    weights = {name: t.cpu() for name, t in whole.model.state_dict().items()}
    for plan, most in (("1", 0), ("2", 1e-5)):
        resumed = Run(plan)
        resumed.train(1)  # another state, that is to be forgotten
        resumed.load(tmp_path)
        assert np.allclose(resumed.train(3), losses, rtol=0, atol=most)
        for name, t in resumed.model.state_dict().items():
            assert torch.allclose(t.cpu(), weights[name], rtol=0, atol=most), name
        for p in resumed.model.parameters():
            assert parallel.placement(resumed.optimizer.state[p]["exp_avg"]) == parallel.placement(p)


# ---- arrays that are no tensors -------------------------------------------------------------------------------------


def test_orbax(tmp_path):
    """Arrays of JAX, and models of them, by Orbax as it is; those of the Array API as the arrays of JAX in them."""
    checkpointing = pytest.importorskip("orbax.checkpoint")
    layer = eqx.nn.Linear(8, 16, key=jax.random.key(0))
    tree = parallel.shard_(layer, MESH, {"weight": ("data", "model")})
    ours = {"w": parallel.shard(xp.ones((8, 8), dtype=xp.float32, device=DEVICE), MESH, ("model", "data"))}

    def inner(x):
        return x.native if isinstance(x, xp.Array) else x

    def to_jax(tree):
        return jax.tree.map(inner, tree, is_leaf=lambda x: isinstance(x, xp.Array))

    state = {"layer": eqx.filter(tree, eqx.is_array), "ours": to_jax(ours)}
    other = {"layer": eqx.filter(parallel.shard_(layer, LINE, {"weight": ("data",)}), eqx.is_array),
             "ours": {"w": parallel.shard(jnp.zeros((8, 8)), LINE, (None, "data"))}}  # fmt: skip
    with checkpointing.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", state)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "tree", other)
    for a, b, like in zip(*map(jax.tree.leaves, (found, state, other)), strict=True):
        assert np.array_equal(a, b) and parallel.placement(a) == parallel.placement(like)
    back = xp.asarray(found["ours"]["w"], device=DEVICE)
    assert parallel.placement(back).spec == ((), ("data",)) and np.array_equal(np.asarray(back), np.asarray(ours["w"]))


# ---- what does not fit ----------------------------------------------------------------------------------------------


def test_state_that_does_not_fit_a_device():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())])

    def train(model, x, compiled):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = tg.jit(step, compile="first") if compiled else step
        return [step(x).item() for _ in range(2)]

    x = torch.randn(8, 32)
    parameters = sum(p.numel() * p.element_size() for p in make().parameters())
    wanted = train(make().to(DEVICE), x.to(DEVICE), False)
    for compiled in (False, True):
        with parallel.memory_limit(3 * parameters):  # the state is four times the parameters
            words = r"device 0 is out of memory: .*memory_limit is \d+ bytes; .*fully_sharded\(\)"
            with pytest.raises(torch.OutOfMemoryError, match=words):
                train(make().to(DEVICE), x.to(DEVICE), compiled)
        with parallel.memory_limit(parameters - 1000):  # not even these
            words = r"a float32 array of shape \(32, 32\) asks for 4.0 KiB, 4096 bytes, where .* are held already"
            with pytest.raises(torch.OutOfMemoryError, match=words):
                make().to(DEVICE)
            model = parallel.shard_(make(), LINE, parallel.fully_sharded())
            losses = train(model, parallel.shard_batch(x, LINE), compiled)
            assert np.allclose(losses, wanted, rtol=0, atol=1e-5)
            assert max(parallel.bytes_by_device(model).values()) < parameters / 3
            assert "fully_sharded" in parallel.auto(model, LINE).why


def test_models_from_the_cpu():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(8, 8)
    model(x).sum().backward()
    optimizer.step()
    weight = model.weight
    wanted = weight.detach().clone()
    parallel.shard_(model, LINE, parallel.fully_sharded())
    where = parallel.placement(weight)
    assert model.weight is weight and weight.device == DEVICE and where.spec == (("data",), ())
    assert parallel.placement(weight.grad) == parallel.placement(optimizer.state[weight]["exp_avg"]) == where
    assert torch.equal(weight.detach().cpu(), wanted)
    model(parallel.shard_batch(x, LINE)).sum().backward()
    optimizer.step()
    assert parallel.placement(weight) == where
