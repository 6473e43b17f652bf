"""Parts that a program replaces as a whole between two calls of a compiled function (tables of modules, classes of
objects), and attributes that it finds by names that it computes: as without `tg.jit`, on every backend."""

import collections
import copy
import decimal
import enum
import inspect
import logging
import mmap
import threading
import types
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, with_and_without
from torch import nn

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")]
case = Cases()
CASES = case.functions


def results(run, x, *changes):
    """Return the results of calls before, and after each of the changes."""
    out = [run(x), run(x)]
    for change in changes:
        change()
        out += [run(x), run(x)]
    return out


# ---- modules and optimizers ------------------------------------------------------------------------------------------


@case
def tables_of_modules(device, jit):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).to(device)
    other = nn.Linear(2, 2).to(device)

    def reverse():
        net._modules = {str(k): part for k, part in enumerate(reversed(net._modules.values()))}

    def hook():
        net._forward_hooks = collections.OrderedDict({0: lambda module, given, out: out * 2})

    def unhook():
        net._forward_hooks = collections.OrderedDict()

    def double():
        linear = net._modules["1"]
        linear._parameters = {name: nn.Parameter(p.detach() * 2) for name, p in linear._parameters.items()}

    def update():
        net._modules["1"].__dict__.update(other.__dict__)

    return results(jit(net), full(1, device), reverse, hook, unhook, double, update)


@case
def attributes_of_modules_as_a_whole(device, jit):
    torch.manual_seed(0)
    layer, other, last = (nn.Linear(2, 2).to(device) for _ in range(3))

    def restore():
        layer.__setstate__(copy.deepcopy(other).__dict__)

    def share():
        layer.__dict__ = last.__dict__

    return results(jit(lambda x: layer(x)), full(1, device), restore, share)


@case
def statistics_of_one_element(device, jit):
    layer = nn.BatchNorm1d(1).to(device)
    run, x = jit(layer), torch.arange(4.0).reshape(4, 1).to(device)
    out = [run(x), run(x)]
    layer._buffers = {name: buffer.clone() for name, buffer in layer._buffers.items()}
    return [*out, run(x), run(x), layer.running_mean, layer.num_batches_tracked]


@case
def methods_of_layers(device, jit):
    torch.manual_seed(0)
    layer, before = nn.Conv1d(2, 2, 1).to(device), nn.Conv1d._conv_forward
    run, x = jit(lambda x: layer(x[None])), torch.ones(2, 2).to(device)
    out = [run(x)]
    nn.Conv1d._conv_forward = lambda self, given, weight, bias: given * 2
    try:
        return [*out, run(x)]
    finally:
        nn.Conv1d._conv_forward = before


@case
def class_of_an_optimizer(device, jit):
    class Signs(torch.optim.SGD):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.data.sub_(p.grad.sign())

    w = full(1, device).requires_grad_()
    optimizer = torch.optim.SGD([w], 0.1)

    @jit
    def step(x):
        optimizer.zero_grad()
        (w * x).square().sum().backward()
        optimizer.step()

    for kind in (torch.optim.SGD, torch.optim.SGD, Signs, Signs):
        optimizer.__class__ = kind
        step(full(2, device))
    return w


@case
def class_of_a_tensor(device, jit):
    class Doubling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            out = super().__torch_function__(function, types, args, kwargs or {})
            return out * 2 if function is torch.add else out

    kept = full(3, device)
    run = jit(lambda x: torch.add(kept, x).as_subclass(torch.Tensor))
    return results(run, full(1, device), lambda: setattr(kept, "__class__", Doubling))


@case
def class_of_a_callable(device, jit):
    class Once:
        def __call__(self, x):
            return x

        def __len__(self):
            return 1

    class Twice(Once):
        def __call__(self, x):
            return x * 2

        def __len__(self):
            return 2

    called, measured = Once(), Once()
    changes = (lambda: setattr(called, "__class__", Twice), lambda: setattr(measured, "__class__", Twice))
    return [
        *results(jit(called), full(1, device), changes[0]),
        *results(jit(lambda x: x * len(measured)), full(1, device), changes[1]),
    ]


@case
def constructors(device, jit):
    class Scaled:
        def __init__(self, x):
            self.value = x * 2

    def init(self, x):
        self.value = x * 5

    make = jit(Scaled)
    return results(lambda x: make(x).value, full(1, device), lambda: setattr(Scaled, "__init__", init))


# ---- names that are computed -----------------------------------------------------------------------------------------


@case
def attributes_of_classes_and_python_modules(device, jit):
    class Rates:
        rate_a = 1.0

        @classmethod
        def of(cls, stage):
            return getattr(cls, "rate_" + stage) * (3.0 if hasattr(cls, stage + "_tripled") else 1.0)

    settings = types.ModuleType("settings_of_a_program")
    settings.rate_a, settings.options_a = 1.0, [1.0]

    def run(x, stage="a"):
        return x * Rates.of(stage) * getattr(settings, f"rate_{stage}") * getattr(settings, f"options_{stage}")[0]

    changes = (
        lambda: setattr(Rates, "rate_a", 2.0),
        lambda: setattr(Rates, "a_tripled", True),
        lambda: setattr(settings, "rate_a", 5.0),
        lambda: settings.options_a.__setitem__(0, 7.0),
    )
    return results(jit(run), full(1, device), *changes)


