"""What libraries hold for a program changes between two calls of a compiled function: functions that they call back,
registries, replaced functions, abstract classes, copies. As without `tg.jit`, on every backend."""

import abc
import builtins
import copy
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.frontends.torch.compiled.without_jit import Cases, full, with_and_without
from torch import nn
from torch.nn.utils import parametrize

import tensorgraft as tg
from tensorgraft.compiled import packages

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


def layer(device):
    made = nn.Linear(2, 2, bias=False)
    made.weight.data.fill_(1.0)
    return made.to(device)


# ---- functions that are called back ----------------------------------------------------------------------------------


@case
def functions_that_modules_of_a_framework_call(device, jit, monkeypatch):
    held, x, out = types.SimpleNamespace(k=0.5), full(1, device), []
    model, source = layer(device), layer(device)
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, p, n: a * held.k + p * (1 - held.k))
    loss = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: ((a - b) ** 2).sum(-1) * held.k)
    update, run = jit(lambda: average.update_parameters(source)), jit(lambda x: loss(x, x + 1, x - 2))
    for held.k in (0.5, 0.5, 0.25):
        with torch.no_grad():
            source.weight.add_(1)
        update()
        out += [average.module.weight.clone(), average.n_averaged.clone(), run(x)]
    return out


@case
def implementations_of_operators(device, jit, monkeypatch):
    held = types.SimpleNamespace(k=2.0)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * held.k

    name = f"tensorgraft_tests::scaled_{id(held)}"
    scaled = torch.library.custom_op(name, scaled, mutates_args=())
    scaled.register_fake(torch.empty_like)
    run, x = jit(lambda x: scaled(x) + 1), full(1, device)
    out = [run(x)]
    held.k = 5.0
    return [*out, run(x)]


@case
def hooks_of_state_dictionaries(device, jit, monkeypatch):
    model = layer(device)
    run = jit(lambda: [*model.state_dict().values()])
    out = [run()]
    model.register_state_dict_post_hook(lambda m, state, *_: state.update(double=m.weight.detach() * 2))
    out.append(run())
    with torch.no_grad():
        model.weight.add_(1)
    return [*out, run()]


@case
def parametrizations_that_are_cached(device, jit, monkeypatch):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w + w.T

    model, x = layer(device), full(1, device)
    parametrize.register_parametrization(model, "weight", Symmetric())
    run = jit(model)
    out = [run(x)]
    with torch.no_grad(), parametrize.cached():
        for _ in range(2):
            out.append(run(x))
            model.parametrizations.weight.original.add_(1)
    return [*out, run(x)]


# ---- packages --------------------------------------------------------------------------------------------------------


def package(monkeypatch):
    """A module that counts as one of a package."""
    source = (
        "import torch\nimport torch.nn.functional as F\nREGISTRY, SCALE, calls = {}, 2.0, []\n"
        "class Settings:\n    on = False\n"
        "def helper(x):\n    return x + 1\n"
        "def applied(x):\n    calls.append(1)\n    y = helper(x) * SCALE\n    y = -y if Settings.on else y\n"
        "    return REGISTRY['f'](y) if 'f' in REGISTRY else F.relu(y)\n"
        "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.gain = 1.0\n"
        "    def forward(self, x):\n        return applied(x) * self.gain\n"
    )
    file = packages._SITE[0] + "tensorgraft_tests_package/__init__.py"
    made = types.ModuleType("tensorgraft_tests_package")
    made.__file__ = file
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(source, file, "exec"), vars(made))
    return made


def changes_of_a_package(made, run, x):
    held = types.SimpleNamespace(k=3.0)
    out = [run(x)]
    made.SCALE = 4.0
    out.append(run(x))
    made.helper = lambda x: x - 5
    out.append(run(x))
    made.Settings.on = True
    out.append(run(x))
    made.REGISTRY["f"] = lambda x: x * held.k
    out.append(run(x))
    held.k = 7.0
    out.append(run(x))
    made.REGISTRY["f"] = torch.neg
    return [*out, run(x), len(made.calls)]


@case
def functions_of_a_package(device, jit, monkeypatch):
    made = package(monkeypatch)
    run, x = jit(lambda x: made.applied(x)), full(1, device)
    return changes_of_a_package(made, run, x)[:-1]


@case
def modules_of_a_package(device, jit, monkeypatch):
    made = package(monkeypatch)
    model, x = made.Layer(), full(1, device)
    run = jit(model)
    out = changes_of_a_package(made, run, x)[:-1]
    model.gain = 2.0
    out.append(run(x))
    made.Layer.forward = lambda self, x: x
    return [*out, run(x)]


