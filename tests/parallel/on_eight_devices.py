"""`tg.parallel` on eight simulated devices. Run by `test_on_eight_devices`, in a process of its own."""

import contextlib
import copy
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import parallel

DEVICE = tg.device("jax")
MESH = parallel.mesh((4, 2), ("data", "model"))
LINE = parallel.mesh(8, "data")


def spec(x):
    return parallel.placement(x).spec


def matrix(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Batch norm, dropout, and weights that are tied."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.norm = nn.BatchNorm1d(8)
        self.up = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        x = self.norm(self.table(x))
        return self.head(self.down(self.drop(F.gelu(self.up(x)))))


PLANS = {
    "fully sharded": (LINE, parallel.fully_sharded()),
    "tensor": (MESH, {"up.weight": ("model", None), "up.bias": ("model",), "down.weight": (None, "model")}),
}


def training(way, plan=None, steps=3):
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mesh = None
    if plan is not None:
        mesh, chosen = PLANS[plan]
        parallel.shard_(model, mesh, chosen)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tg.jit(step, compile="first") if way == "compiled" else step
    x, y = torch.randint(0, 16, (2, 32), generator=torch.Generator().manual_seed(1))
    x, y = (x.to(DEVICE), y.to(DEVICE)) if mesh is None else parallel.shard_batch((x, y), mesh)
    with tg.lazy() if way == "lazy" else contextlib.nullcontext():
        losses = [compiled(x, y).item() for _ in range(steps)]
    return losses, model, optimizer


@functools.cache
def curve_of_one_device():
    return training("compiled")[0]


@pytest.mark.parametrize("way", ["eager", "compiled", "lazy"])
def test_training_is_that_of_one_device(way):
    one = curve_of_one_device()
    for plan in ("fully sharded", "tensor") if way == "compiled" else ("fully sharded",):
        losses, model, optimizer = training(way, plan)
        assert np.allclose(losses, one, rtol=0, atol=1e-5), plan
        assert model.head.weight is model.table.weight
        if plan == "fully sharded":
            held = [p for q in model.parameters() for p in (q, q.grad, *optimizer.state[q].values())]
            total = sum(t.numel() * t.element_size() for t in held)
            by_device = parallel.bytes_by_device([t for t in held if t.device == DEVICE])
            assert sorted(by_device) == list(range(8)) and max(by_device.values()) / total <= 0.15
        for p in model.parameters():
            states = [v for v in optimizer.state[p].values() if v.shape == p.shape]
            assert len(states) == 2 and {spec(t) for t in states} == {spec(p)}, plan
            assert p.dim() == 1 or spec(p.grad) == spec(p), plan


def test_optimizers_made_before():
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    model(matrix(4, 8).to(DEVICE)).sum().backward()
    optimizer.step()
    weight = model.weight
    parallel.shard_(model, MESH, {"weight": ("data", "model")})
    state = optimizer.state[weight]
    assert model.weight is weight and spec(state["exp_avg"]) == spec(weight) == spec(weight.grad)
    before = weight.detach().cpu()
    optimizer.step()
    assert spec(weight) == spec(state["exp_avg_sq"]) == (("data",), ("model",))
    assert not torch.equal(weight.detach().cpu(), before)


def test_a_function_that_was_compiled_for_another_placement():
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = matrix(8, 8).to(DEVICE)

    def step():
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step = tg.jit(step, compile="first")
    step()
    for chosen in (("data", None), (None, "model"), ()):
        parallel.shard_(model, MESH, {"weight": chosen})
        wanted = spec(model.weight)
        step()
        step()
        assert spec(model.weight) == wanted


def test_random_numbers_do_not_depend_on_the_mesh():
    def masks(x):
        torch.manual_seed(0)
        return F.dropout(x, 0.5).cpu(), torch.rand_like(x).cpu(), torch.randn_like(x).cpu()

    x = torch.ones(16, 8)
    for ours, theirs in zip(masks(x.to(DEVICE)), masks(parallel.shard(x, MESH, ("data", "model"))), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    assert torch.equal(masks(x.to(DEVICE))[0], masks(parallel.shard(x, MESH, ("data",)))[0])


def test_specs():
    x = matrix(8, 8)
    for given, wanted in [
        (("data", None), (("data",), ())),
        ("model", (("model",), ())),
        ((("data", "model"),), (("data", "model"), ())),
        (jax.sharding.PartitionSpec(None, "data"), ((), ("data",))),
        ([Shard(0), Replicate()], (("data",), ())),
        ([parallel.Shard(1), parallel.Shard(-1)], ((), ("data", "model"))),
        ((), ((), ())),
    ]:
        y = parallel.shard(x, MESH, given)
        assert spec(y) == wanted and torch.equal(y.cpu(), x)
    assert spec(parallel.shard(x, LINE, Shard(1))) == ((), ("data",))


def test_values_leave_whole(tmp_path):
    x = parallel.shard(matrix(8, 8), MESH, ("data", "model"))
    assert torch.equal(x.cpu(), matrix(8, 8)) and x[3, 4].item() == matrix(8, 8)[3, 4]
    assert np.array_equal(np.asarray(tg.to_backend_array(x)), matrix(8, 8).numpy())
    torch.save(x, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt").cpu(), matrix(8, 8))
    with pytest.raises(BufferError, match="unsharded"):
        torch.from_dlpack(x)


def test_writes_stay():
    x = parallel.shard(matrix(8, 8), MESH, ("data", "model"))
    view = x.T
    for write in (lambda: x.add_(1), lambda: x.copy_(matrix(8, 8)), lambda: view[0].zero_(), lambda: x.fill_(3)):
        write()
        assert spec(x) == (("data",), ("model",)) and spec(view) == (("model",), ("data",))
    model = parallel.shard_(nn.Linear(8, 8).to(DEVICE), MESH, {"weight": ("model",)})
    model.load_state_dict({name: t.cpu() + 1 for name, t in model.state_dict().items()})
    assert spec(model.weight) == spec(copy.deepcopy(model).weight) == (("model",), ())


def test_constrain():
    x, w = parallel.shard(matrix(8, 8), MESH, ("data",)), matrix(8, 8).to(DEVICE).requires_grad_()

    def f(x, w):
        return parallel.constrain((x @ w).tanh(), (None, "model"), MESH)

    assert spec(f(x, w)) == ((), ("model",)) == spec(tg.jit(f, compile="first")(x, w))
    f(x, w).sum().backward()
    plain = matrix(8, 8).requires_grad_()
    (matrix(8, 8) @ plain).tanh().sum().backward()
    assert torch.allclose(w.grad.cpu(), plain.grad, atol=1e-5)
    rows = torch.vmap(lambda r: parallel.constrain(r * 2, ("model",), MESH))(x)
    assert spec(rows)[1] == ("model",) and torch.equal(rows.cpu(), matrix(8, 8) * 2)
    _, tangent = torch.func.jvp(lambda x: parallel.constrain(x * x, ("data",), MESH), (x,), (x,))
    assert torch.allclose(tangent.cpu(), 2 * matrix(8, 8) ** 2)
    with torch.autocast("graft", dtype=torch.bfloat16):
        assert f(x, w).dtype == torch.bfloat16
    with tg.lazy():
        y = f(x, w)
        assert spec(y) == ((), ("model",))


def test_arrays_of_the_array_api():
    values = np.arange(64.0).reshape(8, 8)
    x = parallel.shard(xp.asarray(values, device=DEVICE), MESH, ("data", "model"))
    x[0] = 5.0
    values[0] = 5.0
    assert spec(x) == (("data",), ("model",)) and np.array_equal(np.asarray(x), values)
    y = tg.jit(lambda x: parallel.constrain(x @ x, (None, "model"), MESH))(x)
    assert spec(y) == ((), ("model",)) and np.allclose(np.asarray(y), values @ values)
    g = tg.grad(lambda x: xp.sum(parallel.constrain(x * x, ("data",), MESH)))(x)
    assert np.allclose(np.asarray(g), 2 * values)

    def write(x):
        x += 1.0
        return xp.sum(x)

    assert float(tg.jit(write)(x)) == values.sum() + 64 and spec(x) == (("data",), ("model",))


def test_pytrees_of_jax():
    tree = {"layer": {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}, "name": 3}
    placed = parallel.shard_(tree, MESH, {"*.w": ("data", "model")})
    assert spec(placed["layer"]["w"]) == (("data",), ("model",)) and placed["name"] == 3
    assert spec(placed["layer"]["b"]) == ((),)
    f = jax.jit(lambda x: parallel.constrain(x, ("model",), MESH))
    assert spec(f(placed["layer"]["w"]))[0] == ("model",)


def test_grafted_onto_jax():
    model = parallel.shard_(nn.Linear(8, 8).to(DEVICE), MESH, {"weight": ("data", "model")})
    apply, params, buffers = tg.graft(model, onto="jax")
    assert spec(params["weight"]) == (("data",), ("model",))
    out, _ = apply(params, buffers, jnp.asarray(matrix(4, 8).numpy()))
    assert np.allclose(np.asarray(out), model(matrix(4, 8).to(DEVICE)).detach().cpu().numpy(), atol=1e-6)


def test_plans_for_transformers():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x = matrix(8, 4, 16)
    losses, weights = {}, x.flip(0).to(DEVICE)
    for name in ("none", "sequence"):
        torch.manual_seed(0)
        one = copy.deepcopy(model).to(DEVICE)
        y = x.to(DEVICE)
        if name != "none":
            parallel.shard_(one, MESH, parallel.sequence_parallel(one))
            assert spec(one.layers[0].linear1.weight) == (("model",), ())
            y = parallel.shard_batch(y, MESH)

        def step(y, one=one):
            one.zero_grad()
            loss = (one(y) * weights).sum()
            loss.backward()
            return loss.detach(), [p.grad.square().sum() for p in one.parameters()]

        loss, squares = tg.jit(step, compile="first")(y)
        losses[name] = [loss.item(), *(s.item() for s in squares)]
    assert np.allclose(losses["sequence"], losses["none"], rtol=1e-4)


def test_plan_of_hugging_face():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE)
    plan = parallel.tensor_parallel(model)
    tokens = torch.arange(8).reshape(2, 4)
    before = model(tokens.to(DEVICE)).logits.detach().cpu()
    parallel.shard_(model, MESH, plan)
    layer = model.model.layers[0]
    assert spec(layer.self_attn.q_proj.weight) == (("model",), ()) and spec(layer.mlp.down_proj.weight)[1] == ("model",)
    assert torch.allclose(model(tokens.to(DEVICE)).logits.detach().cpu(), before, atol=1e-5)


def test_auto():
    model = nn.Linear(8, 8).to(DEVICE)
    choice = parallel.auto(model, LINE, memory=10_000)
    assert "data_parallel" in choice.why and spec(model.weight) == ((), ())
    choice = parallel.auto(model, LINE, memory=1_000)
    assert "fully_sharded" in str(choice) and spec(model.weight) == (("data",), ())
    with pytest.raises(ValueError, match="a larger mesh"):
        parallel.auto(model, LINE, memory=100)


def test_visualize():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        made = parallel.visualize(parallel.shard(torch.ones(8, 4), MESH, ("model", None)))
    assert text.getvalue() == made + "\n" and "| 0,2,4,6 |" in made and "64 bytes on a device" in made


def test_quantised_weights():
    model = nn.Linear(32, 8).to(DEVICE)
    tg.quantize_(model, "int8_per_channel")
    x = matrix(8, 32).to(DEVICE)
    assert torch.allclose(model(parallel.shard(x, MESH, ("data",))).cpu(), model(x).cpu(), atol=1e-6)


def test_programs_of_one_device_and_of_many_take_turns():
    x, w = matrix(8, 8).to(DEVICE), matrix(8, 8).to(DEVICE)
    spread = parallel.shard(x, MESH, ("data", "model"))
    wanted = (matrix(8, 8) @ matrix(8, 8)).add(1)
    with tg.eager("compiled"):
        for y in [x] * 12 + [spread] * 12 + [x, spread] * 2:
            assert torch.allclose((y @ w + 1).cpu(), wanted, atol=1e-5)


def test_devices_are_counted():
    assert torch.accelerator.device_count() == torch.graft.device_count() == 8
    assert torch.ones(2, device="graft:1").device == tg.device("jax:1")


def refused(error, words, fn, *args):
    with pytest.raises(error, match=words):
        fn(*args)


def test_bad_input():
    x, model = matrix(8, 6), nn.Linear(6, 8).to(DEVICE)
    small = parallel.mesh(4, "data")
    refused(ValueError, "takes 16 devices, and jax has 8 here", parallel.mesh, (4, 4), ("a", "b"))
    refused(ValueError, "one for each axis", parallel.mesh, (4, 2), ("a",))
    refused(ValueError, "1 device or more", parallel.mesh, (0,), ("a",))
    refused(ValueError, "names the axis 'dat'", parallel.shard, x, MESH, ("dat",))
    refused(ValueError, r"is 6, which 'data' \(4\) does not divide", parallel.shard, x, MESH, (None, "data"))
    refused(ValueError, "twice", parallel.shard, x, MESH, ("data", "data"))
    refused(ValueError, "3 entries, the array 2", parallel.shard, x, MESH, ("data", None, "model"))
    refused(ValueError, "one of Shard", parallel.shard, x, MESH, [Shard(0)])
    refused(TypeError, "expected a torch.Tensor", parallel.shard, 3, MESH, ())
    refused(ValueError, "on graft:8", parallel.shard, x.to(tg.device("numpy")), MESH, ())
    refused(ValueError, "'wieght' of plan fits no parameter", parallel.shard_, model, MESH, {"wieght": ("data",)})
    plan = {"bias": ("data",), "weight": (None, "data")}
    refused(ValueError, "shard_: weight: dimension 1", parallel.shard_, model, MESH, plan)
    assert parallel.placement(model.bias) is None and not model.weight._backward_hooks
    refused(ValueError, "move it there first", parallel.shard_, nn.Linear(2, 2), MESH, {})
    refused(TypeError, "a pytree of arrays", parallel.shard_, {"a": 1}, MESH, {})
    refused(ValueError, "write a plan", parallel.tensor_parallel, model)
    a, b = parallel.shard(x, MESH, ("data",)), parallel.shard(x, small, ("data",))
    for with_mode in ("tiered", "compiled"):
        with tg.eager(with_mode):
            refused(ValueError, "operands lie on different devices", torch.add, a, b)
