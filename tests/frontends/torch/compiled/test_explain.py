"""`tg.explain` tells what a call is made of, and leaves no trace of having looked."""

import json
import random

import pytest
import torch
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.compiled  # what is traced, and when, is counted


@pytest.fixture
def device():
    return tg.device("jax")


def training(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    table = list(map(float, range(1000)))

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + torch.tensor(table, device=x.device).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss)
        return loss.detach()

    x, y = torch.randn(4, 8, device=device), torch.randint(0, 3, (4,), device=device)
    return model, optimizer, scheduler, losses, step, x, y


def test_nothing_is_changed(device):
    model, optimizer, scheduler, losses, step, x, y = training(device)
    model[0].weight.grad = torch.ones_like(model[0].weight)

    def everything():
        values = [t.tolist() for t in [*model.state_dict().values(), x, y, model[0].weight.grad]]
        versions = [p._version for p in model.parameters()]
        grads = [p.grad is None for p in model.parameters()]
        dice = (
            random.getstate(),
            torch.get_rng_state().tolist(),
            torch.get_device_module(device).get_rng_state(0).tolist(),
        )
        return values, versions, grads, dice, scheduler.state_dict(), optimizer.state_dict(), losses

    before = everything()
    for fn in (step, tg.jit(step)):
        tg.explain(fn, x, y)
        assert everything() == before and not optimizer.state and not losses
    assert tg.jit(step)(x, y).item() > 0 and len(losses) == 1


def test_inputs_have_their_names(device):
    *_, step, x, y = training(device)
    told = tg.explain(step, x, y)
    found = {(i.kind, i.name): i for i in told.inputs}
    assert found["argument", "x"].shape == (4, 8) and not found["argument", "x"].written
    assert found["parameter", "model.0.weight"].written and found["parameter", "model.0.weight"].donated
    assert found["buffer", "model.1.running_mean"].written
    assert found["optimizer state", "optimizer.state[model.4.bias]['exp_avg']"].bytes == 12
    assert {name for kind, name in found if kind == "host"} == {"random state", "learning rate of Adam, group 0"}
    (constant,) = [i for i in told.inputs if i.kind == "constant" and i.bytes == 4000]
    assert "test_explain.py" in constant.name


def test_operators_have_lines_and_costs(device):
    w = torch.randn(8, 16, device=device, requires_grad=True)

    def loss(x):
        y = x @ w  # the product
        return y.tanh().sum()

    def both(x):
        loss(x).backward()

    told = tg.explain(both, torch.randn(4, 8, device=device))
    (forward,) = [o for o in told.operators if o.name == "mm" and not o.backward]
    assert forward.source == "y = x @ w  # the product" and forward.flops == 2 * 4 * 8 * 16
    (backward,) = [o for o in told.operators if o.name == "mm" and o.backward]
    assert (backward.place, backward.flops) == (forward.place, forward.flops)
    assert told.program.primitives["dot_general"] == 2 and told.program.primitives["tanh"] == 1
    assert told.program.memory.arguments == 4 * (4 * 8 + 8 * 16)
    assert w.grad is None


def test_loops_count_as_often_as_they_run(device):
    from torch._higher_order_ops import scan

    w = torch.randn(8, 8, device=device)

    def run(x):
        return scan(lambda c, _: (torch.tanh(c @ w), c.sum()), x, torch.zeros(7, device=device))[0]

    told = tg.explain(run, torch.randn(8, device=device))
    assert sum(o.flops for o in told.operators if o.name in ("mv", "mm")) == 7 * 2 * 64


