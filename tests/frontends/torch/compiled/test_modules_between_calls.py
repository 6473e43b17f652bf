"""Names and methods in modules change between two calls of a compiled function, with the same values in the same order:
as without `tg.jit`, on every backend."""

import types

import pytest
import torch
import torch.nn.functional as F
from tests.frontends.torch.compiled.without_jit import Cases, full, with_and_without
from torch import nn

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


class Two(nn.Module):
    """A module whose parts `a` and `b` have different roles."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return x * self.a + self.b if isinstance(self.a, nn.Parameter) else self.a(x) + 10 * self.b(x)


def exchanged(model):
    """Exchange the names of `a` and `b`, whose order stays."""
    a, b = model.a, model.b
    del model.a, model.b
    model.b, model.a = a, b


@case
def names_of_parts(device, jit):
    x, out = full(4, device), []
    for make in (lambda k: nn.Hardtanh(-k, k), lambda k: nn.Parameter(torch.full((2,), float(k)))):
        model = Two(make(1), make(3)).to(device)
        run = jit(model)
        out += [run(x), run(x)]
        exchanged(model)
        out += [run(x), run(x)]
    return out


@case
def names_of_buffers(device, jit):
    model, x = nn.Module(), full(1, device)
    model.register_buffer("a", full(2, device))
    run = jit(lambda x: x * (model.a if hasattr(model, "a") else -model.b))
    out = [run(x), run(x)]
    held = model.a
    del model.a
    model.register_buffer("b", held)
    return [*out, run(x), run(x)]


@case
def buffers_that_are_not_saved(device, jit):
    model, x = nn.Module(), full(1, device)
    model.register_buffer("a", full(2, device))
    run = jit(lambda x: x + len(model.state_dict()))
    out = [run(x), run(x)]
    model.register_buffer("a", model.a, persistent=False)
    return [*out, run(x), run(x)]


@case
def keys_that_are_asked_for(device, jit):
    table = nn.ModuleDict({"x": nn.Tanh(), "y": nn.ReLU()})
    layers = nn.ModuleList([nn.Hardtanh(-1, 1), nn.Hardtanh(-2, 2)])
    run = jit(lambda x: table["x"](x) * (2 if "z" in table else 1) + layers[0](x))
    x = full(3, device)
    out = [run(x), run(x)]
    table["z"] = table.pop("y")
    out.append(run(x))
    first, second = layers
    layers._modules.clear()
    layers._modules.update({"1": first, "0": second})
    return [*out, run(x)]


@case
def names_of_parameters(device, jit):
    model, x = nn.Module(), full(3, device)
    model.w = nn.Parameter(full(2, device))
    run = jit(lambda x: sum(x * p if name == "w" else x - p for name, p in model.named_parameters()))
    out = [run(x), run(x)]
    w = model.w
    del model.w
    model.v = w
    return [*out, run(x), run(x)]


def scaled(module, args, *rest):
    """A hook after `forward`, which tells how it is called."""
    return rest[-1] * (3 if len(rest) == 2 else 2)


@case
def the_way_hooks_are_called(device, jit):
    model, x = nn.Tanh(), full(1, device)
    run = jit(model)
    handle = model.register_forward_hook(scaled)
    out = [run(x), run(x)]
    handle.remove()
    handle = model.register_forward_hook(scaled, with_kwargs=True)
    out += [run(x), run(x)]
    handle.remove()
    for with_kwargs in (False, True, False):
        before = (
            model.register_forward_pre_hook(
                lambda module, args, *rest: ((args[0] * (len(rest) + 1),), *rest), with_kwargs=with_kwargs
            )
            if with_kwargs
            else model.register_forward_pre_hook(lambda module, args: (args[0] * 5,))
        )
        out += [run(x), run(x)]
        before.remove()
    return out


@case
def a_hook_that_comes_and_goes(device, jit):
    model, x, out = nn.Tanh(), full(1, device), []
    run = jit(model)
    for _ in range(40):  # more than the programs that a function may have
        handle = model.register_forward_hook(scaled)
        out.append(run(x))
        handle.remove()
    return out[-3:]


@case
def methods_of_modules(device, jit):
    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    model, x = Model(), full(3, device)
    model.register_buffer("b", full(1, device))
    run = jit(lambda x: model(x) + len(list(model.buffers())) + len(list(model.children())))
    out = [run(x), run(x)]
    model.buffers = lambda: [0, 0, 0]
    out += [run(x), run(x)]
    model.children = lambda: [0] * 10
    out.append(run(x))
    del model.buffers
    out.append(run(x))
    model._call_impl = lambda x: x * 100
    out.append(run(x))
    del model._call_impl
    Model._call_impl = lambda self, x: x * 7
    return [*out, run(x), run(x)]


@case
def a_method_that_comes_as_an_attribute_goes(device, jit):
    model, x = nn.Tanh(), full(1, device)
    model.note = "none"
    run = jit(model)
    out = [run(x) for _ in range(3)]
    del model.note
    model.forward = lambda x: x * 7
    out += [run(x), run(x)]
    del model.forward
    model.note = "again"
    return [*out, run(x)]


@case
def functions_that_layers_hold(device, jit):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    x = torch.linspace(-1, 1, 8).reshape(1, 2, 4)
    layer, x = layer.to(device), x.to(device)
    run = jit(layer)
    out = [run(x), run(x)]
    for layer.activation in (F.gelu, F.relu, torch.sin):
        out += [run(x), run(x)]
    return [torch.round(y.detach() * 100) for y in out]


@case
def classes_that_are_only_asked_for(device, jit):
    class Fast:
        pass

    class Slow:
        pass

    held, x = types.SimpleNamespace(of=Fast()), full(1, device)
    thing = held.of
    run = jit(lambda x: x * (2 if isinstance(thing, Fast) else 7))
    out = [run(x), run(x)]
    thing.__class__ = Slow
    return [*out, run(x), run(x)]


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend):
    given, judge = with_and_without(CASES[name], backend)
    assert given == judge
