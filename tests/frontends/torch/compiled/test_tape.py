"""Backward passes outside of compiled functions: `y = tg.jit(model)(x); y.sum().backward()`."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg

pytestmark = [pytest.mark.sampled, pytest.mark.filterwarnings("ignore:.*lazily.*")]


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * 2 * x * scale, (gradient * x * x).sum()


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return Doubled.apply(x, self.scale)


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 3)),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
    "function": lambda: nn.Sequential(nn.Linear(6, 4), Custom()),
    "frozen": lambda: nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_pytorchs(name, device):
    torch.manual_seed(0)
    here = MODELS[name]()
    there = copy.deepcopy(here).to(device)
    compiled = tg.jit(there)
    for _ in range(3):
        x = torch.randn(5, 6)
        found = []
        for model, run, data in ((here, here, x), (there, compiled, x.to(device))):
            model.zero_grad()
            leaf = data.clone().requires_grad_()
            out = run(leaf * 1.5)  # an argument with a history
            out.square().mean().backward()
            found.append([out, leaf.grad, *(p.grad for p in model.parameters()), *model.buffers()])
        for want, got in zip(*found, strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    if device == tg.device("jax"):
        assert compiled.report.traces == 1


def test_results_that_share_and_branches_that_do_not_matter(device):
    w = torch.tensor([1.0, 2.0]).to(device).requires_grad_()
    unused = torch.ones(2).to(device).requires_grad_()
    run = tg.jit(lambda x: {"a": (x * w).sin(), "whole": [x * 2, (unused * w)], "n": 3})
    out = run(torch.tensor([0.5, 1.0]).to(device))
    assert out["n"] == 3
    assert not out["whole"][0].requires_grad
    (out["a"].sum() + out["whole"][1].detach().sum()).backward()
    torch.testing.assert_close(w.grad.cpu(), torch.tensor([0.5, 1.0]) * torch.tensor([0.5, 2.0]).cos())
    assert unused.grad is None or not unused.grad.any()


def test_a_graph_is_used_once(device):
    w = torch.ones(3).to(device).requires_grad_()
    run = tg.jit(lambda: (w.exp() * 2).sum())
    loss = run()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(w.grad.cpu(), 4 * torch.ones(3).exp())
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_accumulation_over_calls_and_other_weights_later(device):
    torch.manual_seed(0)
    here = nn.Linear(4, 2)
    there = copy.deepcopy(here).to(device)
    run = tg.jit(lambda x: F.mse_loss(there(x).tanh(), x[:, :2]))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (here, there)]
    for _ in range(3):
        parts = torch.randn(3, 5, 4)
        first = sum(F.mse_loss(here(x).tanh(), x[:, :2]) for x in parts)
        second = sum(run(x.to(device)) for x in parts)
        for loss, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(second.detach().cpu(), first.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach(), rtol=1e-5, atol=1e-6)


def test_without_gradients_nothing_is_kept(device):
    model = nn.Linear(3, 3).to(device)
    run = tg.jit(model)
    x = torch.ones(2, 3).to(device)
    with torch.no_grad():
        assert not run(x).requires_grad
    assert run(x).requires_grad
    with torch.inference_mode():
        assert run(x).is_inference()


def test_a_loss_whose_backward_pass_ran_inside_has_a_history_that_is_used_up():
    w = torch.ones(3).to(tg.device("jax")).requires_grad_()

    @tg.jit
    def step(x):
        w.grad = None
        loss = (w * x).exp().sum()
        loss.backward()
        return loss

    loss = step(torch.ones(3).to(tg.device("jax")))
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_histories_from_outside_go_on_in_eager_code():
    w = torch.ones(3).to(tg.device("jax")).requires_grad_()
    x = w + w  # saves nothing: a second backward pass may go through it
    with pytest.warns(
        tg.transforms.UncompiledWarning, match=r"goes backward through the history \(grad_fn\) of an argument"
    ):
        tg.jit(lambda x: x.sum().backward())(x)
    with pytest.warns(
        tg.transforms.UncompiledWarning, match=r"uses a tensor from outside that has a grad_fn \(AddBackward0\)"
    ):
        tg.jit(lambda: (x * 2).sum())().backward()
    with pytest.warns(tg.transforms.UncompiledWarning, match="goes backward through the history"):
        (slope,) = tg.jit(lambda x: torch.autograd.grad((x + w).sum(), w))(w * 3)
    assert (w.grad.tolist(), slope.tolist()) == ([6] * 3, [4] * 3)


def test_a_backward_pass_inside_leaves_histories_from_outside_to_the_eager_function():
    w, x = torch.ones(3).to(tg.device("jax")).requires_grad_(), torch.ones(3).to(tg.device("jax"))
    old = w * 1  # a Python number: PyTorch's node can be used once

    def step(x):
        v = x - old
        v.sum().backward()
        return v

    with pytest.warns(tg.transforms.UncompiledWarning, match="of a tensor from outside"):
        assert tg.jit(step)(x).requires_grad
    assert w.grad.tolist() == [-1] * 3
    old = w * 2  # gradients that end at it leave its history alone
    gradient = tg.jit(lambda x: torch.autograd.grad((x * old).sum(), old)[0], compile="first")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tg.transforms.UncompiledWarning)
        assert [gradient(x * k).tolist() for k in (1, 3)] == [[1] * 3, [3] * 3]


def test_what_was_written_since_spoils_the_backward_pass(device):
    w = torch.ones(3).to(device).requires_grad_()

    def spoil():
        y = w * 2
        z = y.exp()
        with torch.no_grad():
            z.mul_(3)
        return z.sum()

    loss = tg.jit(spoil)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