def test_what_is_kept_for_a_backward_pass_outside(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    told = tg.explain(model, torch.randn(4, 8, device=device))
    assert told.kept_for_backward[0] >= 2 and told.name == "Sequential"
    assert ("parameter", "0.weight") in {(i.kind, i.name) for i in told.inputs}
    with torch.no_grad():
        assert tg.explain(model, torch.randn(4, 8, device=device)).kept_for_backward == (0, 0)


@torch.library.custom_op("tensorgraft_test::halves", mutates_args=(), device_types="cpu")
def halves(x: torch.Tensor) -> torch.Tensor:
    return x[: len(x) // 2].clone()


@halves.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(len(x) // 2)


def test_operators_without_a_kernel_are_listed(device):
    def fn(x):
        y = x
        for _ in range(2):
            y = halves(y)
        return y + 1

    x = torch.randn(12, device=device)
    told = tg.explain(fn, x)
    (fallback,) = told.fallbacks
    assert (fallback.name, fallback.calls) == ("halves", 2) and "test_explain.py" in fallback.place
    assert "without a kernel: on the CPU eagerly, refused by tg.jit" in str(told)
    with pytest.raises(tg.TracedValueError, match="no kernel"):
        tg.jit(fn)(x)


def test_methods_and_objects(device):
    class Trainer:
        def __init__(self):
            self.net = nn.Linear(3, 2).to(device)
            self.seen = {"calls": 0}

        @tg.jit
        def run(self, *, batch):
            self.seen["calls"] += 1
            self.last = self.net(batch["x"])
            return self.last

    trainer = Trainer()
    told = tg.explain(trainer.run, batch={"x": torch.ones(1, 3, device=device)})
    assert {i.name for i in told.inputs} == {"self.net.weight", "self.net.bias", "batch['x']"}
    assert trainer.seen == {"calls": 0} and not hasattr(trainer, "last")


def test_errors_are_those_of_jit_and_leave_nothing(device):
    p = nn.Parameter(torch.ones(3, device=device))

    def fn(x):
        (p * x).sum().backward()
        return x if x > 0 else -x

    with pytest.raises(tg.TracedValueError, match="needs the value"):
        tg.explain(fn, torch.ones((), device=device))
    assert p.grad is None
    with pytest.raises(TypeError, match="numpy does not compile"):
        tg.explain(fn, torch.ones((), device=tg.device("numpy")))


def test_text_and_dictionary(device):
    *_, step, x, y = training(device)
    compiled = tg.jit(step)
    compiled(x, y)
    told = tg.explain(compiled, x, y)
    text = str(told)
    assert text.splitlines()[0].endswith("step on jax")
    for part in ("1 trace in 1 call", "peak ", "the largest constants", "model.0.weight", "loss = nn.functional"):
        assert part in text, text
    assert json.loads(json.dumps(told.to_dict()))["calls"] == 1
    assert len(tg.transforms.report()) and compiled.report.traces == 1


def test_backends_that_tell_less():
    device = tg.device("torch")
    w = torch.ones(8, 3).to(device)
    told = tg.explain(lambda x: (x @ w).tanh(), torch.ones(4, 8).to(device))
    assert told.backend == "torch" and {i.name for i in told.inputs} == {"x", "w"}
    assert told.program.flops == 2 * 4 * 8 * 3 and told.program.memory is None
    assert told.program.primitives == {"aten.matmul.default": 1, "aten.tanh.default": 1}
    assert "the backend counts 192" in str(told)


def test_figures_and_lines_are_never_cut():
    """Of a wide table names and sources are."""
    device = tg.device("jax")
    layers = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).to(device)

    def step_with_a_long_line(x):
        the_sum_of_two_losses_that_are_added = layers(x).square().mean() + layers(x).exp().sum()
        the_sum_of_two_losses_that_are_added.backward()

    text = str(tg.explain(step_with_a_long_line, torch.ones(8, 64, device=device)))
    table = text[text.index("the most expensive operators") :].splitlines()[1:]
    assert table[0].split() == ["operator", "calls", "FLOPs", "share", "bytes", "line"]
    backward = next(line for line in table if "native_layer_norm_b" in line)
    assert "KiB" in backward and "test_explain.py:" in backward and backward.count("…") <= 2, backward
