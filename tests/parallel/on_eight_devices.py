"""`tg.parallel` on eight simulated devices. Run by `test_on_eight_devices`, in a process of its own."""

import contextlib
import copy
import functools
import io
import re
import warnings
from pathlib import Path

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
            assert spec(p.grad) == spec(p), plan


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
    model = parallel.shard_(nn.Sequential(nn.Linear(8, 8)).to(DEVICE), LINE, parallel.fully_sharded())
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    y = parallel.shard_batch(matrix(8, 8), LINE)
    with pytest.raises(ValueError, match="operands lie on different meshes"):
        model(x)
    assert torch.equal(loaded(y).cpu(), model(y).cpu()) and parallel.placement(loaded[0].weight) is None


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
        a = parallel.shard(xp.asarray(matrix(8, 8).numpy(), device=DEVICE), MESH, ("data",))
        g = tg.grad(lambda a: xp.sum(parallel.constrain(a * a, ("data",), MESH)))(a)
        assert np.allclose(np.asarray(g), 2 * matrix(8, 8).numpy())
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
    wanted = model(matrix(8, 8).to(DEVICE)).detach().cpu().numpy()
    assert np.allclose(np.asarray(out), wanted[:4], atol=1e-6)
    parallel.shard_(model, LINE, parallel.fully_sharded())
    for onto in ("jax", "numpy"):
        made = tg.graft(model, onto=onto)
        x = matrix(8, 8).numpy()
        out = made(x) if onto == "numpy" else made[0](*made[1:], jnp.asarray(x))[0]
        assert np.allclose(np.asarray(out), wanted, atol=1e-6), onto


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


def planned_and_compiled(make, mesh_shape, names, chosen):
    """(the forecast on a mesh that is not there, what `tg.explain` says of the same step on one that is)"""
    both = []
    for device in ("meta", DEVICE):
        mesh = parallel.mesh(mesh_shape, names, device="jax", abstract=device == "meta")
        model, optimizer, batch = make(device)
        parallel.shard_(model, mesh, chosen(model))
        batch = parallel.shard_batch(batch, mesh)

        def step(*batch, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            out = model(*batch)
            loss = out.loss if hasattr(out, "loss") else F.cross_entropy(out, batch[0])
            loss.backward()
            optimizer.step()
            return loss.detach()

        tell = parallel.plan if device == "meta" else tg.explain
        both.append(tell(step, *batch))
        held = [*model.parameters(), *model.buffers(), *batch]
        assert {t.device for t in held} == {torch.device(device)}
        assert not optimizer.state and all(p.grad is None for p in model.parameters())
    return both


def net(device):
    with torch.device("meta" if device == "meta" else "cpu"):  # PyTorch's `.to("meta")` unties weights
        model = Net()
    model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), [torch.zeros(32, dtype=torch.int64, device=device)]


def test_a_plan_is_what_is_compiled():
    """Memory, work and exchanges of a mesh that is not there, against those of one that is."""
    mesh, chosen = PLANS["fully sharded"]
    forecast, explained = planned_and_compiled(net, mesh.shape, mesh.names, lambda model: chosen)
    assert forecast.explanation.program.memory == explained.program.memory
    assert forecast.flops == explained.program.flops > 0
    ours, theirs = (sorted((c.kind, c.bytes, c.group) for c in e.program.collectives)
                    for e in (forecast.explanation, explained))  # fmt: skip
    assert ours == theirs and len(ours) == sum(x.times for x in forecast.exchanges) > 0
    assert all(x.axes == ("data",) and x.advice for x in forecast.exchanges)
    assert {x.place.partition(":")[0] for x in forecast.exchanges} == {Path(__file__).name}
    model = parallel.shard_(Net().to(DEVICE), mesh, chosen)
    each = parallel.bytes_by_device(list(model.parameters()))[0]
    assert forecast.parameters == forecast.gradients == each
    assert 2 * each <= forecast.optimizer <= 2 * each + 4 * len(list(model.parameters()))
    assert parallel.bytes_by_device(list(model.buffers()))[0] == forecast.buffers
    m = explained.program.memory
    assert forecast.total == m.arguments + m.outputs - m.alias + m.temporary and forecast.temporary == m.temporary
    assert "memory of a device" in str(explained) and " of a device" in str(explained).partition("inputs")[2]
    assert "parameters" in str(forecast) and forecast.exchanges[0].advice[:20] in str(forecast)


def test_a_plan_of_hugging_face():
    from transformers import LlamaConfig, LlamaForCausalLM

    class Model(LlamaForCausalLM):
        def forward(self, ids):
            return super().forward(input_ids=ids, labels=ids)

    def make(device):
        config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                             num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
        with torch.device("meta" if device == "meta" else "cpu"):
            model = Model(config)
        model.to(device)
        return (
            model,
            torch.optim.SGD(model.parameters(), momentum=0.9),
            [torch.zeros(8, 4, dtype=torch.int64).to(device)],
        )

    forecast, explained = planned_and_compiled(make, (4, 2), ("data", "model"), parallel.tensor_parallel)
    assert forecast.explanation.program.memory == explained.program.memory
    assert forecast.flops == explained.program.flops
    ours, theirs = (sorted((c.kind, c.bytes, c.group) for c in e.program.collectives)
                    for e in (forecast.explanation, explained))  # fmt: skip
    assert ours == theirs and {x.axes for x in forecast.exchanges} <= {("data",), ("model",), ("data", "model")}


