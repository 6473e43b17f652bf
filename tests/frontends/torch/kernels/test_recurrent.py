"""Recurrent networks on the device against CPU PyTorch: every way to call them, results, states and gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpad_sequence

import tensorgraft as tg
import tensorgraft.frontends.torch as front

pytestmark = pytest.mark.sampled

MODULES = {
    "rnn": lambda: nn.RNN(4, 5, 2),
    "rnn of relu": lambda: nn.RNN(4, 5, nonlinearity="relu", bidirectional=True),
    "lstm": lambda: nn.LSTM(4, 5, 2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(4, 5, 2, proj_size=3, bidirectional=True, batch_first=True),
    "lstm without bias": lambda: nn.LSTM(4, 5, bias=False),
    "lstm with dropout": lambda: nn.LSTM(4, 5, 2, dropout=1.0),  # between the layers everything is dropped
    "gru": lambda: nn.GRU(4, 5, 2, bidirectional=True, batch_first=True),
    "gru without bias": lambda: nn.GRU(4, 5, bias=False),
}
CALLS = ("plain", "states", "packed", "packed in order", "one sample")
# backends that compile see the same kernels, in fewer programs
CASES = [(name, how, "numpy") for name in MODULES for how in CALLS]
CASES += [(name, how, "jax") for name, how in (("rnn", "states"), ("lstm projected", "packed"), ("gru", "plain"))]


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def tensors(made):
    if isinstance(made, torch.Tensor):
        return [made]
    return [t for x in made if x is not None for t in tensors(x)]


def called(module, how, where):
    """Results, and gradients of what goes in and of the parameters."""
    g = torch.Generator().manual_seed(0)
    module = copy.deepcopy(module).to(where)
    first = module.batch_first
    x = torch.randn((3, 6, 4) if first else (6, 3, 4), generator=g).to(where).requires_grad_()
    given, states = x, []
    if how == "states":
        layers, size = module.num_layers * (2 if module.bidirectional else 1), module.proj_size or module.hidden_size
        sizes = [size, module.hidden_size] if isinstance(module, nn.LSTM) else [size]
        states = [torch.randn((layers, 3, n), generator=g).to(where).requires_grad_() for n in sizes]
    elif how == "packed":
        given = pack_padded_sequence(x, torch.tensor([6, 2, 4]), batch_first=first, enforce_sorted=False)
    elif how == "packed in order":
        given = pack_padded_sequence(x, [6, 4, 2], batch_first=first)
    elif how == "one sample":
        given = x[0] if first else x[:, 0]
    made = module(given, *[tuple(states) if len(states) > 1 else states[0]] if states else [])
    results = tensors(made)
    if how.startswith("packed"):
        padded = pad_packed_sequence(made[0], batch_first=first, padding_value=-1.0)
        results += [*padded, *unpad_sequence(*padded, batch_first=first)]
    sum(t.square().sum() for t in results if t.is_floating_point()).backward()
    return results, [t.grad for t in (x, *states, *module.parameters())]


def check(expected, got):
    for e, g in zip(expected, got, strict=True):
        assert (e is None) == (g is None)
        if e is not None:
            assert g.dtype == e.dtype and g.stride() == e.stride()
            torch.testing.assert_close(g.detach().cpu(), e.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("name", "how", "backend"), CASES)
def test_recurrent(name, how, backend):
    torch.manual_seed(0)
    module = MODULES[name]()
    before = front.fallbacks()
    got = called(module, how, tg.device(backend))
    assert front.fallbacks() == before
    for e, g in zip(called(module, how, "cpu"), got, strict=True):
        check(e, g)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_cells(kind, batch, device):
    torch.manual_seed(0)
    cell = kind(4, 5)
    x, h = torch.randn(*batch, 4), torch.randn(*batch, 5)
    runs = []
    for where in ("cpu", device):
        mine = copy.deepcopy(cell).to(where)
        a, b = (t.clone().to(where).requires_grad_() for t in (x, h))
        made = tensors(mine(a, (b, b * 2) if kind is nn.LSTMCell else b)) + tensors(mine(a))
        sum(t.square().sum() for t in made).backward()
        runs.append([*made, a.grad, b.grad, *(p.grad for p in mine.parameters())])
    check(*runs)


def test_dropout_between_layers(device):
    """As often as it should, none in evaluation, and none after the last layer."""
    torch.manual_seed(0)
    module = nn.GRU(4, 500, 2, dropout=0.3).to(device)
    for name, p in module.named_parameters():
        nn.init.zeros_(p) if "l1" in name else nn.init.ones_(p)
    module.weight_ih_l1.data[1000:] = torch.eye(500)  # the second layer's new gate sees the first layer's results
    x = torch.ones(1, 1, 4, device=device)
    kept = module(x)[0].ne(0).float().mean().item()
    assert kept == pytest.approx(0.7, abs=0.1)
    assert module.eval()(x)[0].ne(0).all()


def test_packed_sequences_move(device):
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = packed.to(device)
    assert moved.data.device == device and moved.batch_sizes.device.type == "cpu"
    assert torch.equal(moved.cpu().data, packed.data) and moved.double().data.dtype == torch.float64
    module = nn.LSTM(2, 3).to(device)
    with pytest.raises(RuntimeError, match="same device"):
        module(packed)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        module(torch.ones(2, 2, 7, device=device))


def test_under_jit():
    device = tg.device("jax")
    torch.manual_seed(0)
    module = nn.LSTM(4, 5, 2, bidirectional=True).to(device)
    x = torch.randn(6, 3, 4).to(device)

    def step(x):
        module.zero_grad()
        out, (h, _) = module(x)
        loss = F.mse_loss(out, torch.zeros_like(out)) + h.square().sum()
        loss.backward()
        return loss.detach(), *(p.grad for p in module.parameters())

    for e, g in zip(step(x), tg.jit(step)(x), strict=True):
        torch.testing.assert_close(g.cpu(), e.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.slow_with("lstm without bias", "lstm with dropout", "gru without bias", "rnn of relu")
def test_a_compiled_layer_is_one_loop(name):
    """The same results and gradients, and a program that does not grow with the sequence."""
    device = tg.device("jax")
    torch.manual_seed(0)
    here = MODULES[name]()
    there = copy.deepcopy(here).to(device)

    def step(module, x):
        y, states = module(x)
        loss = y.sin().sum() + sum((s * s).sum() for s in tensors([states]))
        loss.backward()
        return loss

    run = tg.jit(lambda x: step(there, x))
    for length in (6, 24):
        x = torch.randn(3, length, 4) if here.batch_first else torch.randn(length, 3, 4)
        here.zero_grad()
        there.zero_grad()
        leaf, ours = x.clone().requires_grad_(), x.to(device).requires_grad_()
        torch.testing.assert_close(run(ours).cpu(), step(here, leaf).detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(there.parameters(), here.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-4)
    short, long = run.report.operations
    assert abs(long - short) <= 2  # how an argument lies in memory
