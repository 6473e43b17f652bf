"""Quantised tensors in compiled functions: as arguments, closures, results, and in backward passes outside."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorgraft as tg

BACKENDS = ["numpy", "torch", "jax", "tensorflow"]
on_each = pytest.mark.parametrize("backend", BACKENDS)


def drawn(backend, *shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(tg.device(backend))


def weight(backend, scheme="int4_per_group_32"):
    return tg.quantize(drawn(backend, 16, 64) * 0.05, scheme)


def same(got, want, quantised=True):
    assert got.is_graft_quantized == quantised
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    assert torch.equal(tg.dequantize(got).cpu(), tg.dequantize(want).cpu())


def close(got, want):
    torch.testing.assert_close(got.detach().cpu(), want.detach().cpu(), rtol=1e-4, atol=1e-5)


@on_each
def test_results(backend):
    w, x = weight(backend), drawn(backend, 8, 64, seed=1)
    dense = tg.dequantize(w)

    def several(w, x):
        copied = w.clone()
        return copied, copied.t()[3:9], torch.cat([w, w], 1), w.t()[3:9], tg.quantize(x, "int8_per_channel"), w.sum(), w

    run = tg.jit(several)
    for _ in range(2):
        got = run(w, x)
        wanted = dense, dense.t()[3:9], torch.cat([dense, dense], 1), dense.t()[3:9], tg.quantize(x, "int8_per_channel")
        for one, want in zip(got, wanted, strict=False):
            same(one, want)
        close(got[5], dense.sum())
        assert got[6] is w
        with torch.no_grad():
            got[0].mul_(2)  # what shares a storage does so after the call
            same(got[1], tg.dequantize(got[0]).t()[3:9])
            same(w, dense)


@on_each
def test_writes(backend):
    w, x = weight(backend), drawn(backend, 16, 64, seed=1)
    other, before = w.clone(), tg.dequantize(w)

    def write(w, x):
        with torch.no_grad():
            w.copy_(x)
            w[2:4] = 1.0
            copied = w.clone().mul_(3.0)
        return w[1:].t(), copied

    run = tg.jit(write)
    for k in range(2):
        got, want = run(w, x * (k + 1)), write(other, x * (k + 1))
        same(w, other)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    assert not torch.equal(tg.dequantize(w).cpu(), before.cpu())


@on_each
def test_other_schemes_and_closures_are_traced_anew(backend):
    x = drawn(backend, 5, 64, seed=1)
    run = tg.jit(lambda x, w: x @ w.t())
    for scheme in ("int4_per_group_32", "int8_per_channel", None, "int4_per_group_32"):
        w = drawn(backend, 16, 64) if scheme is None else weight(backend, scheme)
        close(run(x, w), x @ w.t())
    w = weight(backend)
    run = tg.jit(lambda x: (x @ w.t(), w.t()))
    for _ in range(2):
        close(run(x)[0], x @ w.t())
        same(run(x)[1], tg.dequantize(w).t())
        with torch.no_grad():
            w.mul_(2)


@on_each
@pytest.mark.parametrize("scheme", ["int4_per_group_32", "int8_dynamic"])
def test_backward_passes_outside(backend, scheme):
    w = weight(backend, scheme)
    x = drawn(backend, 5, 64, seed=1).requires_grad_()

    def loss(x, w):
        return (x @ w.t()).square().sum()

    run = tg.jit(loss)
    (want,) = torch.autograd.grad(loss(x, w), x)
    for _ in range(2):
        (got,) = torch.autograd.grad(run(x, w), x)
        close(got, want)
    if scheme == "int8_dynamic":
        return
    second = [torch.autograd.grad(f(x, w).pow(2), x, create_graph=True)[0].sum() for f in (run, loss)]
    got, want = (torch.autograd.grad(s, x)[0] for s in second)
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-4, atol=1e-4)


@on_each
def test_checkpoints(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).to(tg.device(backend))
    tg.quantize_(model, "int8_per_channel")
    x = drawn(backend, 5, 64).requires_grad_()

    def loss(x):
        return checkpoint(model, x, use_reentrant=False).square().sum()

    def step(x):
        made = loss(x)
        made.backward()
        return made

    (want,) = torch.autograd.grad(model(x).square().sum(), x)
    for run in (loss, tg.jit(loss)):
        close(torch.autograd.grad(run(x), x)[0], want)
    tg.jit(step)(x)
    close(x.grad, want)


@on_each
def test_training_around_tied_weights(backend):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(32, 64), nn.LayerNorm(64), nn.Linear(64, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.norm(self.embed(i)))

    torch.manual_seed(0)
    model = Tied().to(tg.device(backend))
    tg.quantize_(model, "int4_per_group_32")
    assert model.embed.weight is model.head.weight and model.embed.weight.is_graft_quantized
    other = copy.deepcopy(model)
    assert other.embed.weight is other.head.weight and other.embed.weight.is_graft_quantized
    i = torch.arange(6, device=tg.device(backend))

    def stepping(model):
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)

        def step():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(i), i)
            loss.backward()
            optimizer.step()
            return loss

        return step

    compiled, plain = tg.jit(stepping(model)), stepping(other)
    for _ in range(3):
        close(compiled(), plain())
    close(model.norm.weight, other.norm.weight)


@on_each
def test_functional_calls(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).to(tg.device(backend))
    tg.quantize_(model, {"0": "int4_per_group_32", "*": None})
    x = drawn(backend, 5, 64)
    trained = {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}
    fixed = {k: v for k, v in model.named_parameters() if not v.requires_grad}

    def loss(trained):
        return torch.func.functional_call(model, (trained, fixed), (x,)).square().sum()

    model(x).square().sum().backward()
    for found in (torch.func.grad(loss)(trained), tg.jit(torch.func.grad(loss))(trained)):
        for name, gradient in found.items():
            close(gradient, model.get_parameter(name).grad)
    w = fixed["0.weight"]
    dense = tg.dequantize(w)
    close(torch.vmap(lambda row: w @ row)(x), x @ dense.t())
    close(torch.vmap(lambda row: row @ x[0])(w), dense @ x[0])
    close(torch.func.jacrev(lambda x: w @ x)(x[0]), dense)