def test_fully_sharded_leaves_the_other_axes_to_other_plans():
    """Its constraint by batch: of what a layer gives, dimensions that are split along another axis stay so."""
    work = {}
    for name, more in (("tensor", {}), ("both", parallel.fully_sharded("data"))):
        torch.manual_seed(0)
        model = parallel.shard_(Net().to(DEVICE), MESH, {**PLANS["tensor"][1], **more})
        seen = []
        model.up.register_forward_hook(lambda module, args, out, seen=seen: seen.append(out))
        ids = parallel.shard((torch.arange(32) % 16).to(DEVICE), MESH, ("data",))
        step = tg.jit(lambda ids, model=model: model(ids).square().sum(), compile="first")
        work[name] = tg.explain(step, ids).program.flops
        model(ids)
        assert spec(seen[-1]) == (("data",), ("model",)), name
    assert work["both"] <= 1.01 * work["tensor"]


def test_a_plan_needs_no_memory():
    """Weights of 4 TB, 256 devices; the forward and backward pass, and an optimizer that is made inside."""
    mesh = parallel.mesh((16, 16), ("data", "model"), device="jax", abstract=True)
    model = nn.Linear(1 << 20, 1 << 20, bias=False, device="meta")
    choice = parallel.auto(model, mesh, memory=1 << 36)
    assert "fully_sharded" in choice.why
    x = parallel.shard(torch.ones(256, 1 << 20, device="meta"), mesh, (("data", "model"),))

    def step(x):
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        model(x).sum().backward()
        optimizer.step()

    forecast = parallel.plan(step, x, mesh=mesh)
    assert forecast.parameters == forecast.gradients == 1 << 34 and not forecast.optimizer
    assert forecast.total > 4 << 34 and model.weight.grad is None and model.weight.device.type == "meta"


def test_bad_input_of_a_plan():
    mesh = parallel.mesh(32, "data", device="jax", abstract=True)
    other = parallel.mesh(16, "data", device="jax", abstract=True)
    model, real = nn.Linear(256, 256, device="meta"), nn.Linear(8, 8).to(DEVICE)
    x = torch.ones(256, 256, device="meta")
    refused(ValueError, "abstract=True makes a mesh to plan for", parallel.mesh, 256, "data")
    refused(ValueError, "has been placed on a mesh", parallel.plan, model, x)
    refused(ValueError, "require a mesh made with abstract=True", parallel.shard_, model, LINE, {})
    refused(ValueError, "require a mesh made with abstract=True", parallel.shard_, real, mesh, {})
    refused(ValueError, "require a mesh made with abstract=True", parallel.shard, torch.ones(8), LINE.__class__(
        (8,), ("data",), "jax", tuple(range(8)), True), ("data",))  # fmt: skip
    parallel.shard_(model, mesh, {})
    refused(ValueError, "mesh is a mesh of 16", functools.partial(parallel.plan, mesh=other), model, x)
    refused(ValueError, "different meshes", parallel.plan, model, parallel.shard_batch(x, other))
    refused(tg.TracedValueError, "needs the value", parallel.plan, lambda x: 1 if model(x).sum() > 0 else 0, x)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert parallel.placement(model.weight).mesh == mesh and parallel.plan(model, x).parameters == 256 * 257 * 4


def test_visualize():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        made = parallel.visualize(parallel.shard(torch.ones(8, 4), MESH, ("model", None)))
    assert text.getvalue() == made + "\n" and "| 0,2,4,6 |" in made and "64 bytes on a device" in made


def test_quantised_weights():
    model = nn.Linear(32, 8).to(DEVICE)
    tg.quantize_(model, "int8_per_channel")
    x = matrix(8, 32).to(DEVICE)
    wanted = model(x).cpu()
    assert torch.allclose(model(parallel.shard(x, MESH, ("data",))).cpu(), wanted, atol=1e-6)
    before = sum(parallel.bytes_by_device(model.weight).values())
    parallel.shard_(model, MESH, {"weight": ("data", "model")})
    assert spec(model.weight) == (("data",), ("model",)) and tg.quantization.is_quantized(model.weight)
    assert max(parallel.bytes_by_device(model.weight).values()) < before / 4
    assert torch.allclose(model(parallel.shard(x, MESH, ("data",))).cpu(), wanted, atol=1e-6)


def test_programs_of_one_device_and_of_many_take_turns():
    x, w = matrix(8, 8).to(DEVICE), matrix(8, 8).to(DEVICE)
    spread = parallel.shard(x, MESH, ("data", "model"))
    wanted = (matrix(8, 8) @ matrix(8, 8)).add(1)
    with tg.eager("compiled"):
        for y in [x] * 12 + [spread] * 12 + [x, spread] * 2:
            assert torch.allclose((y @ w + 1).cpu(), wanted, atol=1e-5)


