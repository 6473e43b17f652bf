"""Moving modules: identity, ties, gradients, hooks and optimizers survive, as they do between the CPU and CUDA."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import tensorgraft as tg
import tensorgraft.frontends.torch


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def tied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_ties_and_optimizers_survive(device):
    x = torch.randn(4, 3)
    native, moved = tied(), tied()
    theirs, ours = torch.optim.Adam(native.parameters(), 0.1), torch.optim.Adam(moved.parameters(), 0.1)
    before = list(moved.parameters())
    assert moved.to(device) is moved
    assert all(p is q for p, q in zip(before, moved.parameters(), strict=True))
    assert moved[0].weight is moved[2].weight and moved[0].weight.device == device
    for _ in range(3):
        assert step(moved, ours, x.to(device)) == pytest.approx(step(native, theirs, x), rel=1e-4)
    moved.cpu()
    assert moved[0].weight is moved[2].weight is before[0] and before[0].device.type == "cpu"
    assert torch.allclose(before[0], native[0].weight, atol=1e-5)


def test_every_way_to_move(device):
    model = tied()
    weight = model[0].weight
    model.graft(device.index)
    assert weight.device == device
    model.to(f"graft:{1 - device.index}")
    assert weight.device.index == 1 - device.index and weight.is_leaf and weight.requires_grad
    model.to("cpu", torch.float64)
    assert (weight.device.type, weight.dtype) == ("cpu", torch.float64)
    model.to(device, torch.bfloat16)
    assert (weight.device, weight.dtype) == (device, torch.bfloat16)
    model.float()
    model.to(torch.ones(1))
    assert weight is model[2].weight and (weight.device.type, weight.dtype) == ("cpu", torch.float32)


def test_gradients_and_hooks_move_along(device):
    model = nn.Linear(2, 1)
    called = []
    model.weight.register_hook(lambda grad: called.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda p: called.append("after"))
    model(torch.ones(1, 2)).sum().backward()
    grad = model.weight.grad
    called.clear()
    model.to(device)
    assert model.weight.grad is grad and grad.device == device and grad.tolist() == [[1, 1]]
    model(torch.ones(1, 2, device=device)).sum().backward()
    assert sorted(called) == ["after", "hook"] and grad.tolist() == [[2, 2]]


def test_a_graph_from_before_the_move(device):
    model = nn.Linear(2, 1)
    x = torch.ones(1, 2)
    before = model(x)
    model.to(device)
    assert torch.allclose(model(x.to(device)).cpu(), before)
    with pytest.raises(RuntimeError, match="moved to another device after the forward pass"):
        before.sum().backward()


def test_data_can_be_assigned(device):
    p = nn.Parameter(torch.ones(2))
    p.data = torch.zeros(3, device=device)
    assert p.device == device and p.shape == (3,) and p.requires_grad and isinstance(p, nn.Parameter)
    p.data = p.data.cpu()
    assert p.device.type == "cpu"
    x = torch.ones(2, device=device)
    y = x.detach()
    x.data = torch.zeros(2, device=device)
    assert x.tolist() == [0, 0] and y.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="must be floating point or complex"):
        p.data = torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        p.data = torch.zeros(2, device="meta")


def test_meta(device):
    model = nn.Linear(2, 2, device="meta").to_empty(device=device)
    assert model.weight.device == device and isinstance(model.weight, nn.Parameter)
    assert nn.Linear(2, 2, device=device).to("meta").weight.is_meta
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        nn.Linear(2, 2, device="meta").to(device)
    assert nn.Linear(2, 2, device=device).weight.device == device


def test_lazy_modules(device):
    for model in (nn.LazyLinear(3).to(device), nn.LazyLinear(3).graft(device.index)):
        assert model(torch.ones(2, 4, device=device)).device == device
        assert model.weight.shape == (3, 4)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, lambda m: m])
def test_deepcopy(device, wrap):
    model = wrap(nn.Linear(3, 3)).to(device)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, device=device)
    twin.eval(), model.eval()
    assert torch.allclose(model(x), twin(x))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert q.device == device and q.data_ptr() != p.data_ptr()
    with torch.no_grad():
        next(twin.parameters()).fill_(3)
    assert not torch.allclose(model(x), twin(x))


def test_buffers(device):
    model = nn.BatchNorm1d(3).to(device)
    model(torch.randn(8, 3, device=device))
    twin = copy.deepcopy(model)
    assert twin.num_batches_tracked.item() == 1 and twin.running_mean.device == device
    twin.running_mean.zero_()
    assert model.running_mean.abs().sum().item() > 0


def test_state_dicts(device):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2).to(device)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.weight.cpu(), model.weight) and other.weight.device == device
    model.load_state_dict({name: 2 * value for name, value in other.state_dict().items()})
    assert torch.equal(2 * other.weight.cpu(), model.weight) and model.weight.device.type == "cpu"
    empty = nn.Linear(2, 2, device="meta")
    empty.load_state_dict(other.state_dict(), assign=True)
    assert empty.weight.device == device
