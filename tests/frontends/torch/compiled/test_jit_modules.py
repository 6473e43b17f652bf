"""`tg.jit(module)` is a module, as `torch.compile(module)` is: each program against PyTorch's, on the CPU."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.hub import registry

BACKENDS = [name for name in ("jax", "numpy", "torch", "tensorflow") if name in registry.backends()]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("shift", torch.ones(2))
        self.scale = 2.0

    def forward(self, x, k=1):
        return self.linear(x) * self.scale * k + self.shift if self.training else self.linear(x)

    def twice(self, x):
        return self.linear(x) * 2


class Sized(nn.Sequential):
    pass


def seen(model, x):
    """Return what `model` gives now, as plain data."""
    return [round(v, 4) for v in model(x).detach().cpu().flatten().tolist()]


def moved(model, compiled, x):
    yield model.to(torch.float64) is model, model.linear.weight.dtype, seen(model, x.double())
    yield model.float() is model, seen(model, x)


def modes(model, compiled, x):
    yield seen(model, x), model.training
    yield model.eval() is model, seen(model, x), model.training, compiled.training, compiled.linear.training
    compiled.train()
    yield seen(model, x), model.training


def names(model, compiled, x):
    yield [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    yield list(model.state_dict()), [name for name, _ in model.named_modules()]
    yield all(a is b for a, b in zip(model.parameters(), compiled.parameters(), strict=True))
    yield isinstance(model, nn.Module), isinstance(model, torch._dynamo.OptimizedModule), model._orig_mod is compiled
    yield set(dir(compiled)) <= set(dir(model))


def attributes(model, compiled, x):
    yield model.scale, model.linear is compiled.linear, model.twice(x).shape
    model.scale = 3.0
    yield compiled.scale, seen(model, x), "scale" in vars(model)
    model.extra = x
    yield compiled.extra is x
    del model.extra
    yield hasattr(compiled, "extra"), hasattr(model, "extra")
    model.shift = torch.zeros_like(model.shift)
    model.linear = nn.Identity()
    yield seen(model, x[:, :2]), list(model.state_dict())


def states(model, compiled, x):
    with torch.no_grad():
        model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
        yield seen(model, x)
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}, assign=True)
        yield seen(model, x)
        compiled.load_state_dict({name: torch.ones_like(value) for name, value in compiled.state_dict().items()})
        yield seen(model, x)


def hooks(model, compiled, x):
    called = []
    handles = [
        model.register_forward_hook(lambda m, args, out: called.append(type(m) is type(model)) or out * 2),
        model.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
        compiled.register_forward_hook(lambda m, args, out: out * 3),
    ]
    yield seen(model, x), called
    yield seen(model, x), called
    model.register_full_backward_hook(lambda m, given, taken: called.append("backward"))
    model(x).sum().backward()
    yield called, compiled.linear.bias.grad.tolist()
    for handle in handles:
        handle.remove()
    yield seen(model, x), called


def trained(model, compiled, x):
    optimizer = torch.optim.SGD(model.parameters(), 0.001)  # weights stay small: four digits are exact
    for _ in range(3):
        optimizer.zero_grad()
        model(x, k=2).pow(2).sum().backward()
        optimizer.step()
        yield [round(v, 4) for v in compiled.linear.weight.detach().cpu().flatten().tolist()]
    model.requires_grad_(False)
    yield model(x).requires_grad


def inside(model, compiled, x):
    yield seen(nn.Sequential(model, nn.ReLU()), x)
    yield [name for name, _ in nn.Sequential(model).named_parameters()]


PROGRAMS = [moved, modes, names, attributes, states, hooks, trained, inside]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which Dynamo reads
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compiled_module_is_one_as_pytorch_has_it(program, backend):
    expected = run(program, torch.device("cpu"), lambda m: torch.compile(m, backend="eager"))
    assert run(program, tg.device(backend), tg.jit) == expected


def run(program, device, compiler):
    torch.manual_seed(0)
    model = Net().to(device)
    return [*program(compiler(model), model, torch.arange(6.0, device=device).reshape(2, 3) / 6)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save", "again"])
def test_copies_are_compiled_modules(backend, way):
    model = Net().to(tg.device(backend))
    x = torch.ones(2, 3, device=tg.device(backend))
    run = tg.jit(model, compile="first")
    expected = seen(run, x)
    if way == "deepcopy":
        other = copy.deepcopy(run)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(run))
    elif way == "save":
        file = io.BytesIO()
        torch.save(run, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = tg.jit(run)
    assert type(other) is type(run) and other is not run and type(other._orig_mod) is Net
    assert seen(other, x) == expected
    assert (other._orig_mod is model) is (way == "again")
    with torch.no_grad():
        model.linear.weight.zero_()
    assert (seen(other, x) == expected) is (way != "again")


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules_that_are_something_more(backend):
    device = tg.device(backend)
    x = torch.ones(2, 3, device=device)
    assert len(tg.jit(Sized(nn.ReLU(), nn.ReLU()))) == 2
    with pytest.raises(TypeError, match="Net does not support len"):
        len(tg.jit(Net()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lazy modules, which are young
        lazy = tg.jit(nn.LazyLinear(4).to(device))
    assert lazy(x).shape == (2, 4) and lazy.weight.shape == (4, 3) and lazy(x).shape == (2, 4)
    around = tg.jit(lambda x: run(x) + 1)
    run = tg.jit(Net().to(device))
    assert seen(around, x) == [round(v + 1, 4) for v in seen(run, x)]
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = run.nothing_of_the_kind


def test_hooks_of_all_modules_run_around_the_original_alone():
    model, called = Net().to(tg.device("numpy")), []
    run = tg.jit(model)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: called.append(m))
    try:
        run(torch.ones(2, 3, device=tg.device("numpy")))
    finally:
        handle.remove()
    assert called == [model.linear, model]
