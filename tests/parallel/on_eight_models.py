"""Models and training programs on eight simulated devices, against one. Run by `test_on_eight_devices`, in a process of
its own."""

import copy
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import tensorgraft as tg
from tensorgraft import parallel

DEVICE = tg.device("jax")
LINE = parallel.mesh(8, "data")
EXPERTS = parallel.mesh((2, 4), ("data", "expert"))


def spec(x):
    return parallel.placement(x).spec


class Stacked(nn.Module):
    """Experts whose weights are one tensor, all computed, weighed by a router's choice."""

    def __init__(self):
        super().__init__()
        self.route = nn.Linear(8, 4)
        self.experts = nn.Module()
        self.experts.up, self.experts.down = (nn.Parameter(torch.randn(4, i, o) / 4) for i, o in ((8, 16), (16, 8)))
        self.experts.bias = nn.Parameter(torch.zeros(4, 16))

    def forward(self, x):
        chosen = self.route(x).topk(2)
        weights = torch.zeros(len(x), 4, device=x.device).scatter(1, chosen.indices, chosen.values.softmax(-1))
        hidden = F.gelu(torch.einsum("ni,eio->neo", x, self.experts.up) + self.experts.bias)
        return torch.einsum("neo,eoi,ne->ni", hidden, self.experts.down, weights)


