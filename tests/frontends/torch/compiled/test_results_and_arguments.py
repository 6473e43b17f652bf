"""Results and arguments of a compiled function that are objects, as without `tg.jit`."""

import dataclasses
import functools
import types

import numpy as np
import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, number
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
case = Cases()


@dataclasses.dataclass
class Result:
    y: torch.Tensor
    rest: list = dataclasses.field(default_factory=list)


class Holder:
    __slots__ = ("a", "parts")

    def __init__(self, a):
        self.a, self.parts = a, {"twice": a * 2, "name": "holder"}


class Table(dict):
    pass


@case
def objects_as_results(device, jit):
    w = torch.ones(2).to(device).requires_grad_()
    f = jit(lambda x: (Result(x * w, [x + 1]), Holder(x), Table(y=x * 2), types.SimpleNamespace(z=[x * 4])))
    first, second = f(full(1, device)), f(full(2, device))
    out = []
    for result, holder, table, space in (first, second):
        out += [result.y, result.rest[0], holder.a, holder.parts["twice"], table["y"], space.z[0]]
        out.append(number(type(result) is Result and type(table) is Table))
    second[0].y.sum().backward()
    return [*out, w.grad.clone(), number(first[1].parts is not second[1].parts)]


@case
def distributions_as_results(device, jit):
    f = jit(lambda x: torch.distributions.Normal(x, x.abs() + 1))
    results = [f(full(i, device)) for i in range(3)]
    return [r.mean for r in results] + [r.scale for r in results]


@case
def objects_as_arguments(device, jit):
    class Batch:
        def __init__(self, x):
            self.x, self.seen = x, 0

    def f(batch):
        batch.seen += 1
        batch.y = batch.x * 2
        return batch.y + 1

    f, out = jit(f), []
    for i in range(4):
        batch = Batch(full(i, device))
        out += [f(batch), batch.y, number(batch.seen)]
    g = jit(lambda r, t, a: r.y * t["x"] + torch.as_tensor(a).to(device))
    for i in range(3):
        out.append(g(Result(full(i, device)), Table(x=full(2, device)), np.full(2, float(i), np.float32)))
    return out


@case
def partial_functions_as_arguments(device, jit):
    y = full(3, device)
    f = jit(lambda f, g, x: f(x) * g(x))
    return [f(functools.partial(torch.mul, y), functools.partial(torch.add, y), full(i, device)) for i in range(3)]


@case
def sizes_as_results(device, jit):
    f = jit(lambda x: (x.size() + x.size(), x * 2))
    (size, y), _ = f(full(1, device)), f(full(1, device))
    return [number(type(size) is torch.Size), y]


@case
def lazy_modules(device, jit):
    net = nn.LazyLinear(3).to(device)
    f = jit(lambda x: net(x))
    return [number(f(torch.ones(2, 4).to(device)).shape[1]) for _ in range(3)]


@case
def exception_of_the_program(device, jit):
    s = torch.zeros(2).to(device)

    def f(x, bad):
        s.add_(1)
        if bad:
            raise ValueError("no")
        return s + x

    f = jit(f)
    out = [f(full(0, device), False)]
    with pytest.raises(ValueError, match="no"):
        f(full(0, device), True)
    return [*out, f(full(0, device), False), s]


@case
def keys_that_are_tensors(device, jit):
    keys = [full(1, device), full(1, device)]
    one, two, mixed = (jit(lambda table, k: table[k] * 2) for _ in range(3))
    out = []
    for k in (0, 1, 0):
        key, other = keys[k], keys[1 - k]
        out += [one({key: full(k, device)}, key), two({key: full(k, device), other: full(5, device)}, key)]
        out.append(mixed({3: full(4, device), key: full(6, device)}, key))
    with pytest.raises(KeyError):
        one({keys[0]: full(1, device)}, keys[1])
    return out


@case
def slices_as_arguments(device, jit):
    x = torch.arange(6.0).to(device)
    f = jit(lambda x, part, more: x[part] * len(more[part]))
    return [f(x, slice(*bounds), [1, 2, 3]) for bounds in ((0, 2), (1, None), (0, 2), (None, None, 2), (0, 2.0 > 1))]


@case
def results_that_are_remembered(device, jit):
    @functools.lru_cache
    def scaled(x, n):
        return x * n

    class Net:
        @functools.lru_cache  # noqa: B019
        def tripled(self, x):
            return x * 3

        def __call__(self, x):
            return self.tripled(x)

    net, x, y = Net(), full(1, device), full(2, device)
    out = [scaled(x, 2) * 1]
    for f in (jit(lambda x: scaled(x, 2) + 1), jit(lambda x: net(x) + 1)):
        out += [f(x), f(y)]
        x.add_(1)
        out += [f(x), f(y)]
    return out


@functools.lru_cache
def ranged(n, device):
    return torch.arange(n).to(device) * 2.0


@case
def sizes_whose_results_are_remembered(device, jit):
    ranged.cache_clear()
    f = jit(lambda x: x + ranged(2, device))
    return [f(full(1, device)), f(full(2, device)), ranged(2, device)]


@case
def generators(device, jit):
    def steps(x):
        for k in range(3):
            yield x * k

    f = jit(steps)
    return [*f(full(1, device)), *f(full(2, device))]


@case
def settings_that_a_call_changes(device, jit):
    seen = []

    def f(x):
        seen.append(float(torch.are_deterministic_algorithms_enabled()))
        torch.use_deterministic_algorithms(False)
        return x + 1

    f, out = jit(f), []
    try:
        for _ in range(2):
            torch.use_deterministic_algorithms(True)
            out += [f(full(1, device)), number(torch.are_deterministic_algorithms_enabled())]
    finally:
        torch.use_deterministic_algorithms(False)
    return [*out, torch.tensor(seen)]


@case
def functions_that_write_variables_outside(device, jit):
    total = None

    def make(a, b):
        def add(k=2.0):
            nonlocal total
            total = b * k if total is None else total + b * k
            return a + b

        return add

    f, out = jit(make), []
    for k in (1, 2):
        add = f(full(k, device), full(10 * k, device))
        out += [add(), total, add(3.0), total]
    return out


@case
def functions_that_share_a_variable(device, jit):
    def make(x):
        total = x * 0

        def add(by=x * 2, *, of=x):
            nonlocal total
            total = total + by * of

        return add, lambda: total

    f, out = jit(make), []
    for k in (1, 2):
        add, get = f(full(k, device))
        add()
        add(full(5, device))
        out.append(get())
    return out


@case
def seeds(device, jit):
    def draw(x):
        torch.manual_seed(3)
        return x + torch.rand(4, device=device)

    f = jit(draw)
    x = full(0, device).repeat(2)
    first = f(x)
    after = torch.rand(4, device=device)
    return [first - f(x), after - torch.rand(4, device=device), f(x) - first]


@pytest.mark.parametrize("check", ["never", "second"])
@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", case.functions)
def test_as_without_jit(name, backend, check):
    case.compare(name, backend, check)


def test_objects_that_cannot_be_copied_are_refused_at_the_first_call():
    class Single:
        def __init__(self, x):
            self.x = x

        def __deepcopy__(self, memo):
            raise TypeError("there is one of it")

    x = torch.ones(2, device=tg.device("jax"))
    with pytest.raises(tg.TracedValueError, match="that cannot be copied"):
        tg.jit(lambda x: Single(x * 2))(x)
