"""What a function under `tg.jit` reads besides its tensors on the device: never the value of its first call."""

import dataclasses
import functools
import types

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch

import tensorgraft as tg
import tensorgraft.array_api as xp

pytestmark = [pytest.mark.sampled, pytest.mark.compiled]  # what is traced, and when, is counted

DEVICE = tg.device("jax")
SCALE = 2.0


def helper(x):
    return x * SCALE


@dataclasses.dataclass
class Config:
    weight: torch.Tensor
    factor: float = 1.0


class Holder:
    def __init__(self):
        self.weight = torch.ones(2)
        self.there = torch.ones(2).to(DEVICE)
        self.array = np.ones(2, np.float32)
        self.parts = [torch.ones(2)]
        self.inner = types.SimpleNamespace(factor=2.0, table={"k": 1.0})

    def of_array(self, x):
        return x * float(self.array[0])

    def of_part(self, x):
        return x * self.parts[0].to(x.device)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.ones(2)
        self.numbers = [1.0]

    def forward(self, x):
        return x * self.held.to(x.device) * self.numbers[0]


def around():
    """(name, the function, what changes something that it reads)"""
    cpu, there, h, m = torch.ones(2), torch.ones(2).to(DEVICE), Holder(), Module()
    shared = np.ones(2, np.float32)
    memory, array = torch.from_numpy(shared), np.ones(2, np.float32)
    table = {"number": 1.0, "cpu": torch.ones(2), "there": there, "jax": jnp.ones(2), "deep": [{"k": 1.0}]}
    config, variable, of_numpy = Config(torch.ones(2)), tf.Variable([1.0, 1.0]), xp.asarray([1.0, 1.0], device="numpy")

    def on(t, x):
        return t.to(x.device)

    def rescale():
        global SCALE
        SCALE += 1.0

    yield "cpu, in place", lambda x: x * on(cpu, x), lambda: cpu.mul_(3)
    yield "cpu, by its data", lambda x: x * on(cpu, x), lambda: cpu.data.mul_(3)
    yield "cpu, 0-d operand", lambda x: x * cpu[0], lambda: cpu.mul_(3)
    yield "cpu, computed", lambda x: x * on((cpu + 1).exp(), x), lambda: cpu.mul_(2)
    yield "cpu, by NumPy", lambda x: x * on(memory, x), lambda: np.multiply(shared, 3, out=shared)
    yield "cpu, its value", lambda x: x * memory[0].item(), lambda: np.multiply(shared, 3, out=shared)
    yield "cpu, its truth", lambda x: x * (2 if cpu.sum() > 100 else 3), lambda: cpu.mul_(1000)
    yield "default", lambda x, y=cpu: x * on(y, x), lambda: cpu.mul_(0.5)
    yield "partial", functools.partial(lambda x, y: x * on(y, x), y=cpu), lambda: cpu.add_(1)
    yield "NumPy, a number", lambda x: x * float(array[0]), lambda: array.fill(array[0] + 3)
    yield "NumPy, a tensor", lambda x: x * on(torch.from_numpy(array), x), lambda: array.fill(array[0] + 4)
    yield "NumPy, a copy", lambda x: x * torch.tensor(array, device=x.device), lambda: array.fill(array[0] + 5)
    yield "dict, a number", lambda x: x * table["number"], lambda: table.update(number=7.0)
    yield "dict, another cpu", lambda x: x * on(table["cpu"], x), lambda: table.update(cpu=torch.ones(2) * 3)
    yield "dict, another", lambda x: x * table["there"], lambda: table.update(there=there * 3)
    yield "dict, jax", lambda x: x * on(torch.tensor(np.array(table["jax"])), x), lambda: table.update(jax=jnp.zeros(2))
    yield "dict, deep", lambda x: x * table["deep"][0]["k"], lambda: table["deep"][0].update(k=3.0)
    yield "dataclass", lambda x: x * on(config.weight, x), lambda: config.weight.mul_(3)
    yield "dataclass, another", lambda x: x * on(config.weight, x), lambda: setattr(config, "weight", torch.zeros(2))
    yield "dataclass, number", lambda x: x * config.factor, lambda: setattr(config, "factor", 3.0)
    yield "object, another", lambda x: x * h.there, lambda: setattr(h, "there", there * 5)
    yield "object, deep", lambda x: x * h.inner.factor, lambda: setattr(h.inner, "factor", 3.0)
    yield "object, deeper", lambda x: x * h.inner.table["k"], lambda: h.inner.table.update(k=3.0)
    yield "method, NumPy", h.of_array, lambda: h.array.fill(3)
    yield "method, list", h.of_part, lambda: h.parts.__setitem__(0, torch.ones(2) * 3)
    yield "module, another", m, lambda: setattr(m, "held", torch.ones(2) * 3)
    yield "module, list", m, lambda: m.numbers.__setitem__(0, 5.0)
    yield "a helper's global", lambda x: helper(x), rescale
    yield "tf.Variable", lambda x: x * on(torch.from_numpy(variable.numpy()), x), lambda: variable.assign([3.0, 3.0])
    yield "Array", lambda x: x * float(of_numpy[0]), lambda: of_numpy.__setitem__(0, 4.0)