class Listed(nn.Module):
    """Experts that are modules."""

    def __init__(self):
        super().__init__()
        self.route = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x):
        weights = self.route(x).softmax(-1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=16,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def curve(make, batch, loss_of, plan=None, steps=2):
    torch.manual_seed(0)
    model = make().to(DEVICE)
    if plan is None:
        batch = batch.to(DEVICE)
    else:
        parallel.shard_(model, EXPERTS, plan(model))
        batch = parallel.shard_batch(batch, EXPERTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tg.jit(step, compile="first")
    return [compiled(batch).item() for _ in range(steps)], model, optimizer


@pytest.mark.parametrize("make", [pytest.param(mixtral, marks=pytest.mark.slow), Stacked, Listed])
def test_experts(make):
    if make is mixtral:
        batch = torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(1))
        loss_of = lambda model, ids: model(input_ids=ids, labels=ids).loss  # noqa: E731
    else:
        batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
        loss_of = lambda model, x: (model(x) - x).square().mean()  # noqa: E731
    one, _, _ = curve(make, batch, loss_of)
    both, model, optimizer = curve(make, batch, loss_of, parallel.expert_parallel)
    assert np.allclose(both, one, rtol=0, atol=1e-5) and both[-1] < both[0]
    stacks = {n: p for n, p in model.named_parameters() if "experts" in n and (make is not Listed or "weight" in n)}
    assert len(stacks) == {mixtral: 2, Stacked: 3, Listed: 8}[make]
    for name, p in stacks.items():
        held = [p, p.grad, *(v for v in optimizer.state[p].values() if v.shape == p.shape)]
        each = parallel.bytes_by_device(held)
        assert set(each.values()) == {len(held) * p.numel() * p.element_size() // 4}, name
        assert make is Listed or spec(p)[0] == ("expert",)
    with pytest.raises(ValueError, match=r"no weights of experts.*'\*.moe.w\*'"):
        parallel.expert_parallel(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no parameter that fits experts='x'"):
        parallel.expert_parallel(model, experts="x")


# ---- what programs do with models and optimizers ---------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(16, 8), nn.Dropout(0.3)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight

    def inner(self, x):
        return self.down(self.drop(F.gelu(self.up(x))))

    def forward(self, ids):
        return self.head(checkpoint(self.inner, self.table(ids), use_reentrant=False))


def habits(sharded, way):
    """Losses and norms of a run: gradients accumulated and clipped, a schedule, an average of weights, a copy and a
    state dict that training goes on with."""

    def net():
        torch.manual_seed(0)
        model = Net().to(DEVICE)
        return parallel.shard_(model, LINE, parallel.fully_sharded()) if sharded else model

    model = net()
    ids = torch.randint(0, 16, (2, 32), generator=torch.Generator().manual_seed(1))
    x, y = parallel.shard_batch((ids[0], ids[1]), LINE) if sharded else ids.to(DEVICE)
    told = []

    def train(model, optimizer, steps):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step():
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            return loss.detach()

        def update():
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return norm

        step, update = (tg.jit(f, compile="first") if way == "compiled" else f for f in (step, update))
        for _ in range(steps):
            told.extend([step().item(), step().item(), update().item()])
            schedule.step()
        for p in model.parameters():
            moments = [v for v in optimizer.state[p].values() if v.shape == p.shape]
            assert len(moments) == 2
            assert not sharded or {spec(t) for t in (*moments, p.grad)} == {spec(p)}
        assert model.head.weight is model.table.weight

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, optimizer, 2)
    average.update_parameters(model)
    told.append(F.cross_entropy(average.eval()(x), y).item())
    for p, q in zip(model.parameters(), average.parameters(), strict=True):
        assert not sharded or spec(p) == spec(q)
    train(second := copy.deepcopy(model), torch.optim.AdamW(second.parameters(), lr=1e-2), 1)
    third, file = net(), io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, states = torch.load(file)
    third.load_state_dict(weights)
    optimizer = torch.optim.AdamW(third.parameters(), lr=1e-2)
    optimizer.load_state_dict(states)
    train(third, optimizer, 1)
    return told


@pytest.mark.parametrize("way", [pytest.param("compiled", marks=pytest.mark.slow), "eager"])
def test_habits_of_training(way):
    assert np.allclose(habits(True, way), habits(False, "eager"), rtol=0, atol=1e-5)


def test_equal_computations_are_exchanged_once():
    """A forward and a backward pass read the same view of a tensor in pieces."""
    mesh = parallel.mesh((4, 2), ("data", "model"))

    def step(x, w):
        q, k, v = (part.unflatten(-1, (6, -1)).transpose(1, 2) for part in (x @ w).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(out.square().sum(), w)[0]

    x = parallel.shard(torch.ones(4, 8, 12), mesh, ("data",))
    w = parallel.shard(torch.ones(12, 36), mesh, (None, "model")).requires_grad_()
    explained = tg.explain(tg.jit(step, compile="first"), x, w)
    moved = [use.backward for one, use in explained.exchanges() if one.kind == "collective-permute"]
    assert moved and not any(moved)


# ---- programs of JAX -------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Y = np.tanh(X[:, ::-1])


def placed(model, plan):
    """(the model on a mesh, the batch there), or as they are for no plan"""
    if plan is None:
        return model, jnp.asarray(X), jnp.asarray(Y)
    mesh, chosen = plan
    return parallel.shard_(model, mesh, chosen), *parallel.shard_batch((jnp.asarray(X), jnp.asarray(Y)), mesh)


def equinox(plan):
    import equinox as eqx

    model, x, y = placed(eqx.nn.MLP(8, 8, 16, 1, key=jax.random.key(0)), plan)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(model)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, loss

    losses, kernels = [], [layer.weight.T for layer in model.layers]
    for _ in range(2):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    return losses, kernels


def linen(plan):
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.gelu(linen.Dense(16)(x))
            return linen.Dense(8)(x)

    net, optimizer = Net(), optax.adam(1e-2)
    params, x, y = placed(net.init(jax.random.key(0), X), plan)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((net.apply(p, x) - y) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses, kernels = [], [params["params"][f"Dense_{i}"]["kernel"] for i in range(2)]
    for _ in range(2):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    return losses, kernels


def nnx(plan):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.up, self.norm = nnx.Linear(8, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
            self.drop, self.down = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
            self.up_again = self.up

        def __call__(self, x):
            return self.down(self.drop(nnx.gelu(self.norm(self.up(x)))))

    net = Net(nnx.Rngs(0))
    model, x, y = placed(net, plan)
    assert model is net and net.up_again is net.up
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(net)
        optimizer.update(net, grads)
        return loss

    kernels = [net.up.kernel[...], net.down.kernel[...]]
    return [float(step(net, optimizer)) for _ in range(2)], kernels


LAYERS = {
    equinox: {"layers.0.weight": ("model",), "layers.0.bias": ("model",), "layers.1.weight": (None, "model")},
    linen: {"params.Dense_0.kernel": (None, "model"), "*.Dense_0.bias": ("model",), "*.Dense_1.kernel": ("model",)},
    nnx: {"up.kernel": (None, "model"), "down.kernel": ("model", None)},
}


@pytest.mark.parametrize("program", LAYERS)
def test_models_of_jax(program):
    one, _ = program(None)
    pieces = parallel.mesh((4, 2), ("data", "model"))
    for plan, wanted in [
        ((LINE, parallel.fully_sharded()), [((), ("data",)), (("data",), ())]),
        ((pieces, LAYERS[program]), [((), ("model",)), (("model",), ())]),
    ]:
        losses, kernels = program(plan)
        assert np.allclose(losses, one, rtol=0, atol=1e-5) and [spec(k) for k in kernels] == wanted
    with pytest.raises(ValueError, match="'wieght' of plan matches no parameter"):
        program((LINE, {"wieght": ()}))


# ---- other people's meshes -------------------------------------------------------------------------------------------


def test_meshes_of_pytorch_and_jax(monkeypatch):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ours = parallel.mesh((4, 2), ("data", "model"))
    x = torch.ones(8, 4)
    theirs = jax.make_mesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    assert parallel.placement(parallel.shard(x, theirs, ("data", "model"))).mesh == ours
    assert parallel.constrain(jnp.ones(8), ("data",), theirs).sharding.mesh == theirs
    with pytest.raises(TypeError, match=r"shard_batch: expected a mesh .* got a builtins.int"):
        parallel.shard_batch(x, 8)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        theirs = init_device_mesh("graft", (4, 2), mesh_dim_names=("data", "model"))
        for made in (
            parallel.shard(x, theirs, [Shard(0), Replicate()]),
            parallel.shard_batch(x, theirs),
            parallel.shard_(nn.Linear(4, 8).to(DEVICE), theirs, parallel.fully_sharded("data")).weight,
        ):
            assert parallel.placement(made).mesh == ours and spec(made) == (("data",), ())
        assert spec(parallel.replicate(x, theirs)) == ((), ())
        with pytest.raises(ValueError, match="have no names"):
            parallel.shard(x, init_device_mesh("graft", (8,)), ())
        monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
        with pytest.raises(ValueError, match="has 8 processes, each with its own devices"):
            parallel.shard(x, theirs, ())
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()
