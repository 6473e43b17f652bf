"""`tg.jit` of functions of plain CPU tensors: as PyTorch computes them, whatever changes from call to call."""

import copy
import types
import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.hub import registry

pytestmark = pytest.mark.sampled

BACKENDS = ["jax", "torch", "tensorflow", "numpy"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    before = registry.default()
    tg.set_default_device(request.param)
    yield request.param
    tg.set_default_device(before)


def net():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
}


def test_the_call_s_own_values(backend):
    double = tg.jit(lambda x: x * 2)
    assert [double(torch.tensor([v])).item() for v in (1.0, 5.0, -2.0)] == [2, 10, -4]
    assert double(torch.arange(3)).tolist() == [0, 2, 4]


def test_modules_and_their_parameters(backend):
    model = nn.Linear(2, 1)
    run = tg.jit(model)
    for _ in range(3):
        x = torch.randn(3, 2)
        torch.testing.assert_close(run(x), model(x))
        with torch.no_grad():
            model.weight.add_(1)
    model.weight = nn.Parameter(torch.zeros(1, 2))
    torch.testing.assert_close(run(x), model(x))
    model.requires_grad_(False)
    assert not run(x).requires_grad


def test_backward_passes_outside(backend):
    w, x = torch.ones(3, requires_grad=True), torch.randn(3, requires_grad=True)
    run = tg.jit(lambda x: (w * x).sin())
    for _ in range(2):
        want = torch.autograd.grad((w * x).sin().sum(), (w, x))
        got = torch.autograd.grad(run(x).sum(), (w, x))
        torch.testing.assert_close(got, want)
        with torch.no_grad():
            w.add_(1)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks for it, and hides what PyTorch says
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_are_those_of_pytorch(name, backend):
    if backend != "jax" and name != "Adam":
        pytest.skip("once is enough")

    def trained(wrap):
        torch.manual_seed(0)
        model = net()
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step, losses = wrap(step), []
        for _ in range(4):
            x = torch.randn(6, 4)
            losses.append(step(x, x.sum(1, keepdim=True)).item())
        return losses, model.state_dict()

    losses, state = trained(lambda f: f)
    ours, ours_after = trained(tg.jit)
    assert ours == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(ours_after, state, rtol=1e-4, atol=1e-5)


def test_writes_and_views(backend):
    held = torch.zeros(3)

    @tg.jit
    def count(x):
        held.add_(x)
        x[0] = 7.0
        return held[1:], x

    x = torch.ones(3)
    view, same = count(x)
    assert x.tolist() == [7, 1, 1] and same is x and held.tolist() == [1, 1, 1]
    count(torch.ones(3))
    assert held.tolist() == [2, 2, 2] and view.tolist() == [2, 2]


def test_values_that_python_asks_for(backend):
    x = torch.ones(3)
    run = tg.jit(lambda x: x * 2 if x.sum() > 3.5 else x[x > 0] * x.sum().item())
    for _ in range(3):
        torch.testing.assert_close(run(x), x * 2 if x.sum() > 3.5 else x[x > 0] * x.sum())
        x[0] += 0.4


def test_python_state():
    class Counter:
        def __init__(self):
            self.calls, self.total = 0, torch.zeros(2)

        @tg.jit
        def add(self, x):
            self.calls += 1
            self.total = self.total + x * self.calls
            return self.total

    counter = Counter()
    assert [counter.add(torch.ones(2)).tolist()[0] for _ in range(3)] == [1, 3, 6]
    assert counter.calls == 3


def test_random_numbers_are_drawn_at_every_call(backend):
    model = nn.Dropout(0.5)
    run, draw = tg.jit(model), tg.jit(lambda: torch.rand(4))
    assert not torch.equal(run(torch.ones(64)), run(torch.ones(64)))
    assert not torch.equal(draw(), draw())
    model.eval()
    assert torch.equal(run(torch.ones(4)), torch.ones(4))


def test_functions_inside_each_other():
    w = torch.ones(2)
    inner = tg.jit(lambda x: x * w)
    outer = tg.jit(lambda x: inner(x) + 1)
    device = tg.device("jax")
    on_device = tg.jit(lambda x: inner(x).to(device) + 1)
    for k in (1.0, 2.0):
        w.fill_(k)
        assert outer(torch.ones(2)).tolist() == [k + 1] * 2
        assert on_device(torch.ones(2)).tolist() == [k + 1] * 2


def test_functions_of_no_tensors():
    state = {"w": torch.ones(2)}
    hidden = iter([torch.ones(2)]).__next__()
    run, times = tg.jit(lambda: state["w"] * 2), tg.jit(lambda n: hidden * n)
    for k in (1.0, 2.0):
        state["w"] = torch.full((2,), k)
        hidden.fill_(k)
        assert run().tolist() == [2 * k] * 2 and times(3).tolist() == [3 * k] * 2


