"""What a compiled function says of why it was traced again."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.frontends.torch.compiled import jit

pytestmark = pytest.mark.compiled  # what is traced, and when, is counted

HERE = Path(__file__).name
scale = 2.0


@pytest.fixture
def device():
    return tg.device("jax")


def why(compiled):
    """What was new in the last trace."""
    return compiled.report.reasons[-1]


def test_arguments(device):
    @tg.jit
    def fn(x, n=1, *, batch=None):
        return x * n if batch is None else x * n + batch["a"]

    x = torch.ones(2, 3, device=device)
    fn(x)
    assert why(fn) == []
    fn(x, 2)
    assert why(fn) == ["argument n: was not given before"]
    fn(x, 3)
    assert why(fn) == ["argument n: 3, was 2"]
    fn(torch.ones(4, 3, device=device), 3)
    assert why(fn) == ["argument x: shape (4, 3), was (2, 3)"]
    fn(x.double(), 3)
    assert why(fn) == ["argument x: dtype torch.float64, was torch.float32"]
    fn(torch.ones(3, 2, device=device).t(), 3)
    assert why(fn) == ["argument x: strides (1, 2), was (3, 1)"]
    fn(x, 3, batch={"a": x})
    assert why(fn) == ["argument batch['a']: was not given before"]
    fn(x, 3, batch={"a": x.clone()})
    assert why(fn) == ["argument batch['a']: memory its own, was that of x"]
    traces = fn.report.traces
    y = torch.zeros(2, 3, device=device)
    fn(y, 3, batch={"a": y})
    assert fn.report.traces == traces


def test_surroundings(device, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to(device)
    run = tg.jit(lambda x: model(x) * scale)
    x = torch.ones(2, 3, device=device)
    run(x)
    with torch.no_grad():
        run(x)
    assert why(run) == ["grad mode: False, was True"]
    monkeypatch.setitem(globals(), "scale", 3.0)
    run(x)
    assert why(run) == ["variable scale: 3.0, was 2.0"]
    model[1].eval()
    run(x)
    assert why(run) == ["model.1.training is False, was True"]
    model[0].weight.requires_grad_(False)
    run(x)
    assert why(run) == ["model.0.weight.requires_grad is False, was True"]
    model[0].weight = nn.Parameter(torch.ones(3, 3, device=device))
    run(x)
    assert why(run) == ["model.0.weight was added, or took the place of another"]
    with torch.autocast(device.type):
        run(x)
    assert why(run)[0] == "autocast: (torch.float16, True), was False"


def test_steps(device):
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    noise, scale = torch.ones(3), torch.tensor(2.0)

    @tg.jit
    def step(x):
        loss = model(x + noise.to(x.device)).sum() * scale.item()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.ones(2, 3, device=device)
    step(x)
    step(x)
    assert why(step)[0] in [f"model.{name}.grad was None, and is there now" for name in ("weight", "bias")]
    optimizer.param_groups[0]["lr"] = 0.01
    step(x)
    assert step.report.traces == 2
    optimizer.param_groups[0]["momentum"] = 0.8
    step(x)
    assert why(step) == ["optimizer: momentum of group 0 is 0.8, was 0.9"]
    noise.mul_(2)
    step(x)
    assert step.report.traces == 3
    scale.mul_(2)
    step(x)
    assert why(step) == ["scale, which is on the CPU and of which Python asks for the value, has another one"]


def test_explain_tells_it(device):
    double = tg.jit(lambda x: x * 2)
    double(torch.ones(2, device=device))
    double(torch.ones(3, device=device))
    told = tg.explain(double, torch.ones(3, device=device))
    assert [t.reasons for t in told.traces] == [[], ["argument x: shape (3,), was (2,)"]]
    assert told.this_call == []
    assert "this call runs what is compiled" in str(told) and "argument x: shape (3,), was (2,)" in str(told)
    told = tg.explain(double, torch.ones(4, device=device))
    assert told.this_call == ["argument x: shape (4,), was (3,)"]
    assert "this call would be traced: argument x: shape (4,), was (3,)" in str(told)
    assert double.report.traces == 2


def test_too_many_traces(device, monkeypatch):
    monkeypatch.setattr(jit, "MOST_TRACES", 6)

    @tg.jit
    def power(x, n):
        return x**n

    def loop():
        for n in range(1, 9):
            power(torch.ones(1 + n % 2, device=device), n)

    with pytest.raises(RuntimeError) as caught:
        loop()
    line = next(i for i, s in enumerate(Path(__file__).read_text().splitlines(), start=1) if "power(torch" in s)
    assert str(caught.value).splitlines() == [
        f"{HERE}:{line}: `power(torch.ones(1 + n % 2, device=device), n)` would be traced again: tg.jit has compiled"
        f" {power.report.name} 6 times.",
        "What keeps changing:",
        "  argument n: 1, 2, 3, 4, ... (7 kinds)",
        "  argument x: shape (2,), shape (1,)",
        "Each is a program of its own. Ways out:",
        "  a number that changes:  pass it as a tensor on the device",
        "  a shape that changes:   pad to a few sizes, and mask what was added",
        "  anything else:          change it outside, or call the function without tg.jit",
    ]


def test_too_many_traces_for_a_guard(device, monkeypatch):
    monkeypatch.setattr(jit, "MOST_TRACES", 3)
    p = nn.Parameter(torch.ones(2, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)

    @tg.jit
    def step():
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()

    with pytest.raises(RuntimeError, match="  optimizer: weight_decay of group 0 is 3, was 2"):
        for n in range(5):
            optimizer.param_groups[0]["weight_decay"] = n
            step()
