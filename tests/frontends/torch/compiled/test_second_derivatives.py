"""Derivatives of derivatives: through compiled functions from outside, inside of them, and through control flow."""

import copy

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan
from torch.func import functional_call

import tensorgraft as tg

pytestmark = pytest.mark.sampled

PLACES = ["inside", "outside"]  # of the compiled function


def close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-8, atol=1e-10)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def branch(net, x):
    return torch.cond(
        x.sum() < 99, lambda x, y: (net(x).tanh() * y).sum(), lambda x, y: (x.exp() * y).sum(), (x, x * 2)
    )


def loop(net, x):
    def combine(carry, row):
        after = (net(row) * carry[0]).tanh() + row
        return (after, carry[1] + 1), after.sin()

    (last, n), rows = scan(combine, (x[0] * 0.1, torch.zeros((), dtype=torch.int64, device=x.device)), x)
    return rows.square().sum() + last.sum() * n


def unrolled(net, x):
    carry, rows = x[0] * 0.1, []
    for row in x:
        carry = (net(row) * carry).tanh() + row
        rows.append(carry.sin())
    return torch.stack(rows).square().sum() + carry.sum() * len(x)


FUNCTIONS = {
    "network": (network, lambda net, x: net(x).square().sum(), None),
    "cond": (network, branch, lambda net, x: (net(x).tanh() * (x * 2)).sum()),
    "scan": (network, loop, unrolled),
    "associative scan": (
        network,
        lambda net, x: associative_scan(torch.mul, net(x), 0, combine_mode="generic").square().sum(),
        lambda net, x: net(x).cumprod(0).square().sum(),
    ),
    "lstm": (lambda: nn.LSTM(3, 4).double(), lambda net, x: net(x.repeat(2, 1)[:, None])[0].square().sum(), None),
}


def of_second_order(fn, net, x, place):
    """A value, its gradient, and the gradient of a function of that."""

    def everything(x):
        ends = [x, *net.parameters()]
        value = (tg.jit(lambda x: fn(net, x)) if place == "outside" else lambda x: fn(net, x))(x)
        first = torch.autograd.grad(value, ends, create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(sum(t.sin().sum() for t in first), ends, materialize_grads=True)
        return [t.detach() for t in (value, *first, *second)]

    return (tg.jit(everything) if place == "inside" else everything)(x)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_gradients(name, place):
    make, ours, plain = FUNCTIONS[name]
    torch.manual_seed(0)
    here = make()
    there, x = copy.deepcopy(here).to(tg.device("jax")), torch.randn(4, 3, dtype=torch.float64)
    expected = of_second_order(plain or ours, here, x.clone().requires_grad_(), "eager")
    close(of_second_order(ours, there, x.to(tg.device("jax")).requires_grad_(), place), expected)


def test_derivatives_of_any_order():
    found = []
    for fn, place in ((torch.sin, "cpu"), (tg.jit(torch.sin), tg.device("jax"))):
        x = torch.tensor([0.3, 0.7], dtype=torch.float64, device=place, requires_grad=True)
        y, orders = fn(x * x), []
        for _ in range(4):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            orders.append(y)
        found.append(orders)
    close(found[1], found[0])


@pytest.mark.parametrize("place", PLACES)
def test_gradient_penalty_of_a_critic(place):
    """As in WGAN-GP, over steps of an optimizer: the penalty's gradient goes through the gradient of the input."""
    here = network()
    there = copy.deepcopy(here).to(tg.device("jax"))
    losses = []
    for critic, device, how in ((here, "cpu", "eager"), (there, tg.device("jax"), place)):
        g = torch.Generator().manual_seed(1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
        run = tg.jit(critic) if how == "outside" else critic

        def step(real, fake, run=run, optimizer=optimizer):
            optimizer.zero_grad()
            mixed = (0.3 * real + 0.7 * fake).requires_grad_()
            scores = run(mixed)
            (slope,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)
            loss = run(fake).mean() - run(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = tg.jit(step) if how == "inside" else step
        data = [torch.randn(4, 3, dtype=torch.float64, generator=g).to(device) for _ in range(6)]
        losses.append([step(*data[i : i + 2]) for i in (0, 2, 4)])
        losses[-1] += critic.parameters()
    close(losses[1], losses[0])


@pytest.mark.parametrize("place", PLACES)
def test_learning_to_learn(place):
    """MAML: the outer gradient goes through the inner steps."""
    here = network()
    there = copy.deepcopy(here).to(tg.device("jax"))
    found = []
    for net, device, how in ((here, "cpu", "eager"), (there, tg.device("jax"), place)):

        def inner(params, x, net=net):
            return functional_call(net, params, (x,)).square().mean()

        run = tg.jit(inner) if how == "outside" else inner

        def outer(x, net=net, run=run):
            fast = dict(net.named_parameters())
            for _ in range(2):
                gradients = torch.autograd.grad(run(fast, x), list(fast.values()), create_graph=True)
                fast = {n: p - 0.5 * g for (n, p), g in zip(fast.items(), gradients, strict=True)}
            loss = run(fast, x + 1)
            loss.backward()
            return loss.detach()

        x = torch.arange(6.0, dtype=torch.float64, device=device).reshape(2, 3) / 6
        found.append([(tg.jit(outer) if how == "inside" else outer)(x), *(p.grad for p in net.parameters())])
    close(found[1], found[0])


def test_weights_that_changed_since_matter_as_in_pytorch():
    """The graph keeps what it saved, whatever becomes of the parameters; edges alone are no reason to complain."""
    device = tg.device("jax")
    found = []
    for where in ("cpu", device):
        w, b = (torch.tensor([0.5, 2.0], device=where, requires_grad=True) for _ in range(2))

        def fn(x, w=w, b=b):
            return (w * x).exp() + b

        y = (fn if where == "cpu" else tg.jit(fn))(torch.tensor([1.0, 0.3], device=where))
        with torch.no_grad():
            b += 1
        (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sum(), w)])
    close(found[1], found[0])


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_cpu_argument_is_that_of_the_call(backend):
    run = tg.jit(lambda x, scale: x * scale)
    for value in (2.0, 3.0):
        x = torch.ones(2, device=tg.device(backend), requires_grad=True)
        run(x, torch.tensor(value)).sum().backward()
        assert x.grad.tolist() == [value, value]


def test_hooks_that_keep_a_gradient_keep_that_of_their_call():
    kept = []

    def loss(x):
        y = x * 2
        y.register_hook(lambda g: kept.append(g) if not kept else None)
        return y.exp().sum()

    run = tg.jit(loss)
    for value in (0.5, 1.0):
        x = torch.full((2,), value, device=tg.device("jax"), requires_grad=True)
        run(x).backward()
        # the hook keeps the first one, as without tg.jit
        torch.testing.assert_close(kept[0].cpu(), torch.full((2,), 1.0).exp())
