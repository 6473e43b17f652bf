"""`tg.jit` where shapes change: new signatures run uncompiled until they recur."""

import copy
import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.frontends.torch.recurring import RecurringWarning


@pytest.fixture(autouse=True)
def tiered():
    with tg.eager("tiered"):
        yield


@pytest.fixture
def device():
    return tg.device("jax")


def _step(model, compile):
    opt = torch.optim.AdamW(model.parameters(), 0.05)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return tg.jit(step, compile=compile)


def test_training_gives_the_same_whatever_is_compiled(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 1)).to(device)
    other = copy.deepcopy(model)
    xs = [torch.randn(n, 4, device=device) for n in (3, 4, 4, 5, 3)]
    losses = []
    for m, compile in ((model, "recurring"), (other, "first")):
        torch.manual_seed(1)
        step = _step(m, compile)
        losses.append([step(x).item() for x in xs])
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=1e-6)
    for ours, right in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.cpu(), right.cpu(), rtol=1e-4, atol=1e-5)


def test_a_signature_is_compiled_when_it_recurs(device):
    f = tg.jit(lambda x: x * 2)
    done = []
    for n in (1, 2, 2, 2, 3, 3, 4, 4, 4, 1):
        assert f(torch.ones(n, device=device)).tolist() == [2.0] * n
        done.append((f.report.traces, f.report.cold))
    assert done == [(1, 0), (1, 1), (2, 1), (2, 1), (2, 2), (3, 2), (3, 3), (3, 4), (4, 4), (4, 4)]
    assert "10 calls, 4 of them uncompiled" in str(tg.explain(f, torch.ones(2, device=device)))


def test_at_the_first_call_where_that_is_asked_for_and_where_there_is_no_tier(device):
    f = tg.jit(lambda x: x * 2, compile="first")
    for n in range(3):
        f(torch.ones(n, device=device))
    assert (f.report.traces, f.report.cold) == (3, 0)
    g = tg.jit(lambda x: x * 2)
    with tg.eager("compiled"):
        for n in range(3):
            g(torch.ones(n, device=device))
    assert (g.report.traces, g.report.cold) == (3, 0)
    with pytest.raises(ValueError, match="'first' or 'recurring', not 'never'"):
        tg.jit(lambda x: x, compile="never")


def test_what_keeps_changing_is_said_once(device):
    @tg.jit
    def total(batch, scale=1):
        return batch["ids"].sum() * scale

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for n in range(1, 40):
            assert total({"ids": torch.ones(2, n, device=device)}).item() == 2 * n
    (warning,) = [w for w in found if issubclass(w.category, RecurringWarning)]
    assert "argument batch['ids']: shape (2, 1), shape (2, 2)" in str(warning.message)
    assert "pad to a few sizes" in str(warning.message)
    assert warning.filename == __file__
    assert (total.report.traces, total.report.cold) == (1, 38)  # no error after 32


def test_compiled_functions_inside_run_cold_too(device):
    inner = tg.jit(lambda x: x + 1)
    outer = tg.jit(lambda x: inner(x) * 2)
    for n in (1, 2):
        assert outer(torch.ones(n, device=device)).tolist() == [4.0] * n
    assert (outer.report.traces, outer.report.cold, inner.report.traces) == (1, 1, 0)


def test_a_gradient_outside(device):
    w = torch.ones(3, device=device, requires_grad=True)
    f = tg.jit(lambda x: (x * w).sum())
    for n in (1, 2, 2):
        w.grad = None
        f(torch.full((n, 3), 2.0, device=device)).backward()
        assert w.grad.tolist() == [2.0 * n] * 3