def test_devices_are_counted():
    assert torch.accelerator.device_count() == torch.graft.device_count() == 8
    x = torch.ones(2, 8, device="graft:1")
    assert x.device == tg.device("jax:1") and {d.id for d in tg.to_backend_array(x).devices()} == {1}
    model = nn.Linear(8, 8).to("graft:5")
    model(x.to("graft:5")).sum().backward()
    assert model.weight.grad.device == torch.device("graft:5")
    refused(RuntimeError, "graft:1 and graft:5", torch.add, x, model.bias)
    with torch.graft.device(3):
        assert torch.ones(1, device="graft").device == torch.device("graft:3")
    parallel_model = nn.DataParallel(nn.Linear(8, 8).to(DEVICE))
    assert parallel_model(x.to(DEVICE)).shape == (2, 8)


def test_the_page():
    """The steps of docs/parallel.md, one after the other."""
    page = Path(__file__).parents[2] / "docs" / "parallel.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for number, block in enumerate(blocks):
            if "DistributedSampler" in block:  # a program of its own: see `test_on_several_processes`
                continue
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                exec(compile(block, f"{page}, block {number}", "exec"), names)
            assert number == 0 or np.isfinite(names.get("loss", 0.0))
    assert names["loss"] < names["before"]
    held = names["held"]
    assert len(held) == 8 and max(held.values()) < 0.2 * sum(held.values())
    assert names["exchanged"] > 0 and "tensor_parallel" not in names["choice"].why
    assert 0.134 < names["gigabytes"] < 0.3 and names["forecast"].exchanges[0].kind == "all-reduce"
    assert "('data', 'model')" in printed.getvalue() and torch.is_tensor(names["weights"]["0.weight"])


def refused(error, words, fn, *args):
    with pytest.raises(error, match=words):
        fn(*args)


def test_bad_input():
    x, model = matrix(8, 6), nn.Linear(6, 8).to(DEVICE)
    small = parallel.mesh(4, "data")
    refused(ValueError, "requires 16 devices, but jax has 8 here", parallel.mesh, (4, 4), ("a", "b"))
    refused(ValueError, "one for each axis", parallel.mesh, (4, 2), ("a",))
    refused(ValueError, "at least 1 device for each axis", parallel.mesh, (0,), ("a",))
    refused(ValueError, "names the axis 'dat'", parallel.shard, x, MESH, ("dat",))
    refused(ValueError, r"is 6, which is not divisible by 'data' \(4\)", parallel.shard, x, MESH, (None, "data"))
    refused(ValueError, "twice", parallel.shard, x, MESH, ("data", "data"))
    refused(ValueError, "3 entries, but the array has 2", parallel.shard, x, MESH, ("data", None, "model"))
    refused(ValueError, "one of Shard", parallel.shard, x, MESH, [Shard(0)])
    refused(TypeError, "expected a torch.Tensor", parallel.shard, 3, MESH, ())
    refused(ValueError, "on graft:8", parallel.shard, x.to(tg.device("numpy")), MESH, ())
    refused(ValueError, "'wieght' of plan matches no parameter", parallel.shard_, model, MESH, {"wieght": ("data",)})
    plan = {"bias": ("data",), "weight": (None, "data")}
    refused(ValueError, "shard_: weight: dimension 1", parallel.shard_, model, MESH, plan)
    assert parallel.placement(model.bias) is None and not model.weight._backward_hooks
    elsewhere = nn.Linear(2, 2).to(tg.device("numpy"))
    refused(ValueError, "move it there first", parallel.shard_, elsewhere, MESH, {})
    refused(TypeError, "a pytree of arrays", parallel.shard_, {"a": 1}, MESH, {})
    refused(ValueError, "write a plan", parallel.tensor_parallel, model)
    a, b = parallel.shard(x, MESH, ("data",)), parallel.shard(x, small, ("data",))
    for with_mode in ("tiered", "compiled"):
        with tg.eager(with_mode):
            refused(ValueError, "operands lie on different meshes", torch.add, a, b)
    refused(ValueError, "operands lie on different meshes", tg.jit(torch.matmul, compile="first"), a, b.mT)
    onto_small = tg.jit(lambda x: parallel.constrain(x, ("data",), small), compile="first")
    refused(ValueError, "a value on the way is constrained to another one", onto_small, a)
    refused(TypeError, "names must be strings", parallel.mesh, (4, 2), (1, 2))
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 6)).to(DEVICE)
    refused(ValueError, "names the axis 'dat'", parallel.shard_, net, MESH, {"0": parallel.Output(("dat",))})
    refused(
        ValueError, "'2' of plan matches no submodule", parallel.shard_, net, MESH, {"2": parallel.Output(("data",))}
    )
    refused(ValueError, r"dimension 0 of shape \(6,\)", parallel.shard, {"a": x, "b": x[0]}, small, ("data",))
    assert all(parallel.placement(p) is None and not p._backward_hooks for p in net.parameters())
