"""`torch.cond`, `torch.while_loop`, `scan`, `associative_scan`, against Python's own `if` and loops on the CPU."""

import copy

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan

import tensorgraft as tg

SLOW = pytest.param("tensorflow compiled", marks=pytest.mark.slow)


@pytest.fixture(params=["jax", "jax compiled", "numpy", "torch compiled", SLOW])
def place(request):
    """(the device, how functions are run on it)"""
    backend, _, compiled = request.param.partition(" ")
    return tg.device(backend), tg.jit if compiled else lambda fn: fn


def close(actual, expected):
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_cond_with_gradients_of_operands_and_of_what_is_outside(place, shift):
    device, run = place
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    there = copy.deepcopy(layer).to(device)
    x = torch.randn(2, 3)

    def model(layer, pred, x):
        return torch.cond(
            pred, lambda x, y: (layer(x).tanh() * y, x.sum()), lambda x, y: (x * y.exp(), y.sum()), (x, x + 1)
        )

    def step(x):
        a, b = model(there, x.mean() * 0 + shift > 0, x * 2)
        loss = a.square().sum() + b
        loss.backward()
        return loss

    leaf = x.clone().requires_grad_()
    doubled, pair = leaf * 2, leaf * 2 + 1
    a, b = (layer(doubled).tanh() * pair, doubled.sum()) if shift > 0 else (doubled * pair.exp(), pair.sum())
    expected = a.square().sum() + b
    expected.backward()
    ours = x.to(device).requires_grad_()
    close(run(step)(ours), expected)
    close(ours.grad, leaf.grad)
    if shift > 0:
        close(there.weight.grad, layer.weight.grad)
        close(there.bias.grad, layer.bias.grad)
    else:
        assert there.weight.grad is None or not there.weight.grad.any()


def test_while_loop(place):
    device, run = place

    def collatz(n):
        return torch.while_loop(
            lambda i, n: n != 1,
            lambda i, n: (i + 1, torch.where(n % 2 == 0, n // 2, 3 * n + 1)),
            (torch.zeros_like(n), n),
        )

    steps, end = run(collatz)(torch.tensor(27).to(device))
    assert (steps.item(), end.item()) == (111, 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(place, reverse, dim):
    device, run = place
    torch.manual_seed(0)
    cell = nn.GRUCell(4, 5)
    there = copy.deepcopy(cell).to(device)
    xs, h = torch.randn(6, 6, 4), torch.zeros(6, 5)

    def step(xs, h):
        def combine(carry, x):
            new, n = there(x, carry[0]), carry[1] + 1
            return (new, n), {"h": new * 1, "n": n * 2}

        (last, n), ys = scan(
            combine, (h, torch.zeros((), dtype=torch.int64, device=device)), xs, dim=dim, reverse=reverse
        )
        loss = (ys["h"].square().sum() + last.sum()) * 0.1
        loss.backward()
        return loss, last, n, ys

    leaf = xs.clone().requires_grad_()
    carry, rows = h, []
    order = range(6)[::-1] if reverse else range(6)
    for i in order:
        carry = cell(leaf.select(dim, i), carry)
        rows.append(carry)
    stacked = torch.stack(rows[::-1] if reverse else rows).movedim(0, dim)
    expected = (stacked.square().sum() + carry.sum()) * 0.1
    expected.backward()

    ours = xs.to(device).requires_grad_()
    loss, last, n, ys = run(step)(ours, h.to(device))
    close(loss, expected)
    close(last, carry)
    close(ys["h"], stacked)
    assert n.item() == 6
    assert ys["n"].tolist() == ([12, 10, 8, 6, 4, 2] if reverse else [2, 4, 6, 8, 10, 12])
    close(ours.grad, leaf.grad)
    for p, q in zip(there.parameters(), cell.parameters(), strict=True):
        close(p.grad, q.grad)


def test_a_loop_is_one_body():
    device = tg.device("jax")
    cell = nn.GRUCell(4, 5).to(device)

    def run(xs, h):
        return scan(lambda h, x: ((new := cell(x, h)), new * 1), h, xs)[1]

    with torch.no_grad():
        sizes = []
        for length in (4, 40):
            compiled = tg.jit(run)
            compiled(torch.randn(length, 2, 4).to(device), torch.zeros(2, 5).to(device))
            sizes.append(compiled.report.operations[0])
    assert sizes[0] == sizes[1]


def test_associative_scan(place):
    device, run = place
    x = torch.randn(2, 7, 3)
    for reverse in (False, True):
        leaf = x.clone().requires_grad_()
        expected = leaf.flip(1).cumsum(1).flip(1) if reverse else leaf.cumsum(1)
        expected.square().sum().backward()
        ours = x.to(device).requires_grad_()
        out = run(lambda x, reverse=reverse: associative_scan(torch.add, x, 1, reverse=reverse))(ours)
        close(out, expected)
        out.square().sum().backward()
        close(ours.grad, leaf.grad)


def test_a_gradient_outside_of_the_compiled_function():
    device = tg.device("jax")
    x = torch.randn(4, 3)
    leaf, ours = x.clone().requires_grad_(), x.to(device).requires_grad_()
    run = tg.jit(lambda x: scan(lambda c, x: ((n := (c * x).sin() + x), n.clone()), torch.zeros_like(x[0]), x)[1])
    run(ours).sum().backward()
    carry, total = torch.zeros(3), 0
    for row in leaf:
        carry = (carry * row).sin() + row
        total = total + carry.sum()
    total.backward()
    close(ours.grad, leaf.grad)


def test_what_is_refused():
    device = tg.device("jax")
    x = torch.ones(3).to(device)
    with pytest.raises(RuntimeError, match=r"the branches return torch\.float32 \(3,\) and torch\.float32 \(1,\)"):
        tg.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x * 1, lambda x: x[:1] * 1, (x,)))(x)
    with pytest.raises(RuntimeError, match="scan: combine_fn takes a carry of shape"):
        tg.jit(lambda x: scan(lambda c, x: (c[None] + x, x * 1), x[0], x))(x)
    total = torch.zeros(3).to(device)

    def add(x):
        total.add_(x)
        return x * 1

    with pytest.raises(tg.TracedValueError, match="writes a tensor from outside"):
        tg.jit(lambda x: torch.cond(x.sum() > 0, add, lambda x: x * 2, (x,)))(x)
    assert not total.any()
    with pytest.raises(RuntimeError, match="has no gradient"):
        tg.jit(lambda x: torch.while_loop(lambda x: x.sum() < 9, lambda x: (x * 2,), (x * 1,)))(x.requires_grad_())


@pytest.mark.parametrize("length", [3, 12])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_modes_of_a_trace_see_the_bodies_alone(backend, length):
    x = torch.arange(2.0 * length, device=tg.device(backend)).reshape(length, 2)

    def step(x):
        last, ys = scan(lambda a, b: (a + b, a * b), x.new_ones(2), x, reverse=True)
        return last, ys, torch.cond(last.sum() > 1, lambda y: y * 2, lambda y: y - 1, (last,))

    compiled = tg.jit(step)
    for _ in range(2):
        for actual, expected in zip(compiled(x), step(x), strict=True):
            assert actual.tolist() == expected.tolist()
