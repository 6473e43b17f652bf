"""Autograd and torch.func on the device: PyTorch's own machinery over our kernels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import tensorgraft as tg

pytestmark = pytest.mark.sampled

X = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.linspace(0.5, 2, 8).reshape(4, 2)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def double_backward(x, w):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((x.sin() * x**2).sum(), x, create_graph=True)
    return torch.autograd.grad((g * w[:, 0]).sum(), x)[0]


def custom_function(x, w):
    x = x.clone().requires_grad_()
    Cube.apply(x).sum().backward()
    return x.grad


def checkpointed(x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    checkpoint(lambda a: torch.tanh(a @ w), x, use_reentrant=False).sum().backward()
    return x.grad, w.grad


def hooks(x, w):
    x = x.clone().requires_grad_()
    seen = []
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
    y.sum().backward()
    return x.grad, y.grad, seen[0]


def per_sample_gradients(x, w):
    model = nn.Linear(4, 2).to(x.device)
    with torch.no_grad():
        model.weight.copy_(w.t())
        model.bias.zero_()
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, row):
        return functional_call(model, p, (row,)).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(parameters, x)["weight"]


PROGRAMS = {
    "double backward": double_backward,
    "autograd.Function": custom_function,
    "checkpoint": checkpointed,
    "hooks": hooks,
    "per-sample gradients": per_sample_gradients,
    "vmap": lambda x, w: vmap(lambda row: torch.softmax(row @ w, 0).max())(x),
    "jvp": lambda x, w: jvp(lambda a: torch.tanh(a @ w), (x,), (torch.ones_like(x),)),
    "vjp": lambda x, w: vjp(lambda a: torch.tanh(a @ w), x)[1](torch.ones(3, 2, device=x.device))[0],
    "jacrev": lambda x, w: jacrev(lambda a: (a @ w).sin())(x),
    "jacfwd": lambda x, w: jacfwd(lambda a: (a @ w).sin())(x),
    "hessian": lambda x, w: hessian(lambda a: (a @ w).sin().sum())(x[0]),
    "functionalize": lambda x, w: torch.func.functionalize(lambda a: a.clone().mul_(2).t()[0])(x),
    "forward mode": lambda x, w: torch.func.jvp(F.gelu, (x,), (x * 2,))[1],
}


@pytest.mark.parametrize("name", tg.backends())
@pytest.mark.parametrize("what", PROGRAMS)
def test_as_on_the_cpu(name, what):
    program = PROGRAMS[what]
    want = program(X, W)
    got = program(X.to(tg.device(name)), W.to(tg.device(name)))
    for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (want, got)), strict=True):
        assert b.device.type == "graft"
        torch.testing.assert_close(b.cpu().detach(), a.detach())


@pytest.mark.parametrize("name", tg.backends())
def test_saved_tensors_notice_writes(name):
    x = torch.ones(3).to(tg.device(name)).requires_grad_()
    y = x * 2
    z = (y**2).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("name", tg.backends())
def test_make_fx_and_fake_tensors(name):
    from torch.fx.experimental.proxy_tensor import make_fx

    device = tg.device(name)
    graph = make_fx(lambda a: (a @ a.t()).relu().sum())(X.to(device))
    torch.testing.assert_close(graph(X.to(device)).cpu(), (X @ X.t()).relu().sum())
    x = X.to(device)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert (fake @ fake.t()).shape == (3, 3)
        assert (fake + 1).device.type == "graft"


@pytest.mark.parametrize("name", tg.backends())
def test_threads(name):
    from concurrent.futures import ThreadPoolExecutor

    def work(k):
        x = torch.full((4,), float(k)).to(tg.device(name)).requires_grad_()
        (x**2).sum().backward()
        return x.grad.tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [[2.0 * k] * 4 for k in range(8)]
