"""What changes around a compiled function between two calls counts, as without `tg.jit`."""

import types

import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, number
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
case = Cases()


@case
def attributes_of_classes_and_modules(device, jit):
    class Config:
        scale = 2.0

    config = types.ModuleType("config")
    config.scale = 2.0
    f, out = jit(lambda x: x * Config.scale * config.scale), []
    for scale in (2.0, 3.0, 5.0):
        Config.scale, config.scale = scale, scale + 1
        out.append(f(full(1, device)))
    return out


@case
def attribute_that_was_absent(device, jit):
    class Config:
        pass

    config = Config()
    f = jit(lambda x, c: x + 7 if getattr(c, "more", False) else x + 5)
    out = [f(full(1, device), config)]
    config.more = True
    out.append(f(full(1, device), config))
    del config.more
    return [*out, f(full(1, device), config)]


@case
def methods_that_are_replaced(device, jit):
    class Net(nn.Module):
        def helper(self, x):
            return x * 2

        def forward(self, x):
            return self.helper(x)

    net = Net()
    f = jit(net)
    out = [f(full(1, device))]
    Net.helper = lambda self, x: x * 5
    out.append(f(full(1, device)))
    net.helper = lambda x: x * 7
    out.append(f(full(1, device)))
    return out


SCALE, COUNTED = 2.0, []


class Counter:
    n = 0


@case
def globals_of_methods(device, jit):
    global SCALE

    class Net(nn.Module):
        @property
        def twice(self):
            return SCALE * 2

        def forward(self, x):
            Counter.n += 1
            COUNTED.append(1)
            return x * SCALE + self.twice

    Counter.n, SCALE = 0, 2.0
    COUNTED.clear()
    f, out = jit(Net()), []
    for scale in (2.0, 3.0, 3.0, 5.0):
        SCALE = scale
        out += [f(full(1, device)), number(Counter.n), number(len(COUNTED))]
    return out


@case
def forward_that_is_replaced(device, jit):
    net = nn.Linear(2, 2).to(device)
    f = jit(lambda x: net(x))
    out = [f(full(1, device))]
    net.forward = lambda x: x * 2
    return [*out, f(full(1, device))]


@case
def hook_of_all_modules(device, jit):
    net = nn.Linear(2, 2).to(device)
    f = jit(lambda x: net(x))
    out = [f(full(1, device))]
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 3)
    try:
        out.append(f(full(1, device)))
    finally:
        handle.remove()
    return [*out, f(full(1, device))]


@case
def captured_tensors_that_look_elsewhere(device, jit):
    c = torch.arange(6.0).reshape(2, 3).to(device)
    f = jit(lambda: c.sum(0))
    out = [f()]
    c.t_()
    out.append(f())
    c.data = torch.ones(4, 2).to(device)
    out.append(f())
    c.resize_(2, 2)
    out.append(f())
    c.set_(torch.ones(3, 4).to(device))
    out.append(f())
    torch.utils.swap_tensors(c, torch.zeros(5, 2).to(device))
    return [*out, f()]


@case
def captured_tensors_that_are_arguments(device, jit):
    w = full(1, device)
    f = jit(lambda x: x + w * 10)
    out = [f(w), f(full(0, device)), f(w)]
    v = full(1, device)
    g = jit(lambda x: x.add_(1) + v)
    return [*out, g(full(0, device)), g(v), v.clone(), g(full(0, device))]


@case
def requires_grad_of_captured_tensors(device, jit):
    w = full(2, device).requires_grad_()
    f, out = jit(lambda x: x * w), []
    for required in (True, False, True):
        w.requires_grad_(required)
        out.append(number(f(full(1, device)).requires_grad))
    return out


@pytest.mark.parametrize("check", ["never", "second"])
@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", case.functions)
def test_as_without_jit(name, backend, check):
    case.compare(name, backend, check)