@case
def wrappers_of_a_package_that_write(device, jit, monkeypatch):
    made = package(monkeypatch)
    source = "def wrapped(self, update):\n    def call(x):\n        self.computed = None\n        update(x)\n"
    source += "    return call\n"
    exec(compile(source, made.__file__, "exec"), vars(made))

    class Metric:
        def __init__(self):
            self.computed, self.total = None, full(0, device)
            self.update = made.wrapped(self, self.update)

        def update(self, x):
            self.total = self.total + x

        def compute(self):
            if self.computed is None:
                self.computed = self.total * 1
            return self.computed

    metric, out = Metric(), []
    run = jit(metric.update)
    for k in range(4):
        run(full(k, device))
        out.append(metric.compute())
    return out


@case
def functions_that_layers_call(device, jit, monkeypatch):
    model, x = nn.Sequential(nn.GELU(), nn.Tanh()), full(1, device)
    run = jit(model)
    out = [run(x)]
    with monkeypatch.context() as patch:
        patch.setattr(F, "gelu", lambda x, approximate="none": x * 5)
        out.append(run(x))
        patch.setattr(torch, "tanh", lambda x: x * 7)
        out.append(run(x))
    return [*out, run(x)]


# ---- Python ----------------------------------------------------------------------------------------------------------


@case
def special_methods_that_come(device, jit, monkeypatch):
    class Model(nn.Module):
        def forward(self, x):
            return x

    class Thing:
        pass

    model, thing, x = Model(), Thing(), full(1, device)
    run, ask = jit(lambda x: model(x)), jit(lambda x: x * getattr(thing, "gain", 1.0) + (2 if thing else 0))
    out = [run(x), ask(x)]
    Thing.__getattr__ = lambda self, name: 5.0
    Model.__call__ = lambda self, x: x + 100
    out += [run(x), ask(x)]
    Thing.__bool__ = lambda self: False
    return [*out, ask(x)]


@case
def classes_that_are_registered(device, jit, monkeypatch):
    class Scales(abc.ABC):  # noqa: B024
        pass

    class Thing:
        pass

    thing, x = Thing(), full(1, device)
    run = jit(lambda x: x * 2 if isinstance(thing, Scales) else x)
    out = [run(x)]
    Scales.register(Thing)
    return [*out, run(x), run(x)]


@case
def built_in_functions(device, jit, monkeypatch):
    run, x = jit(lambda x: x * max(1.0, 2.0)), full(1, device)
    out = [run(x)]
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "max", lambda *_: 30.0)
        out.append(run(x))
    return [*out, run(x)]


@case
def entries_of_objects_before_descriptors(device, jit, monkeypatch):
    held = types.SimpleNamespace(k=2.0)

    class Computed:
        def __get__(self, instance, owner):
            return held.k

    class Thing:
        gain = Computed()

    thing, x = Thing(), full(1, device)
    run = jit(lambda x: x * thing.gain)
    out = [run(x)]
    vars(thing)["gain"] = 10.0
    out.append(run(x))
    del vars(thing)["gain"]
    return [*out, run(x)]


@case
def annotations_of_a_class(device, jit, monkeypatch):
    class Thing:
        a: int

    run, x = jit(lambda x: x * len(Thing.__annotations__)), full(1, device)
    out = [run(x)]
    Thing.__annotations__["b"] = int
    return [*out, run(x)]


@case
def copies_made_inside(device, jit, monkeypatch):
    class Thing:
        def __init__(self):
            self.gains = [1.0]

    thing, x = Thing(), full(1, device)
    run = jit(lambda x: x * copy.deepcopy(thing).gains[0])
    out = [run(x)]
    thing.gains[0] = 4.0
    out.append(run(x))
    thing.gains = [9.0]
    return [*out, run(x)]


@case
def masks_of_arrays(device, jit, monkeypatch):
    gains = np.ma.array([1.0, 2.0], mask=[False, True])

    def masked(x):
        gains.mask = [True, False]
        return x * float(gains.sum())

    run, given, x = jit(lambda x: x * float(gains.sum())), jit(lambda x, a: x * float(a.sum())), full(1, device)
    out = [run(x), given(x, gains)]
    gains.mask = [False, False]
    return [*out, run(x), given(x, gains), jit(masked)(x), run(x)]


@case
def objects_that_are_not_copied_whole(device, jit, monkeypatch):
    class Result:
        def __init__(self, x):
            self.x, self.cache = x, {"double": x * 2}

        def __getstate__(self):
            return {"x": self.x}

    run, out = jit(Result), []
    for k in range(3):
        result = run(full(k, device))
        out += [result.x, result.cache["double"]]
    normal = torch.distributions.LogNormal(full(0, device), full(1, device))
    density = jit(lambda x: normal.log_prob(x))
    return [*out, *(density(full(k, device)) for k in (1, 2, 1))]


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend, monkeypatch):
    given, judge = with_and_without(CASES[name], backend, monkeypatch)
    assert given == judge
