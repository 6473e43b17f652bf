"""Numbers that a compiled function reads of tensors by `.item()` are numbers of each call, and no constants."""

import math

import pytest
import torch

import tensorgraft as tg

BACKENDS = ["jax", "numpy", "torch", "tensorflow"]
compiled = pytest.mark.filterwarnings("error::tensorgraft.transforms.UncompiledWarning")
uncompiled = pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")


def _set(x, index):
    y = x.clone()
    y[index] = x.sum().item()
    return y


def _trained(x):
    w = x.detach().requires_grad_()
    loss = (w**2).sum()
    scale = loss.item()
    (loss * scale).backward()
    return w.grad / scale


PROGRAMS = {
    "quotient": lambda x: x / x.sum().item(),
    "reflected": lambda x: x.max().item() / x - 2.0,
    "arithmetic": lambda x: x * (1 / (2 * x.sum().item() + 1)) ** 2 - abs(-x.max().item()),
    "whole": lambda x: x * round(x.sum().item()) + math.floor(x.mean().item()) % 3 + 7 // x.argmax().item(),
    "bfloat16": lambda x: x.bfloat16() * x.sum().item(),
    "bfloat16 without axes": lambda x: x.sum().bfloat16() * x.mean().item(),
    "without axes": lambda x: x.sum() * x.mean().item(),
    "of integers": lambda x: x.long() * x.mean().item(),
    "integers": lambda x: (x.long().int() * x.argmax().item(), x.int().sum().item() * x.argmax()),
    "in place": lambda x: (x * 1).mul_(x.sum().item()).clamp_(max=x.max().item()),
    "chosen": lambda x: torch.where(x > x.mean().item(), x, x.mean().item()).masked_fill(x < 1.5, x.sum().item()),
    "made": lambda x: (
        torch.full((2,), x.sum().item(), device=x.device),
        torch.tensor([x.sum().item(), 1], device=x.device),
    ),
    "factors": lambda x: (
        torch.add(x, 2 * x, alpha=x.sum().item()),
        x.sub(other=x * x, alpha=x.argmax().item()),
        torch.rsub(x, 1.5, alpha=x.mean().item()),
        x.add(x.mean().item(), alpha=0.5),
        x.long().add(x.long(), alpha=x.argmax().item()),
        (x * 1).add_(x.double(), alpha=x.mean().item()).sub_(x.sum(), alpha=x.sum().item()),
        x.addcmul(x, x, value=x.mean().item()).addcdiv_(x, x + 1, value=-x.sum().item()),
        x.lerp(x * x, 1 / x.sum().item()),
    ),
    "factors in bfloat16": lambda x: (
        (x / 3).bfloat16().add((x / 7).bfloat16(), alpha=x.mean().item()),
        (x / 3).bfloat16().addcmul_((x / 7).bfloat16(), x.bfloat16(), value=x.mean().item()),
        (x / 3).bfloat16().lerp_((x / 7).bfloat16(), 1 / x.sum().item()),
    ),
    "index": lambda x: x[(x.argmax().item() - 1) % 3],
    "written": lambda x: (_set(x, 0), _set(x, x > 2)),
    "trained": _trained,
    "lists": lambda x: [*[(y, x * y) for y in x.tolist()], x.long().reshape(3, 1).tolist(), x[:0].tolist()],
    "returned": lambda x: [x.sum().item(), {"n": x.argmax().item(), "x": x * 2}],
    "weighted": lambda x: torch.add(x, x * x, alpha=x.sum().item()).lerp(x.exp(), x.mean().item()),
    "kind": lambda x: (isinstance(x.sum().item(), float), isinstance(x.argmax().item(), int)),
}


def same(out, expected):
    leaves, wanted = (torch.utils._pytree.tree_leaves(tree) for tree in (out, expected))
    assert [type(a) for a in leaves] == [type(b) for b in wanted]
    for a, b in zip(leaves, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-6, atol=1e-6)
        else:
            assert a == (pytest.approx(b, rel=1e-6) if isinstance(b, float) else b)


@compiled
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs(backend, name):
    run, device = tg.jit(PROGRAMS[name]), tg.device(backend)
    for k in (0, 1):
        x = torch.tensor([1.0, 2.0, 3.0]) + k
        same(run(x.to(device)), PROGRAMS[name](x))
    assert backend == "numpy" or run.report.traces == 1