def test_what_is_named_decides_nothing():
    """A function that knows of the device, and computes on the CPU alone."""
    device, held = tg.device("jax"), torch.zeros(2)

    @tg.jit
    def run(x):
        held.add_(1)
        return x * held if device.type == "graft" else x

    assert [run(torch.ones(2)).tolist()[0] for _ in range(3)] == [1, 2, 3]


def test_arguments_on_both(backend):
    if backend == "numpy":
        pytest.skip("calls the function itself")
    device = tg.device(backend)
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).to(device)])
    host = copy.deepcopy(model).cpu()
    run = tg.jit(lambda x: model[1](model[0](x).to(device)))
    for _ in range(3):
        x = torch.randn(3, 2)
        torch.testing.assert_close(run(x).cpu(), host[1](host[0](x)), rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            for p in (model[0].weight, host[0].weight):
                p.mul_(2)
    assert run.report.traces == 1


def test_from_the_cpu_to_the_device_and_back():
    w = torch.ones(2)
    run = tg.jit(lambda x: x * w.to(x.device))
    for x in (torch.ones(2), torch.ones(2).to(tg.device("jax")), torch.ones(2), torch.ones(2).to(tg.device("numpy"))):
        assert run(x).tolist() == w.tolist() and run(x).device == x.device
        w.add_(1)


def test_quantised_and_sparse_tensors():
    layer, sparse, x = nn.Linear(64, 64), torch.eye(2).to_sparse(), torch.randn(3, 64)
    tg.quantize_(layer, "int8")
    run, product = tg.jit(lambda x: layer(x)), tg.jit(lambda x: torch.sparse.mm(sparse, x))
    for _ in range(2):
        torch.testing.assert_close(run(x), layer(x))
        torch.testing.assert_close(product(x[:2]), x[:2])
        x.add_(1)


def test_explain_says_where_to_look():
    with pytest.raises(TypeError, match="computes on CPU tensors alone"):
        tg.explain(lambda x: x * 2, torch.ones(2))


def test_grafted_programs_are_as_they_are_at_the_call():
    eqx, jax = pytest.importorskip("equinox"), pytest.importorskip("jax")
    model = tg.graft(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), onto="torch")
    g = tg.graft(lambda x: jax.numpy.sin(x) * 2, onto="torch")
    run, around = tg.jit(model), tg.jit(lambda x: g(x) + 1)
    for _ in range(3):
        x = torch.randn(2, requires_grad=True)
        torch.testing.assert_close(run(x), model(x))
        torch.testing.assert_close(around(x), x.sin() * 2 + 1)
        around(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * 2)
        got = torch.autograd.grad(run(x).sum(), list(model.parameters()))
        torch.testing.assert_close(got, torch.autograd.grad(model(x).sum(), list(model.parameters())))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)


def test_grafted_models_read_what_their_functions_read_now(backend):
    eqx, jax = pytest.importorskip("equinox"), pytest.importorskip("jax")

    class Scaled(eqx.Module):
        weight: jax.Array
        activation: object

        def __call__(self, x):
            return self.activation(x * self.weight)

    held, calls = types.SimpleNamespace(gain=2.0), []
    model = tg.graft(Scaled(jax.numpy.ones(2), lambda x: x * held.gain), onto="torch")
    counting = tg.graft(Scaled(jax.numpy.ones(2), lambda x: (calls.append(1), x)[1]), onto="torch")
    run, around = tg.jit(model), tg.jit(lambda x: model(x) + 1)
    for held.gain in (2.0, 5.0, 2.0, 7.0):
        for x in (torch.ones(2), torch.ones(3, 2)):
            torch.testing.assert_close(run(x), x * held.gain)
            torch.testing.assert_close(around(x), x * held.gain + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = tg.jit(lambda x: counting(x) + 1)
        for _ in range(3):
            torch.testing.assert_close(count(torch.ones(2)), torch.full((2,), 2.0))
    assert len(calls) == 3


def test_grafted_modules_with_variables_run_beside_graphs():
    nnx = pytest.importorskip("flax.nnx")

    class Counting(nnx.Module):
        def __init__(self):
            self.linear, self.calls = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Variable(0.0)

        def __call__(self, x):
            self.calls[...] += 1.0
            return self.linear(x) * self.calls[...]

    model, x = tg.graft(Counting(), onto="torch"), torch.ones(2)
    run, other = tg.jit(lambda x: model(x) + 1), tg.graft(Counting(), onto="torch")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), other(x) + 1)


@pytest.mark.parametrize("where", ["jax", "torch"])
def test_grafted_programs_among_tensors_of_both(where):
    jax = pytest.importorskip("jax")
    g = tg.graft(lambda x: jax.numpy.sin(x) * 2, onto="torch")
    run = tg.jit(lambda x, y: x * g(y).to(x.device))
    for k in (1.0, 2.0):
        y = torch.full((2,), k)
        torch.testing.assert_close(run(torch.ones(2).to(tg.device(where)), y).cpu(), y.sin() * 2)
