"""`tg.jit`: compiled functions do what the same functions do eagerly on the CPU."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg
from tensorgraft.transforms import UncompiledWarning

pytestmark = pytest.mark.compiled  # what is traced, and when, is counted

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def device():
    return tg.device("jax")


def mlp():
    torch.manual_seed(0)
    # no bias before the batch norm: its gradient is nothing but rounding, which Adam would blow up
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batches(n, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 6, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(n)]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "sgd_plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw_amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "muon": lambda p: torch.optim.Muon([x for x in p if x.dim() == 2], lr=1e-2),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adam_of_tensors": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), foreach=False),
}


def trained(where, compile_it, make_optimizer, steps=6):
    model = mlp().to(where)
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    run = compile_it(step)
    losses = [run(x.to(where), y.to(where)).item() for x, y in batches(steps)]
    return losses, model, optimizer, scheduler, run


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_step(device, name):
    losses, model, optimizer, scheduler, _ = trained("cpu", lambda f: f, OPTIMIZERS[name])
    mine, there, optimizer2, scheduler2, run = trained(device, tg.jit, OPTIMIZERS[name])
    loose = 200 if name == "muon" else 1  # which iterates in bfloat16
    np.testing.assert_allclose(mine, losses, rtol=0, atol=1e-5 * loose)
    for (key, a), b in zip(model.state_dict().items(), there.state_dict().values(), strict=True):
        torch.testing.assert_close(
            b.cpu(), a, rtol=1e-4 * loose, atol=1e-5 * loose, msg=lambda m, key=key: f"{key}: {m}"
        )
    for a, b in zip(model.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3 * loose, atol=1e-5 * loose)
    assert scheduler2.get_last_lr() == scheduler.get_last_lr()
    assert optimizer2.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert optimizer2.param_groups[0].get("capturable", False) is False
    # the dampened first step makes its buffers otherwise than the later ones, and Muon leaves gradients of vectors as
    # they are, so that only later steps add to some: two programs; all others: one
    assert run.report.traces == (2 if name in ("sgd_dampened", "muon") else 1)


class Own(torch.optim.Optimizer):
    """An optimizer as people write them: state made in the first step, the rate as a factor of a sum."""

    def __init__(self, params, lr, count):
        super().__init__(params, {"lr": lr, "count": count})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = group["count"](p), torch.zeros_like(p)
                state["step"] += 1
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.add_(state["mean"] / state["step"], alpha=-group["lr"])
                p.addcdiv_(state["mean"], p.abs() + 1, value=-group["lr"])


def test_an_optimizer_of_ones_own(device):
    def make(params):
        return Own(params, 0.1, lambda p: torch.zeros((), device=p.device))

    losses, model, *_ = trained("cpu", lambda f: f, make)
    mine, there, _, _, run = trained(device, tg.jit, make)
    np.testing.assert_allclose(mine, losses, rtol=0, atol=1e-5)
    for a, b in zip(model.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)
    assert run.report.traces == 2  # the first call makes the state


def test_an_optimizer_that_counts_in_python_runs_uncompiled(device):
    p = nn.Parameter(torch.ones(2, device=device))
    optimizer = Own([p], 0.1, lambda p: 0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    step = tg.jit(optimizer.step)
    with pytest.warns(UncompiledWarning, match="Own, which counts step in Python"):
        step()
    step()
    assert optimizer.state[p]["step"] == 3


def test_lbfgs_steps_outside(device):
    def fitted(where, wrap, inside=False):
        p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64, device=where))
        optimizer = torch.optim.LBFGS([p], lr=0.5, max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = (p.exp() - 2 * p).sum()
            loss.backward()
            return loss

        closure = closure if inside else wrap(closure)
        step = wrap(lambda: optimizer.step(closure)) if inside else lambda: optimizer.step(closure)
        return [step().item() for _ in range(3)], p.detach().cpu()

    torch.testing.assert_close(fitted(device, tg.jit), fitted("cpu", lambda f: f), rtol=1e-9, atol=1e-9)
    with pytest.raises(tg.TracedValueError, match="LBFGS decides by values"):
        fitted(device, tg.jit, inside=True)


def test_mode_and_shape_and_python_values_trace_again(device):
    model = mlp().to(device)
    run = tg.jit(lambda x, scale=1.0: model(x) * scale)
    x = torch.randn(8, 6).to(device)
    host = copy.deepcopy(model).cpu()
    for training, rows, scale in [(True, 8, 1.0), (False, 8, 1.0), (False, 5, 1.0), (False, 5, 3.0), (False, 8, 1.0)]:
        model.train(training)
        host.train(training)
        torch.testing.assert_close(
            run(x[:rows].clone(), scale=scale).cpu(), host(x[:rows].cpu()).detach() * scale, rtol=1e-5, atol=1e-5
        )
    assert run.report.traces == 4


def test_a_python_value_of_the_closure_traces_again(device):
    factor = 2.0

    def double(x):
        return x * factor

    run = tg.jit(double)
    x = torch.ones(3).to(device)
    assert run(x).tolist() == [2.0] * 3
    factor = 3.0
    assert run(x).tolist() == [3.0] * 3


def test_random_numbers_advance_and_equal_eager_ones(device):
    def noisy(x):
        return F.dropout(x, 0.5), torch.rand(3, device=device), torch.randn(2, 2, device=device)

    x = torch.ones(64).to(device)
    runs = []
    for fn in (noisy, tg.jit(noisy)):
        torch.manual_seed(5)
        runs.append([[t.cpu() for t in fn(x)] for _ in range(3)])
    for eager, compiled in zip(*runs, strict=True):
        for a, b in zip(eager, compiled, strict=True):
            torch.testing.assert_close(b, a)
    assert not torch.equal(runs[1][0][0], runs[1][1][0])


def test_gradients_accumulate(device):
    model = mlp().to(device)
    host = copy.deepcopy(model).cpu()

    def accumulate(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    run = tg.jit(accumulate)
    for n, (x, y) in enumerate(batches(5)):
        if n == 3:
            model.zero_grad()
            host.zero_grad()
        F.cross_entropy(host(x), y).backward()
        run(x.to(device), y.to(device))
        for a, b in zip(host.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)
    assert run.report.traces == 2  # without gradients before, and with


def test_arguments_are_written_and_returned(device):
    def program(x, y):
        x[0] += 1
        view = x.t()
        y.copy_(view)
        return x, view, y * 2, {"sum": x.sum(), "text": "as it is"}

    run = tg.jit(program)
    for _ in range(2):
        x, y = torch.arange(6.0).reshape(2, 3), torch.zeros(3, 2)
        a, b = x.to(device), y.to(device)
        want, got = program(x, y), run(a, b)
        assert got[0] is a
        assert got[1].stride() == want[1].stride()
        assert got[3]["text"] == "as it is"
        torch.testing.assert_close(a.cpu(), x)
        torch.testing.assert_close(b.cpu(), y)
        torch.testing.assert_close(got[2].cpu(), want[2])
        got[1][0, 0] = 77.0  # still a view of the argument
        assert a[0, 0].item() == 77.0


def test_shared_buffers_survive_donation(device):
    x = torch.ones(4).to(device)
    copy_of = x.clone()  # one immutable array serves both
    seen = tg.to_backend_array(x)

    def bump():
        x.add_(1)

    run = tg.jit(bump)
    for _ in range(3):
        run()
    assert x.tolist() == [4.0] * 4
    assert copy_of.tolist() == [1.0] * 4
    assert np.asarray(seen).tolist() == [1.0] * 4


def test_state_that_is_loaded_is_used(device):
    model = nn.Linear(2, 1, bias=False).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    run = tg.jit(lambda x: (optimizer.zero_grad(), model(x).sum().backward(), optimizer.step())[-1])
    x = torch.ones(1, 2).to(device)
    run(x)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(x)
    after = model.weight.detach().cpu()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run(x)
    torch.testing.assert_close(model.weight.detach().cpu(), after)


def test_a_value_that_is_asked_for_is_an_error_and_nothing_changes(device):
    model = mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.to(device) for t in batches(1)[0])
    F.cross_entropy(model(x), y).backward()
    before = {k: v.cpu() for k, v in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss if loss > 0 else None

    with pytest.raises(tg.TracedValueError, match="needs the value of a"):
        tg.jit(step)(x, y)
    for k, v in model.state_dict().items():
        assert torch.equal(v.cpu(), before[k]), k
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert step(x, y) > 0  # eagerly it still works


def test_what_only_the_first_call_would_do_is_an_error(device):
    counter = torch.zeros(())
    x = torch.ones(3).to(device)

    def counts(x):
        torch.add(counter, 1, out=counter)
        return x * 2

    with pytest.raises(tg.TracedValueError, match="writes a CPU tensor"):
        tg.jit(counts)(x)
    assert counter.item() == 0
    with pytest.raises(tg.TracedValueError, match="random numbers on the CPU"):
        tg.jit(lambda x: x + torch.rand(3).to(device))(x)


def test_a_cpu_tensor_that_is_read_is_watched(device):
    scale = torch.tensor(2.0)
    run = tg.jit(lambda x: x * scale)
    x = torch.ones(3).to(device)
    assert run(x).tolist() == [2.0] * 3
    scale.fill_(5)
    assert run(x).tolist() == [5.0] * 3


def test_cpu_arguments_are_inputs(device):
    run = tg.jit(lambda x: x.to(device).t() * 2)
    for seed in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(run(x).cpu(), x.t() * 2)
    assert run.report.traces == 1


def test_modules_can_be_compiled(device):
    model = mlp().to(device).eval()
    run = tg.jit(model)
    x = torch.randn(2, 6)
    out = run(x.to(device))
    torch.testing.assert_close(out.cpu(), copy.deepcopy(model).cpu()(x), rtol=1e-5, atol=1e-5)


def test_inside_another_compiled_function(device):
    inner = tg.jit(lambda x: x.sin())
    outer = tg.jit(lambda x: inner(x) + 1)
    x = torch.arange(3.0)
    torch.testing.assert_close(outer(x.to(device)).cpu(), x.sin() + 1)


def test_numpy_calls_the_function_itself():
    x = torch.arange(3.0).to(tg.device("numpy"))
    run = tg.jit(lambda x: (x * 2, x.sum().item()))
    out, total = run(x)
    assert out.tolist() == [0.0, 2.0, 4.0]
    assert total == 3.0


def test_leaf_arguments_get_gradients(device):
    run = tg.jit(lambda x: (x**2).sum().backward())
    for n in (1.0, 2.0):
        x = torch.full((3,), n).to(device).requires_grad_()
        run(x)
        assert x.grad.tolist() == [2 * n] * 3


def test_other_threads_go_on_eagerly(device):
    import threading

    x = torch.ones(3).to(device)
    outside = torch.zeros(3).to(device)
    begun, added = threading.Event(), threading.Event()

    def other():
        begun.wait(60)
        outside.add_(1)  # not a part of the program
        added.set()

    def program(x):
        y = x * 2
        begun.set()
        added.wait(60)
        return y + 1

    thread = threading.Thread(target=other)
    thread.start()
    run = tg.jit(program)
    with pytest.warns(UncompiledWarning, match=r"(added|begun)\.\w+, which may differ"):  # each call has to set it
        assert run(x).tolist() == [3.0] * 3
    for _ in range(2):
        assert run(x).tolist() == [3.0] * 3
    thread.join()
    assert outside.tolist() == [1.0] * 3


def test_memory_exported_by_dlpack_is_not_donated(device):
    x = torch.ones(4).to(device) * 2
    seen = torch.from_dlpack(x.__dlpack__())
    run = tg.jit(lambda: x.add_(1))
    for _ in range(2):
        run()
    assert x.tolist() == [4.0] * 4
    assert seen.tolist() == [2.0] * 4


def _turned(x):
    x.t_()
    return x * 2


def _filled(x):
    torch.mul(torch.ones(9, device=x.device), 2.0, out=x)
    return x


def _elsewhere(x):
    x.set_(x[0] + 1)
    return x.sum()


def _exchanged(x):
    x.data = x.double() + 1
    return x


@pytest.mark.parametrize("fn", [_turned, _filled, _elsewhere, _exchanged])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_argument_that_is_made_to_look_elsewhere(device, fn):
    """At every call, not at the first alone."""
    compiled = tg.jit(fn)
    for _ in range(3):
        want, got = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3).to(device)
        expected, result = fn(want), compiled(got)
        torch.testing.assert_close(result.cpu(), expected)
        torch.testing.assert_close(got.cpu(), want)
        assert got.stride() == want.stride() and (result is got) == (expected is want)


def test_a_tensor_from_outside_that_is_made_to_look_elsewhere_is_refused(device):
    held = torch.ones(2, 3, device=device)
    layer = torch.nn.Linear(3, 3, device=device)
    weight = layer.weight.detach().clone()

    def turned(x):
        held.t_()
        return held.sum() + x

    def exchanged(x):
        layer.weight.data = layer.weight.data * 0.5
        return layer(x)

    for fn in (turned, exchanged):
        with pytest.raises(tg.TracedValueError, match="changes the shape, strides or storage"):
            tg.jit(fn)(torch.ones(2, 3, device=device))
    assert held.shape == (2, 3) and torch.equal(layer.weight, weight)


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow", "numpy"])
def test_an_argument_is_made_to_require_a_gradient_at_each_call(backend: str) -> None:
    """As `t_()` and `.data =` of an argument; what is computed of it has its history."""
    pytest.importorskip(backend)

    def begun(x, y):
        x.requires_grad_()
        (x * x).sum().backward()
        y.requires_grad_(False)
        return x * y

    run = tg.jit(begun, compile="first")
    for scale in (1.0, 2.0, 3.0):
        seen = []
        for call, device in ((run, tg.device(backend)), (begun, "cpu")):
            x, y = torch.full((2,), scale).to(device), torch.ones(2).to(device).requires_grad_()
            out = call(x, y)
            out.sum().backward()
            seen.append((x.requires_grad, y.requires_grad, y.grad, out.tolist(), x.grad.tolist()))
        assert seen[0] == seen[1]
    assert run.report.traces == (backend != "numpy")


def test_what_a_trace_made_require_a_gradient_is_put_back() -> None:
    """After an exception, and where several traces answer what Python asks."""
    device = tg.device("jax")

    def failing(x):
        x.requires_grad_()
        raise KeyError

    x = torch.ones(2, device=device)
    with pytest.raises(KeyError):
        tg.jit(failing)(x)
    assert x.requires_grad  # as without tg.jit: the program itself has raised

    @tg.jit(compile="first", guard_values=True)
    def asking(x):
        x.requires_grad_()
        return x * 2 if x.sum() > 0 else x * 3

    for scale in (1.0, 2.0, 3.0):
        x = torch.full((2,), scale, device=device)
        out = asking(x)
        assert x.requires_grad and out.requires_grad
        out.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
