"""What a compiled function takes for granted: a change of it is traced again, and nothing else is."""

import collections
import dataclasses
import warnings

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import tensorgraft as tg

pytestmark = pytest.mark.compiled  # what is traced, and when, is counted

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def device():
    return tg.device("jax")


class Scaled(nn.Module):
    factor = 1.0  # of the class

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = 2.0
        self.shift = (1, 2.0)
        self.unread = 0
        self.inner = nn.Dropout(0.0)

    def forward(self, x):
        return self.inner(x * self.weight) * self.scale * self.factor + self.shift[1]


def set_class(model):
    type(model).factor = 4.0


CHANGES = {
    "float": lambda m: setattr(m, "scale", 3.0),
    "kind of number": lambda m: setattr(m, "scale", 2),
    "tuple": lambda m: setattr(m, "shift", (1, 5.0)),
    "class": set_class,
    "mode": lambda m: m.eval(),
    "submodule": lambda m: setattr(m, "inner", nn.Identity()),
    "hook": lambda m: m.register_forward_hook(lambda m, args, out: out + 1),
    "requires_grad": lambda m: m.weight.requires_grad_(False),
    "parameter": lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach() * 3)),
    "data": lambda m: setattr(m.weight, "data", m.weight.detach() * 3),
    "new parameter": lambda m: m.register_parameter("more", nn.Parameter(m.weight.detach() * 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_module_traces_again(device, change):
    cls = type("Scaled", (Scaled,), {})  # one that the test may change
    model, x = cls().to(device), torch.ones(3, device=device)
    run = tg.jit(model)
    assert run(x).tolist() == model(x).tolist()
    CHANGES[change](model)
    assert run(x).tolist() == model(x).tolist()
    assert run.report.traces == 2
    run(x)
    model.unread += 1
    run(x)
    assert run.report.traces == 2


class Trainer:
    rate = 0.5

    def __init__(self):
        self.scale, self.epoch, self.ready, self.calls = 2.0, 0, False, 0

    def step(self, x):
        return x * self.scale * self.rate

    @tg.jit
    def decorated(self, x):
        return x * self.scale

    def once(self, x):
        if not self.ready:
            self.ready = True
            return x * 0
        return x

    def counted(self, x):
        self.calls += 1
        return x * 2


def test_attributes_of_the_object_that_a_method_is_of(device):
    trainer, x = Trainer(), torch.ones(2, device=device)
    for run in (tg.jit(trainer.step), trainer.decorated):
        before = run(x).tolist()
        trainer.epoch += 1  # which the method does not read
        assert run(x).tolist() == before
        trainer.scale *= 3
        assert run(x).tolist() == [3 * v for v in before]
    assert "__getattribute__" not in vars(Trainer) and "__getattribute__" not in vars(nn.Module)


def test_what_the_function_changes_itself(device):
    trainer, x = Trainer(), torch.ones(2, device=device)
    run = tg.jit(trainer.once)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [run(x).tolist()[0] for _ in range(3)] == [0.0, 1.0, 1.0]
    assert run.report.traces == 2
    run = tg.jit(trainer.counted)
    for _ in range(5):
        assert run(x).tolist() == [2.0, 2.0]
    assert run.report.traces == 1 and trainer.calls == 5


def test_globals_of_functions_inside(device):
    space = {"torch": torch, "FACTOR": 2.0}
    exec("def outer(x):\n    def inner(y):\n        return y * FACTOR\n    return inner(x)", space)
    run, x = tg.jit(space["outer"]), torch.ones(2, device=device)
    assert run(x).tolist() == [2.0, 2.0]
    space["FACTOR"] = 3.0
    assert run(x).tolist() == [3.0, 3.0]


def test_lazy_views_are_other_arguments(device):
    x = torch.tensor([1 + 2j, 3 - 1j])
    run = tg.jit(lambda x: x + 0)
    for given in (x, x.conj(), x.conj().imag, x):
        there = x.to(device)
        there = there if given is x else there.conj() if given.is_complex() else there.conj().imag
        torch.testing.assert_close(run(there).cpu(), given + 0)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor | None = None


_pytree.register_dataclass(Pair)
Named = collections.namedtuple("Named", "a b")


def test_containers_are_what_pytorch_takes_them_for(device):
    x = torch.ones(2, device=device)

    def program(pair, named, table, *, also):
        total = pair.first + named.a + table["z"] + table["a"][0]
        return Pair(total * also), Named(total, None), collections.OrderedDict(z=total, a=[total, "text"]), None

    run = tg.jit(program)
    for _ in range(2):
        pair, named, table, nothing = run(Pair(x), Named(x, None), {"z": x, "a": (x,)}, also=2)
        assert type(pair) is Pair and pair.first.tolist() == [8.0, 8.0] and pair.second is None
        assert type(named) is Named and named.b is None and nothing is None
        assert list(table) == ["z", "a"] and type(table) is collections.OrderedDict and table["a"][1] == "text"
    assert run.report.traces == 1
    run(Pair(x, x), Named(x, None), {"z": x, "a": (x,)}, also=2)
    assert run.report.traces == 2


def test_many_captured_tensors_are_written_once_each(device):
    model = nn.ParameterList([torch.full((2,), float(i)) for i in range(50)]).to(device)

    @tg.jit
    def bump():
        with torch.no_grad():
            for p in model:
                p.add_(1)

    held = model[3].detach().clone()
    for _ in range(3):
        bump()
    assert [p[0].item() for p in model] == [i + 3.0 for i in range(50)]
    assert held.tolist() == [3.0, 3.0]


def test_gradients_that_are_read_before_they_are_dropped(device):
    def losses(where, wrap):
        p = nn.Parameter(torch.ones(3, device=where))
        optimizer = torch.optim.SGD([p], lr=0.1)
        (p * 5).sum().backward()

        def step(x):
            before = p.grad.sum()
            optimizer.zero_grad()
            (p * p * x).sum().backward()
            optimizer.step()
            return before

        run = wrap(step)
        return [run(torch.full((3,), float(k), device=where)).item() for k in range(4)]

    assert losses(device, tg.jit) == pytest.approx(losses("cpu", lambda f: f))


def test_gradients_from_before_are_freed_before_the_new_ones_are_computed(device):
    p = nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1)

    @tg.jit
    def step(x):
        optimizer.zero_grad()
        (p * x).sum().backward()
        optimizer.step()

    x = torch.ones(3, device=device)
    step(x)
    kept, run = p.grad, next(iter(step.traces.values()))[0].run
    during = []

    def spy(*arrays):
        during.append(p.grad)
        return run(*arrays)

    next(iter(step.traces.values()))[0].run = spy
    step(x * 2)
    assert during == [None] and p.grad.tolist() == [2.0] * 3 and kept.tolist() == [1.0] * 3


class Rebinding(torch.nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.register_buffer("state", torch.zeros(2))
        self.last = torch.zeros(2)

    def forward(self, x):
        self.last = x * 2
        self.state = self.state + x if self.reads else x * 3
        return self.state + 1


def test_an_attribute_that_is_read_and_given_another_tensor_is_an_input(device):
    module, x = Rebinding(reads=True).to(device), torch.ones(2, device=device)
    run = tg.jit(module)
    for k in (1.0, 2.0, 3.0):
        assert run(x).tolist() == [k + 1] * 2 and module.state.tolist() == [k] * 2
    module.state = torch.full((2,), 10.0, device=device)
    assert run(x).tolist() == [12, 12]
    assert run.report.traces == 1


def test_what_was_given_another_tensor_is_as_before_where_the_function_is_refused(device):
    class Plain:
        of_the_class = torch.zeros(2, device=device)

    plain = Plain()
    plain.own = torch.zeros(2, device=device)

    def run(x, name):
        plain.new = x + 1
        setattr(plain, name, getattr(plain, name) + x)
        return 1 if getattr(plain, name).sum() > 0 else 0

    for name in ("own", "of_the_class"):
        for _ in range(2):
            with pytest.raises(tg.TracedValueError, match="needs the value of a bool tensor"):
                tg.jit(run)(torch.ones(2, device=device), name)
        assert getattr(plain, name).tolist() == [0, 0]
    assert list(vars(plain)) == ["own"]


def test_an_attribute_that_is_only_written_has_the_value_of_the_call(device):
    module = Rebinding(reads=False).to(device)
    run = tg.jit(module)
    for k in (1.0, 2.0, 3.0):
        assert run(torch.full((2,), k, device=device)).tolist() == [3 * k + 1] * 2
        assert (module.state.tolist(), module.last.tolist()) == ([3 * k] * 2, [2 * k] * 2)


def test_zeros_among_the_arguments_have_signs_and_nan_is_itself(device):
    x = torch.ones(2, device=device)
    sign = tg.jit(lambda x, s: torch.copysign(x, torch.tensor(s, device=x.device)))
    assert [sign(x, s).tolist() for s in (0.0, -0.0)] == [[1, 1], [-1, -1]]
    scaled = tg.jit(lambda x, s: x * s)
    assert scaled(x, float("nan")).isnan().all() and scaled(x, float("nan")).isnan().all()
    assert scaled.report.traces == 1
