"""Histories of arguments, hooks and gradients in a compiled function, as without `tg.jit`."""

import pytest
import torch
from tests.frontends.torch.compiled.without_jit import Cases, full, number
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled
case = Cases()


# ---- histories and hooks ---------------------------------------------------------------------------------------------


@case
def argument_with_history_written(device, jit):
    leaf = full(1, device).requires_grad_()
    x = leaf * 2
    out = jit(lambda x: x.mul_(3))(x)
    x.sum().backward()
    return [leaf.grad, x, number(out is x)]


@case
def gradients_behind_an_argument(device, jit):
    leaf = full(1, device).requires_grad_()
    f = jit(lambda x: torch.autograd.grad((x + leaf).sum(), leaf)[0] + x.detach())
    return [f(leaf * 2), f(leaf * 3)]


@case
def backward_behind_an_argument(device, jit):
    leaf = full(1, device).requires_grad_()
    f = jit(lambda x: x.sum().backward())
    f(leaf * 2)
    f(leaf * 3)
    return [leaf.grad]


@case
def hook_that_stays(device, jit):
    leaf = full(1, device).requires_grad_()

    def f(x):
        leaf.register_hook(lambda g: g * 2)
        (leaf * x).sum().backward()

    f = jit(f)
    for _ in range(3):
        f(full(1, device))
    return [leaf.grad]


@case
def hook_that_is_removed(device, jit):
    leaf = full(1, device).requires_grad_()

    def f(x):
        handle = leaf.register_hook(lambda g: g * 2)
        (leaf * x).sum().backward()
        handle.remove()

    f = jit(f)
    for _ in range(3):
        f(full(1, device))
    return [leaf.grad]


@case
def backward_twice_where_nothing_is_saved(device, jit):
    leaf = full(1, device).requires_grad_()
    total = jit(lambda x: (x + 2).sum())(leaf)
    total.backward()
    total.backward()
    return [leaf.grad]


@case
def requires_grad_that_is_only_asked_for(device, jit):
    t, x = full(1, device), full(1, device)
    f = jit(lambda x: x * 1.0 - (t.requires_grad * 1.0))
    before = f(x)
    t.requires_grad_()
    return [before, f(x)]


@case
def requires_grad_of_a_parameter_in_a_list(device, jit):
    held, x = [nn.Parameter(full(1, device))], full(1, device)
    f = jit(lambda x: (x * held[0]).sum())
    before = f(x).requires_grad
    held[0].requires_grad_(False)
    return [number(before), number(f(x).requires_grad)]


@case
def a_leaf_that_needs_no_gradient_any_more(device, jit):
    a, b = (full(k, device).requires_grad_() for k in (2, 3))
    f = jit(lambda x: x * a * b)
    gradients = []
    for _ in range(2):
        a.requires_grad_()
        y = f(full(1, device))
        a.requires_grad_(False)
        y.sum().backward()
        gradients += [number(a.grad is None), b.grad.clone()]
    return gradients


# ---- gradients -------------------------------------------------------------------------------------------------------


@case
def optimizers_compiled_by_themselves(device, jit):
    w = torch.ones(3).to(device).requires_grad_()
    optimizer = torch.optim.Adam([w], 0.1)
    step, clip = jit(lambda: optimizer.step()), jit(lambda: nn.utils.clip_grad_norm_([w], 1.0))
    clear, out = jit(lambda: optimizer.zero_grad()), []
    for i in range(4):
        (w * (i + 1.0)).sum().backward()
        clip()
        step()
        out += [w.grad.clone(), w.detach().clone()]
        clear()
        out.append(number(w.grad is None))
    return out


@case
def accumulated_gradients(device, jit):
    w = torch.ones(3).to(device).requires_grad_()
    optimizer = torch.optim.SGD([w], 0.01)

    def micro(x, last):
        loss = (w * x).pow(2).sum()
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    f = jit(micro)
    return [f(torch.arange(3.0).to(device) + i, i % 2 == 0) for i in range(1, 7)]


@case
def gradients_that_are_set(device, jit):
    w = torch.ones(2).to(device).requires_grad_()

    def f(x):
        before = torch.zeros_like(w) if w.grad is None else w.grad * 2
        w.grad = x * 3
        return before

    f, out = jit(f), []
    for i in range(3):
        out += [f(full(i, device)), w.grad.clone()]
    w.grad = None
    return [*out, f(full(5, device)), w.grad.clone()]


@pytest.mark.parametrize("check", ["never", "second"])
@pytest.mark.parametrize("backend", tg.backends())
@pytest.mark.parametrize("name", case.functions)
def test_as_without_jit(name, backend, check):
    case.compare(name, backend, check)