@pytest.mark.filterwarnings("ignore:To copy construct")  # Dynamo's, of arrays of NumPy
@pytest.mark.parametrize("of_one", [pytest.param(i, id=name) for i, (name, *_) in enumerate(around())])
@pytest.mark.parametrize("device", ["jax", "torch", "tensorflow", "cpu"])
def test_what_is_read_is_as_it_is_at_the_call(of_one, device):
    name, fn, change = list(around())[of_one]
    if device != "jax" and "another" in name and ("dict" in name or "object" in name) and "cpu" not in name:
        pytest.skip("reads a tensor on JAX")
    if (device, name) == ("tensorflow", "tf.Variable"):
        pytest.skip("TensorFlow has no values to give while it traces, and says so")
    x = torch.ones(2) if device == "cpu" else torch.ones(2).to(tg.device(device))
    compiled = tg.jit(fn)
    for _ in range(3):
        for _ in range(2):
            torch.testing.assert_close(compiled(x).cpu(), fn(x).cpu())
        change()
    torch.testing.assert_close(compiled(x).cpu(), fn(x).cpu())


def test_feeding_needs_no_other_trace():
    cpu = torch.ones(2)
    run = tg.jit(lambda x: x * cpu.to(x.device) + (cpu * 2).to(x.device))
    x = torch.ones(2).to(DEVICE)
    for _ in range(3):
        torch.testing.assert_close(run(x).cpu(), 3 * cpu)
        cpu.add_(1)
    assert run.report.traces == 1


def test_results_on_the_host():
    held = torch.ones(2)
    run = tg.jit(lambda x, y: (x + 1, y * held, held, y, torch.zeros(2), y * 2 > 3))
    x = torch.ones(2).to(DEVICE)
    for k in range(3):
        y = torch.full((2,), float(k))
        _, product, same, given, zeros, mask = run(x, y)
        assert same is held and given is y
        assert torch.equal(product, y * held) and zeros.tolist() == [0, 0] and torch.equal(mask, y * 2 > 3)
        zeros.add_(1)
        held.add_(1)


def test_what_the_host_keeps_for_a_backward_pass_outside():
    held, w = torch.ones(2), torch.ones(2).to(DEVICE).requires_grad_()
    run = tg.jit(lambda x: (w * held.to(x.device) * x).sin().sum())
    x = torch.ones(2).to(DEVICE)
    for _ in range(3):
        w.grad = None
        run(x).backward()
        torch.testing.assert_close(w.grad.cpu(), held * held.cos())
        held.add_(1)


def draws(x):
    return x * torch.rand(2).to(x.device)


def writes_cpu(x, held=torch.zeros(2)):  # noqa: B008
    torch.add(held, 1, out=held)
    return x * 2


def writes_history(x, held=torch.zeros(2)):  # noqa: B008
    held.mul_(OWN)
    return x * 2


def writes_in_a_branch(x, held=torch.zeros(2)):  # noqa: B008
    return torch.cond(x.sum() > 0, lambda x: (held.add_(1), x * 2)[1], lambda x: x * 3, (x,))


def returns_a_view(x, held=torch.zeros(2)):  # noqa: B008
    held.add_(1)
    return x * 2, held[0]


