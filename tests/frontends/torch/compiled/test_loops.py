"""Python loops that a trace unrolls are warned of, once, where they make a large program."""

import warnings
from pathlib import Path

import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.compiled.control_flow import unrolled_loops as loops

HERE = Path(__file__).name
OFTEN, MANY = loops.OFTEN, loops.MANY


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Limits that a test reaches soon."""
    monkeypatch.setattr(loops, "OFTEN", 20)
    monkeypatch.setattr(loops, "MANY", 60)
    monkeypatch.setattr(loops, "_told", set())


@pytest.fixture
def device():
    return tg.device("jax")


def at(text):
    return next(i for i, s in enumerate(Path(__file__).read_text().splitlines(), start=1) if s.strip() == text)


def cell(h, x):
    return torch.tanh(h * 0.5 + x)


def recurrence(xs):
    h = torch.zeros_like(xs[0])
    for t in range(len(xs)):
        h = cell(h, xs[t])
    return h


def test_the_message(device):
    xs = torch.ones(30, 4, device=device)
    with pytest.warns(tg.torch.UnrolledLoopWarning) as caught:
        compiled = tg.jit(recurrence)
        compiled(xs)
    line = at("for t in range(len(xs)):")
    assert str(caught[0].message).splitlines() == [
        f"{HERE}:{line}: `for t in range(len(xs)):` is unrolled: it ran 30 times in one trace, and the program has 90"
        " operators of it, their derivatives not counted.",
        "Tracing and compiling take time with each. A loop of the backend is traced once, whatever its length:",
        "  step by step:       torch._higher_order_ops.scan(step, carry, xs)",
        "  until a condition:  torch.while_loop(condition, body, operands)",
        "  recurrent layers:   nn.LSTM, nn.GRU, nn.RNN on the whole sequence",
    ]
    assert (Path(caught[0].filename).name, caught[0].lineno) == (HERE, line)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(31, 4, device=device))  # said already


def squares(x):
    total = x
    while (n := len(seen)) < 70:
        seen.append(n)
        total.mul_(0.5)  # one operator, in place
    return total.sum()


seen: list[int] = []


def test_loops_of_one_operator_in_place(device):
    seen.clear()
    with pytest.warns(tg.torch.UnrolledLoopWarning, match=r"`while \(n := len\(seen\)\) < 70:` is .* ran 70 times"):
        tg.jit(squares)(torch.ones(4, device=device))


def test_comprehensions(device):
    def fn(xs):
        return torch.stack([x * 2 + 1 for x in xs])

    with pytest.warns(tg.torch.UnrolledLoopWarning, match="it ran 40 times in one trace, and the program has 80 op"):
        tg.jit(fn)(torch.ones(40, 4, device=device))


def test_no_warning_without_a_loop_of_the_program(device):
    """Many parameters, deep models, optimizers that go parameter by parameter, loops outside or of the backend."""
    ps = [torch.nn.Parameter(torch.ones(2, device=device)) for _ in range(40)]
    optimizer = torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=False)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(15)]).to(device)
    double = tg.jit(lambda x: x * 2 + 1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum() + torch.stack(ps).sum()
        loss.backward()
        optimizer.step()
        h = torch._higher_order_ops.scan(lambda h, x: (cell(h, x), h.sum()), x[0], x.repeat(40, 1))[0]
        return loss.detach() + h.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tg.jit(step)(torch.ones(3, 4, device=device))
        for _ in range(100):
            double(torch.ones(2, device=device))


def test_limits_are_those_of_the_documentation():
    text = " ".join((Path(__file__).parents[4] / "docs" / "compiled.md").read_text().split())
    assert f"{MANY:,} operators" in text and f"at least {OFTEN} times" in text