@case
def attributes_that_are_set_by_computed_names(device, jit):
    class Counts:
        calls_a = 0

    @jit
    def run(x, stage="a"):
        setattr(Counts, "calls_" + stage, getattr(Counts, "calls_" + stage) + 1)
        return x * getattr(Counts, "calls_" + stage)

    return [*(run(full(1, device)) for _ in range(4)), Counts.calls_a]


@case
def all_attributes_of_classes_and_python_modules(device, jit):
    class Rates:
        a, b = 1.0, 2.0

    settings = types.ModuleType("settings_of_a_program")
    settings.a = 3.0

    def total(entries):
        return sum(value for _, value in entries if isinstance(value, float))

    runs = [
        jit(lambda x: x * total(vars(Rates).items())),
        jit(lambda x: x * total(Rates.__dict__.items())),
        jit(lambda x: x * total(inspect.getmembers(Rates))),
        jit(lambda x: x * total(vars(settings).items())),
    ]
    out = [run(full(1, device)) for run in runs]
    Rates.a = settings.a = 5.0
    out += [run(full(1, device)) for run in runs]
    Rates.c = settings.c = 7.0
    return out + [run(full(1, device)) for run in runs]


@case
def members_found_by_value(device, jit):
    class Kind(enum.StrEnum):
        A = "a"

    Kind.A.scale = 2.0
    key = ["a"]
    return results(jit(lambda x: x * Kind(key[0]).scale), full(1, device), lambda: setattr(Kind.A, "scale", 3.0))


@case
def names_and_annotations(device, jit):
    class Kind:
        pass

    def named(x: 1.0) -> None:
        """2"""

    table = {"named": 1.0, "Kind": 2.0, "other": 3.0}

    def run(x):
        scale = table[named.__name__] * table[type(kind).__name__] * float(named.__doc__)
        return x * scale * named.__annotations__["x"]

    kind = Kind()
    changes = (
        lambda: setattr(named, "__name__", "other"),
        lambda: setattr(Kind, "__name__", "other"),
        lambda: setattr(named, "__doc__", "5"),
        lambda: named.__annotations__.update(x=7.0),
    )
    return results(jit(run), full(1, device), *changes)


# ---- objects of libraries --------------------------------------------------------------------------------------------


@case
def objects_of_numpy(device, jit):
    class Marked(np.ndarray):
        pass

    polynomial, factor, marked = np.poly1d([1.0, 2.0]), [2.0], np.ones(1).view(Marked)
    vectorized, universal = np.vectorize(lambda a: a * factor[0]), np.frompyfunc(lambda a: a + factor[0], 1, 1)
    marked.scale = 1.0

    def run(x):
        return x * float(polynomial(2.0)) * float(vectorized(1.0)) * float(universal(1.0)) * marked.scale

    changes = (
        lambda: polynomial.coeffs.__setitem__(1, 5.0),
        lambda: factor.__setitem__(0, 3.0),
        lambda: setattr(vectorized, "pyfunc", lambda a: a * 7),
        lambda: setattr(marked, "scale", 4.0),
    )
    return results(jit(run), full(1, device), *changes)


@case
def data_sets(device, jit):
    data = torch.utils.data.TensorDataset(full(2, device))
    part = torch.utils.data.Subset(data, [0])
    changes = lambda: setattr(data, "tensors", (full(5, device),)), lambda: setattr(part, "indices", [1])
    return results(jit(lambda x: x * part[0][0]), full(1, device), *changes)


@case
def settings_of_the_standard_library(device, jit):
    variable, log, lock, memory = (
        ContextVar("v"),
        logging.getLogger("tensorgraft.tests.replaced"),
        threading.Lock(),
        mmap.mmap(-1, 1),
    )
    memory[0] = 1

    def run(x):
        scale = 2.0 if variable.get(1.0) is None else 1.0
        scale *= len(log.handlers) + 1 + log.level
        scale *= 3.0 if lock.locked() else 1.0
        return x * scale * memory[0] * float(decimal.Decimal(1) / decimal.Decimal(3))

    handler, before = logging.NullHandler(), decimal.getcontext().prec
    changes = (
        lambda: variable.set(None),
        lambda: log.addHandler(handler),
        lock.acquire,
        lambda: memory.__setitem__(0, 3),
        lambda: setattr(decimal.getcontext(), "prec", 2),
    )
    try:
        return results(jit(run), full(1, device), *changes)
    finally:
        decimal.getcontext().prec = before
        log.removeHandler(handler)


@case
def names_of_threads(device, jit):
    run = jit(lambda x: x * (1.0 if threading.current_thread().name == "MainThread" else 2.0))
    thread, before = threading.current_thread(), threading.current_thread().name
    try:
        return results(run, full(1, device), lambda: setattr(thread, "name", "other"))
    finally:
        thread.name = before


@case
def exceptions_and_generators(device, jit):
    error, generator = ValueError(2.0), torch.Generator().manual_seed(3)
    run = jit(lambda x: x * error.args[0] * generator.initial_seed())
    return results(run, full(1, device), lambda: setattr(error, "args", (5.0,)), lambda: generator.manual_seed(7))


# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", CASES)
def test_as_without_it(name, backend):
    given, judge = with_and_without(CASES[name], backend)
    assert given == judge