@compiled
@pytest.mark.parametrize("name", ["quotient", "reflected", "arithmetic", "chosen", "in place", "weighted"])
def test_gradients_outside(name):
    run, found = tg.jit(PROGRAMS[name]), []
    for device in (tg.device("jax"), "cpu"):
        for k in (0, 1):
            x = (torch.tensor([1.0, 2.0, 3.0]) + k).to(device).requires_grad_()
            (run if device != "cpu" else PROGRAMS[name])(x).sum().backward()
            found.append(x.grad)
    same(found[:2], found[2:])


@compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rate_of_dropout(backend):
    def drop(x, rate):
        return torch.nn.functional.dropout(x, rate.item())

    run, device = tg.jit(drop), tg.device(backend)
    for rate in (0.25, 0.75, 1.0):
        found = []
        for fn in (run, drop):
            torch.manual_seed(1)
            x = torch.ones(1000, device=device, requires_grad=True)
            fn(x, torch.tensor(rate, device=device)).sum().backward()
            found.append(x.grad.cpu())
        torch.testing.assert_close(*found)
    with pytest.raises(ValueError, match="between 0 and 1"):
        run(torch.ones(3, device=device), torch.tensor(1.5, device=device))


@compiled
def test_arguments_on_the_cpu():
    run = tg.jit(lambda x, n: x * n.item())
    for n in (2, 5):
        assert run(torch.ones(2, device=tg.device("jax")), torch.tensor(n)).tolist() == [n, n]
    assert run.report.traces == 1


LOSSES = []


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.total, self.last, self.seen = 0.0, None, 0

    def forward(self, x):
        loss = x.sum()
        self.total += loss.item()
        self.last = loss.item()
        self.seen += 1
        LOSSES.append(loss.item())
        return x * 2


@compiled
def test_side_effects():
    model = Counted()
    run = tg.jit(model)
    for k in range(3):
        run(torch.full((2,), float(k), device=tg.device("jax")))
    assert (model.total, model.last, model.seen, LOSSES) == (6.0, 4.0, 3, [0.0, 2.0, 4.0])
    assert run.report.traces == 1


@uncompiled
@pytest.mark.parametrize("by", [0.5, 1])
def test_floats_that_are_counted_up(by):
    model = Counted()

    def count(x):
        model.total += by
        return x + 1

    run = tg.jit(count)
    for _ in range(3):
        run(torch.ones(2, device=tg.device("jax")))
    assert model.total == 3 * by


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda x: x * (1 / (x - x).sum().item()), ZeroDivisionError),
        (lambda x: x * (7 % (x - x).long().sum().item()), ZeroDivisionError),
        (lambda x: x * (x.argmax().item() * 2**62 * 2), OverflowError),
    ],
)
def test_what_python_would_raise(fn, error):
    with pytest.raises(error, match=r"test_scalars.py:\d+"):
        tg.jit(fn)(torch.tensor([1.0, 2.0, 3.0], device=tg.device("jax")))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x if x.sum().item() > 0 else -x,
        lambda x: x / max(x.sum().item(), 1.0),
        lambda x: torch.zeros(x.argmax().item(), device=x.device),
        lambda x: x[: x.argmax().item()],
        lambda x: x.split(x.long().tolist()),
        lambda x: x if sum(x.tolist()) > 0 else -x,
        lambda x: torch.add(x.long(), x.long(), alpha=x.sum().item()),
        lambda x: torch.addmm(x.diag(), x.diag(), x.diag(), alpha=x.sum().item()),
        lambda x: torch.nn.functional.dropout(x, x.sum().item(), inplace=True),
        lambda x: torch.tensor(x.sum().item()) * x,
    ],
)
def test_what_needs_the_number(fn):
    with pytest.raises(tg.TracedValueError, match="needs the value"):
        tg.jit(fn)(torch.ones(3, device=tg.device("jax")))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_line_is_not_one_of_a_decorator():
    with pytest.raises(tg.TracedValueError, match=r"test_scalars.py:\d+: `tg.jit\(lambda x: torch._check_is_size"):
        tg.jit(lambda x: torch._check_is_size(x.argmax().item()))(torch.ones(3, device=tg.device("jax")))


@uncompiled
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x / float(x.sum()),
        lambda x: x * int(x.sum()),
        lambda x: x * math.sqrt(x.sum().item()),
        lambda x: (f"{x.sum().item():.1f}", x),
        lambda x: x * round(x.mean().item(), 1),
    ],
)
def test_what_runs_uncompiled(fn):
    x = torch.tensor([1.0, 2.0, 3.0])
    run = tg.jit(fn)
    for k in (0, 1):
        same(run((x + k).to(tg.device("jax"))), fn(x + k))
