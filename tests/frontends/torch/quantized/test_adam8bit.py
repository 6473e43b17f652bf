"""Adam with moments of 8 bits, against PyTorch's."""

import io

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.frontends.torch.quantized import adam8bit
from tensorgraft.quantization import Adam8bit


def problem(device, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to(device, dtype)
    x = torch.randn(256, 64)
    y = (x @ torch.randn(64, 8) * 0.3).tanh()
    x, y = x.to(device, dtype), y.to(device, dtype)

    def step(optimizer, x=x):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


def curve(device, make, steps, compiled=False):
    model, step = problem(device)
    optimizer = make(model.parameters())
    run = tg.jit(lambda x: step(optimizer, x)) if compiled else lambda x: step(optimizer, x)
    x = step.__defaults__[0]
    return torch.tensor([float(run(x)) for _ in range(steps)]), optimizer


def kept(optimizer):
    return sum(v.numel() * v.element_size() for entries in optimizer.state.values() for v in entries.values())


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, torch.optim.Adam),
        ({"weight_decay": 0.1}, torch.optim.Adam),
        ({"weight_decay": 0.1, "decoupled_weight_decay": True}, torch.optim.AdamW),
    ],
)
@pytest.mark.slow_with("options0-Adam", "options1-Adam")
def test_the_loss_is_that_of_adam(options, theirs):
    own, _ = curve(torch.device("cpu"), lambda p: Adam8bit(p, 3e-3, **options), 60)
    decay = {"weight_decay": options.get("weight_decay", 0)}
    want, _ = curve(torch.device("cpu"), lambda p: theirs(p, 3e-3, **decay), 60)
    assert want[-1] < 0.9 * want[0]
    assert (own - want).abs().max() < 0.005 * want[0]
    assert ((own - want).abs() / want)[:30].max() < 0.02


@pytest.mark.parametrize(
    ("backend", "compiled"), [("numpy", False), ("jax", False), ("jax", True), ("torch", True), ("tensorflow", True)]
)
def test_on_the_device(backend, compiled):
    own, optimizer = curve(tg.device(backend), lambda p: Adam8bit(p, 3e-3), 20, compiled)
    want, _ = curve(torch.device("cpu"), lambda p: Adam8bit(p, 3e-3), 20)
    torch.testing.assert_close(own, want, rtol=5e-3, atol=0)  # a code on the edge between two may fall either way
    assert sorted({str(v.dtype) for v in optimizer.state[optimizer.param_groups[0]["params"][0]].values()}) == [
        "torch.float32",
        "torch.uint8",
    ]


@pytest.mark.slow
def test_long_runs_on_all_of_the_data_do_not_drift():
    """Averages change by less than half a code a step. With rounding to the nearest it is 0.19."""
    n = 4096
    g = torch.Generator().manual_seed(0)
    curvature = torch.logspace(-2, 0, n)[torch.randperm(n, generator=g)]
    start, target = torch.randn(n, generator=g), torch.randn(n, generator=g)

    def losses(make):
        p = nn.Parameter(start.clone())
        optimizer, found = make([p]), []
        for _ in range(800):
            optimizer.zero_grad()
            loss = (curvature * (p - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found).log()

    assert (losses(lambda p: Adam8bit(p, 1e-2)) - losses(lambda p: torch.optim.Adam(p, 1e-2))).abs().mean() < 0.03


def test_memory():
    def state(make):
        p = nn.Parameter(torch.ones(512, 300))
        optimizer = make([p])
        p.grad = torch.ones_like(p)
        optimizer.step()
        return kept(optimizer)

    assert state(Adam8bit) < 0.26 * state(torch.optim.Adam)


def test_small_tensors_are_adams_own():
    p, q = (nn.Parameter(torch.linspace(-1, 1, 100)) for _ in range(2))
    own, theirs = Adam8bit([p], 0.01), torch.optim.Adam([q], 0.01)
    for k in range(5):
        p.grad = q.grad = torch.linspace(-1, 2, 100) * k
        own.step(), theirs.step()
    torch.testing.assert_close(p, q)


def test_weights_whose_gradients_are_tiny_do_not_explode():
    p = nn.Parameter(torch.zeros(4096))
    grad = torch.logspace(-12, 0, 4096)
    optimizer = Adam8bit([p], 0.01)
    for _ in range(10):
        p.grad = grad.clone()
        optimizer.step()
        assert p.detach().abs().max() < 0.01 * 10.5 * 1.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_is_kept_in_files(dtype):
    model, step = problem(torch.device("cpu"), dtype)
    optimizer = Adam8bit(model.parameters(), 3e-3)
    for _ in range(3):
        step(optimizer)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file)
    again, step_again = problem(torch.device("cpu"), dtype)
    other = Adam8bit(again.parameters(), 3e-3)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    for _ in range(3):
        assert torch.equal(step(optimizer), step_again(other))
    assert kept(optimizer) == kept(other)


def test_errors():
    with pytest.raises(ValueError, match=r"Adam8bit: expected two betas .* got \(0\.9, 1\.5\)"):
        Adam8bit([torch.ones(3)], betas=(0.9, 1.5))
    with pytest.raises(ValueError, match="Adam8bit: expected lr to be at least 0, got -1"):
        Adam8bit([torch.ones(3)], lr=-1)
    p = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    p.grad = torch.ones_like(p)
    with pytest.raises(
        TypeError, match=r"Adam8bit: expected dense .* got parameters of torch\.complex64 of shape \(3,\)"
    ):
        Adam8bit([p]).step()


def test_pieces_are_the_whole(monkeypatch):
    """On the CPU a parameter is updated in pieces, with the roundings that it has as a whole."""

    def run(piece):
        monkeypatch.setattr(adam8bit, "_PIECE", piece)
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(shape)) for shape in ((63, 129), (7, 5), ())]
        optimizer = Adam8bit(params, 1e-2, weight_decay=0.1)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape)
            optimizer.step()
        return [*params, *[v for p in params for v in optimizer.state[p].values()]]

    for found, wanted in zip(run(512), run(1 << 30), strict=True):
        assert torch.equal(found, wanted)