@pytest.mark.parametrize(
    ("fn", "more", "match"),
    [
        (draws, (), "draws random numbers on the CPU"),
        (writes_cpu, (), "writes a CPU tensor"),
        (writes_history, (), "writes a CPU tensor"),
        (writes_in_a_branch, (), "writes a CPU tensor"),
        (returns_a_view, (), "returns a view of a CPU tensor of shape"),
        (lambda x: x * float(LARGE[0]), (), "LARGE, an array of numpy of 40,000,000 bytes"),
        (lambda x, y: x * float(y.sum()), (torch.ones(2),), "needs the value of a CPU argument"),
        (lambda x: x * MANY.tolist()[0], (), "needs the values of a CPU tensor of shape"),
        (lambda x: (x * 1, OWN * 2), (), r"with a grad_fn"),
        (lambda x: (x * 1, (OWN * 2).sum().backward())[0], (), "computes a gradient of a CPU tensor of shape"),
    ],
)
def test_what_cannot_be_done_at_every_call_is_refused(fn, more, match):
    with pytest.raises(tg.TracedValueError, match=match):
        tg.jit(fn)(torch.ones(2).to(DEVICE), *more)
    assert OWN.grad is None


def average(device, compiled, average_all):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average_all)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        return loss

    run, x = compiled(step), torch.arange(6.0).view(2, 3).to(device)
    return [run(x) for _ in range(4)] + [averaged.module.weight.detach(), averaged.n_averaged]


def write_many(device, compiled):
    count, held, kept, x = torch.zeros(()), torch.zeros(4), torch.ones(3), torch.ones(3).to(device)
    row = held[1:3]

    def step(x, a):
        y = x * count.to(x.device)
        count.add_(1)
        a.mul_(2)
        held[0] += a.sum()
        row.add_(count)
        made = torch.zeros(3)
        made[1], made[2:] = count, a[0]
        kept.copy_(made)
        before = held.clone()
        held.clamp_(max=20)
        if count > 3:
            y = y + 100
        return y + count.to(x.device) + held.to(x.device).sum(), before, made, a, held

    run, values = compiled(step), []
    for i in range(6):
        a = torch.full((2,), float(i))
        results = run(x, a)
        assert results[3] is a and results[4] is held
        values += [t.clone() for t in (*results, count, held, row, kept)]
        if i == 4:
            count.zero_()
    return values


def count_statistics(device, compiled):
    norm, x, values = torch.nn.BatchNorm1d(3), torch.ones(2, 3).to(device), []
    run = compiled(lambda x, a: x * norm(a).detach().to(x.device))
    for i in range(4):
        values += [run(x, torch.arange(6.0).view(2, 3) * i), *(t.clone() for t in norm.buffers())]
    return values


def write_what_is_shared(device, compiled):
    a, b, x, values = torch.ones(2), torch.ones(2), torch.ones(2).to(device), []
    run = compiled(lambda x, a, b: (a.add_(1), x * b.to(x.device))[1])
    for pair in ((a, b), (a, a), (a, b), (b, b)):
        values += [run(x, *pair), a.clone(), b.clone()]
    return values


