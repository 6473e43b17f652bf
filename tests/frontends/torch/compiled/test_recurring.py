"""`tg.jit` and lazy mode where shapes change: what is new runs uncompiled until it recurs."""

import copy
import warnings

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.frontends.torch.compiled import lazy
from tensorgraft.frontends.torch.compiled.guards.recurring import RecurringWarning
from tensorgraft.frontends.torch.graph import program as graph_program
from tensorgraft.hub.recorded import backend as recorded
from tensorgraft.hub.recorded import pieces


@pytest.fixture(autouse=True)
def tiered():
    before = torch.accelerator.current_device_index()
    with tg.eager("tiered"):
        yield
    torch.accelerator.set_device_index(before)


@pytest.fixture(params=["jax", "tensorflow"])
def backend(request):
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture
def device(backend):
    return tg.device(backend)


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
    with pytest.raises(ValueError, match="'first', 'recurring' or 'background', got 'never'"):
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


class Cache:
    def __init__(self, device):
        self.keys, self.length = None, torch.zeros((), device=device)

    def update(self, x):
        self.length += 1
        if self.keys is None:
            self.keys = torch.zeros(4, 3, device=x.device)
        self.keys += x
        return self.keys


def test_a_call_that_creates_its_cache_is_compiled_when_it_comes_back(device):
    def fn(x, cache):
        return cache.update(x) * 2

    run = tg.jit(fn)
    x = torch.arange(3.0, device=device)
    counts = []
    for _ in range(3):
        ours, theirs = Cache(device), Cache(device)
        for _ in range(4):
            assert torch.equal(run(x, ours), fn(x, theirs)) and torch.equal(ours.keys, theirs.keys)
        counts.append((run.report.traces, run.report.cold))
    # cold: the first call of the first cache, which is traced, and the first call with keys
    assert counts == [(2, 2)] * 3 and not run.report.switched
    assert tg.explain(run, x, Cache(device)).waits == ""


def test_a_deferred_call_says_so_and_prints_once(device, capsys):
    def fn(x, state):
        if state.get("first", True):
            state["first"] = False
            print("prints")
        return x + 1

    run, x = tg.jit(fn), torch.ones(3, device=device)
    assert run(x, {}).tolist() == [2.0] * 3
    assert capsys.readouterr().out == "prints\n"

    def quiet(x, state):
        state["calls"] = state.get("calls", 0) + 1
        return x * state["calls"]

    run = tg.jit(quiet)
    assert run(x, {}).tolist() == [1.0] * 3 and run.report.cold == 1
    assert "next call" in tg.explain(run, x, {}).waits
    state = {}
    assert run(x, state).tolist() == [1.0] * 3 and state == {"calls": 1} and run.report.cold == 1


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


on_jax = pytest.mark.parametrize("backend", ["jax"], indirect=True)  # lazy mode is of backends that tell shapes


# ---- lazy mode -------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    """Pieces are recorded once they have been whole twice."""
    monkeypatch.setattr(pieces, "TIMES", 2)
    monkeypatch.setattr(recorded, "Pieces", pieces.Pieces)
    lazy._recorded.cache_clear()
    yield
    lazy._recorded.cache_clear()


def _train(model, xs):
    opt = torch.optim.AdamW(model.parameters(), 0.05)
    losses = []
    for x in xs:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


@on_jax
@pytest.mark.parametrize("sizes", [[4] * 6, [4, 4, 4, 3, 4, 4, 4, 3, 3, 4], range(1, 12)], ids=["one", "two", "many"])
def test_lazy_training_gives_what_eager_training_gives(backend, device, soon, sizes):
    tg.set_default_device(backend)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 1)).to(device)
    model = model.eval() if 1 in sizes else model  # a batch of one has no variance
    other = copy.deepcopy(model)
    whole = torch.randn(20, 4, device=device)
    xs = [whole[i : i + n] for i, n in enumerate(sizes)]
    torch.manual_seed(1)
    right = _train(other, xs)
    torch.manual_seed(1)
    with tg.lazy() as figures:
        ours = _train(model, xs)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(right), rtol=1e-4, atol=1e-6)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-4, atol=1e-5)
    many = len(set(sizes)) > 2
    assert (figures.programs == 0) == many
    assert figures.cold > 0


@on_jax
def test_lazy_records_from_the_first_operation_where_that_is_asked_for(backend, device):
    tg.set_default_device(backend)
    a = torch.ones(3, device=device)
    with tg.lazy(compile="first") as figures:
        assert (a + 1).tolist() == [2.0] * 3
    assert (figures.programs, figures.cold) == (1, 0)
    with pytest.raises(ValueError, match="'first' or 'recurring', got 'last'"):
        tg.lazy(compile="last")


@on_jax
def test_lazy_errors_of_values_come_at_once_from_what_is_not_recorded(backend, device):
    tg.set_default_device(backend)
    table = torch.ones(3, 2, device=device)
    with tg.lazy(), pytest.raises(IndexError):
        nn.functional.embedding(torch.tensor([5], device=device), table)


def test_what_pieces_have_in_common_is_not_recorded():
    found = pieces.Pieces()
    for i in range(pieces.TIMES + 2 * pieces.RARE):
        assert [found.is_hot(op) for op in ("begin", ("shape", i), "end")] == [False] * 3
        found.end()
    for _ in range(pieces.TIMES):
        assert [found.is_hot(op) for op in ("begin", "same", "end")] == [False] * 3
        found.end()
    assert [found.is_hot(op) for op in ("begin", "same", "end")] == [False, True, True]


def test_what_is_rarely_new_is_recorded_to_where_it_differs():
    found = pieces.Pieces()
    for _ in range(pieces.TIMES + pieces.RARE):
        [found.is_hot(op) for op in "abc"]
        found.end()
    assert [found.is_hot(op) for op in "abx"] == [True, True, False]
    found.end()
    assert [found.is_hot(op) for op in "abc"] == [True] * 3


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def test_sizes_of_a_dynamic_graph_are_compiled_when_they_recur(monkeypatch, backend):
    made = []
    program = graph_program.FxProgram
    monkeypatch.setattr(graph_program, "FxProgram", lambda piece, values: made.append(piece) or program(piece, values))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.BatchNorm1d(5), nn.Linear(5, 2))
    theirs = copy.deepcopy(model)
    run = torch.compile(model, backend="tensorgraft", options={"device": backend}, dynamic=True)
    counts = []
    for n in (3, 4, 5, 5):
        x = torch.randn(n, 4)
        for m, call in ((model, run), (theirs, theirs)):
            m.zero_grad()
            call(x).square().mean().backward()
        for ours, right in zip(model.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, right.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
        counts.append(len(made))
    assert counts == [2, 2, 2, 4]  # forward and backward