@pytest.mark.parametrize(
    "program",
    [
        functools.partial(average, average_all=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)),
        functools.partial(average, average_all=None),
        write_many,
        count_statistics,
        write_what_is_shared,
    ],
)
def test_writes_to_cpu_tensors_are_repeated(program):
    for got, want in zip(program(DEVICE, tg.jit), program(torch.device("cpu"), lambda f: f), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_an_error_after_a_write_to_a_cpu_tensor_takes_it_back():
    held, x = torch.zeros(2), torch.ones(2).to(DEVICE)

    def fn(x):
        held.add_(1)
        return x * torch.rand(2).to(x.device)

    with pytest.raises(tg.TracedValueError, match="draws random numbers"):
        tg.jit(fn)(x)
    assert held.tolist() == [0, 0]


LARGE, MANY, OWN = np.zeros(5_000_000), torch.zeros(100_000), torch.ones(2, requires_grad=True)


def test_values_of_arguments_are_guarded_where_that_is_asked_for():
    run = tg.jit(lambda x, y: x * y.sum().item(), guard_values=True)
    x = torch.ones(2).to(DEVICE)
    for k in (1.0, 2.0, 1.0):
        assert run(x, torch.full((2,), k)).tolist() == [2 * k] * 2
    assert run.report.traces == 2


class State:
    last = None


def test_what_the_host_computes_is_kept_outside():
    def keeps(x, y):
        State.last = y * 2
        return x * 1

    run, x = tg.jit(keeps), torch.ones(2).to(DEVICE)
    for k in (1.0, 2.0, 3.0):
        run(x, torch.full((2,), k))
        assert State.last.tolist() == [2 * k] * 2


def test_what_the_function_only_changes_is_not_looked_at():
    losses, seen = [], {"calls": 0}

    def step(x):
        losses.append(1)
        seen["calls"] += 1
        return x * 2

    run, x = tg.jit(step), torch.ones(2).to(DEVICE)
    for _ in range(4):
        run(x)
    assert run.report.traces == 1 and len(losses) == 4 and seen == {"calls": 4}


def test_why_it_was_traced_again():
    table, array = {"k": 1.0}, np.ones(2)
    run, x = tg.jit(lambda x: x * table["k"] * float(array[0])), torch.ones(2).to(DEVICE)
    run(x)
    table["k"] = 2.0
    run(x)
    array[0] = 3.0
    run(x)
    assert run.report.reasons == [[], ["table['k'] was 1.0 and is 2.0"], ["array has other values"]]


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
def test_without_tensors_it_computes_on_the_device_that_it_names(backend):
    device = tg.device(backend)
    name = str(device)

    def by_variable():
        return torch.ones(3, device=device) + 1

    assert tg.jit(by_variable)().device == device
    assert tg.jit(eval(f"lambda: torch.ones(3, device={name!r}) + 1", {"torch": torch}))().device == device


def test_a_program_that_is_typed_in_is_one():
    """Code without a file ("<stdin>", "<string>") is looked into for its device, and is named in errors."""
    made: dict = {"torch": torch, "other": tg.device("torch")}
    exec("def make(): return torch.ones(3).to(other)\ndef run(x):\n    return x if x.sum() else -x", made)
    assert tg.jit(made["make"])().device == made["other"]
    with pytest.raises(tg.errors.TracedValueError, match=r"^<string>:3 needs the value of a float32 tensor"):
        tg.jit(made["run"])(torch.ones(3, device="graft"))


def test_a_tensor_made_on_another_device_is_refused():
    other = tg.device("numpy")
    of_jax = torch.ones(3, device=tg.device("jax"))
    with pytest.raises(RuntimeError, match=r"makes a tensor on numpy, and tg\.jit compiles for one device, jax"):
        tg.jit(lambda x: x + torch.ones(3, device=other).to(x.device))(of_jax)


def test_each_call_goes_where_its_arguments_are():
    double = tg.jit(lambda x: x * 2)
    for x in (xp.asarray(1.0, device="jax"), torch.tensor(3.0), torch.tensor(4.0).to(DEVICE), 5, torch.tensor(0.0)):
        out = double(x)
        assert type(out) is type(x) and float(out) == 2 * float(x)
        if isinstance(x, torch.Tensor):
            assert out.device == x.device
    assert float(double(xp.asarray(6.0, device="numpy"))) == 12


ASKS = {
    "bool": lambda x: x * 2 if x.reshape(-1)[0] else x,
    "tolist": lambda x: (x > 0).tolist(),
    "cpu": lambda x: x.cpu() + 1,
    "numpy": lambda x: x.numpy(force=True),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_an_argument_has_no_value_whatever_the_array_of_its_storage(backend, shape, ask):
    """Also where the storage's array is just what the tensor sees: it is another one at the next call."""
    device = tg.device(backend)
    made = tg.jit(lambda x: x * 2)(torch.ones(shape, device=device))
    for x in (made, torch.ones(shape, device=device), torch.ones(shape).to(device)):
        with pytest.raises(tg.TracedValueError):
            tg.jit(ASKS[ask])(x)


def gradient_of_a_leaf(x, c):
    w = c.clone().requires_grad_()
    (w**2).sum().backward()
    (w**3).sum().backward()
    return x * 1, w.grad


def descent(x, c):
    w = c.detach().clone().requires_grad_()
    for _ in range(2):
        (w**2).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
    return x * w.detach().to(x.device), w.detach()


def leaf_with_its_gradient(x, c):
    w = c.clone().requires_grad_()
    (w**2).sum().backward()
    return x * 1, w.grad + 1, w


@pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")
@pytest.mark.parametrize("fn", [gradient_of_a_leaf, descent, leaf_with_its_gradient])
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
def test_gradients_of_leaves_on_the_cpu_that_are_made_inside(backend, fn):
    run = tg.jit(fn)
    for k in (1.0, 2.0):
        c = torch.tensor([k, 2.0, 3.0])
        for a, b in zip(run(torch.ones(3, device=tg.device(backend)), c), fn(torch.ones(3), c), strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach())
            assert (a.grad is None) == (b.grad is None)
    assert run.report.traces == (0 if backend == "numpy" or fn is leaf_with_its_gradient else 1)
