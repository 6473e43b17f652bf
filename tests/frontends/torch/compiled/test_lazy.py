"""Lazy mode: recorded programs give what eager ones give, and are compiled once for each structure."""

import copy
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.hub.recorded import RecordedBackend

JAX = tg.device("jax")
pytestmark = pytest.mark.compiled  # a piece is compiled when it comes first


@pytest.fixture(autouse=True)
def jax_is_the_device():
    before = torch.accelerator.current_device_index()
    tg.set_default_device("jax")
    yield
    torch.accelerator.set_device_index(before)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


def _train(model, optimizer, x, y, steps, ask):
    opt = optimizer(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item() if ask else loss.detach())
    return [float(v) for v in losses]


@pytest.mark.parametrize("ask", [True, False], ids=["a value a step", "values at the end"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
@pytest.mark.slow_with("sgd")
def test_a_training_loop_compiles_once_whatever_the_learning_rate(optimizer, ask):
    model = _model()
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    theirs = copy.deepcopy(model)
    expected = _train(theirs, optimizer, x, y, 8, ask)
    model.to(JAX)
    with tg.lazy() as figures:
        losses = _train(model, optimizer, x.to(JAX), y.to(JAX), 8, ask)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for ours, right in zip(model.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.cpu(), right, rtol=1e-4, atol=1e-5)
    assert figures.programs <= 3  # the first step makes the optimizer's state
    assert figures.runs >= 8


def test_nothing_runs_before_it_is_asked_for():
    a = torch.arange(6.0, device=JAX)
    with tg.lazy() as figures:
        b = (a * 2 + 1).sum()
        assert figures.runs == 0
        assert b.item() == 36
        assert figures.runs == 1
        assert b.item() == 36
        assert figures.runs == 1


def test_what_was_dropped_is_not_computed_and_not_kept():
    with tg.lazy():
        a = torch.ones(3, device=JAX)
        node = a.untyped_storage().cell.array
        ref = weakref.ref(node)
        b = a + 1
        del a, node
        assert ref() is None
        assert b.tolist() == [2, 2, 2]


def test_python_numbers_are_inputs():
    a = torch.ones(4, device=JAX)
    with tg.lazy() as figures:
        for k in range(5):
            assert (a * (k + 0.5) + k).sum().item() == 4 * (2 * k + 0.5)
    assert figures.programs == 1


def test_views_and_writes_are_pytorchs():
    def program(x):
        v = x.t()[1:]
        v.mul_(3)
        x[0, 1:] = -1
        x.view(-1)[::2].add_(v.sum())
        w = x[:, 1]
        w[x[:, 0] > 0] = 7
        return x, v, w, x.unique()

    x = torch.arange(12.0).reshape(3, 4)
    expected = program(x.clone())
    given = x.to(JAX)
    with tg.lazy():
        made = program(given)
    for ours, right in zip(made, expected, strict=True):
        assert ours.stride() == right.stride()
        assert torch.equal(ours.cpu(), right)
    assert torch.equal(given.cpu(), expected[0])


def test_random_numbers_are_those_of_eager_mode():
    def program():
        torch.manual_seed(3)
        x = torch.randn(5, device=JAX)
        return [nn.functional.dropout(x, 0.5), torch.rand(3, device=JAX), torch.randperm(6, device=JAX)]

    eager = [t.cpu() for t in program()]
    for _ in range(2):
        with tg.lazy():
            recorded = program()
        for ours, right in zip(recorded, eager, strict=True):
            assert torch.equal(ours.cpu(), right)


def test_tensors_go_in_and_out():
    before = torch.ones(3, device=JAX)
    with tg.lazy():
        inside = before + 1
        before.mul_(5)
        array = tg.to_backend_array(inside)
        exported = np.from_dlpack(before)
        before.add_(1)
        assert type(array).__module__.startswith("jax")
        assert exported.tolist() == [5, 5, 5]  # JAX's arrays never change
    assert (inside + before).tolist() == [8, 8, 8]
    assert not isinstance(inside.untyped_storage().cell.backend, RecordedBackend)


def test_host_arrays_are_read_when_they_are_passed():
    host = torch.zeros(100)
    with tg.lazy():
        moved = host.to(JAX) + 1
        scalar = torch.tensor(2.0)
        scaled = moved * scalar
        host.fill_(9)
        scalar.fill_(9)
        assert scaled.sum().item() == 200


def test_an_index_out_of_range_is_reported_when_the_program_runs():
    table = torch.randn(4, 2, device=JAX)
    with pytest.raises(IndexError) as caught, tg.lazy():
        rows = table[torch.tensor([0, 4], device=JAX)]
        rows.sum().item()
    assert "recorded before this line" in caught.value.__notes__[0]
    assert table.sum().isfinite().item()
    with tg.lazy():  # nothing of it is left
        assert (table * 0).sum().item() == 0


def test_shapes_are_refused_at_once():
    with tg.lazy(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.ones(2, 3, device=JAX) @ torch.ones(2, 3, device=JAX)


def test_an_interrupt_loses_nothing(monkeypatch):
    with tg.lazy():
        a = torch.ones(3, device=JAX)
        a.add_(1)
        xp = a.untyped_storage().cell.backend
        compile_ = xp.inner.compile

        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(xp.inner, "compile", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            a.tolist()
        monkeypatch.setattr(xp.inner, "compile", compile_, raising=False)
        assert a.tolist() == [2, 2, 2]
    assert a.tolist() == [2, 2, 2]


def test_an_exception_leaves_lazy_mode_with_every_value():
    a = torch.ones(3, device=JAX)
    with pytest.raises(ZeroDivisionError), tg.lazy():
        a.add_(1)
        1 / 0  # noqa: B018
    assert a.tolist() == [2, 2, 2]


def test_compiled_functions_and_lazy_mode():
    @tg.jit
    def double(x):
        return x * 2

    a = torch.ones(3, device=JAX)
    with tg.lazy(), tg.lazy():  # the second one has nothing to do
        assert double(a + 1).tolist() == [4, 4, 4]
    assert double(a).tolist() == [2, 2, 2]

    @tg.jit
    def inside(x):
        with tg.lazy():
            return x + 1

    with pytest.raises(RuntimeError, match=r"tg\.lazy\(\) inside a function compiled by tg\.jit"):
        inside(a)


def test_inference_runs_at_the_end_of_each_forward_pass():
    model = _model().eval()
    x = torch.randn(5, 6)
    expected = model(x)
    model.to(JAX)
    given = x.to(JAX)
    with tg.lazy() as figures, torch.no_grad():
        made = [model(given) for _ in range(4)]
    assert figures.runs == 4
    assert figures.programs <= 2  # the first run may make constants that later ones find
    for out in made:
        torch.testing.assert_close(out.cpu(), expected)


def test_numpy_runs_at_once():
    tg.set_default_device("numpy")
    a = torch.ones(3, device=tg.device("numpy"))
    with tg.lazy() as figures:
        assert (a + 1).tolist() == [2, 2, 2]
    assert figures.operations == 0


def test_storages_without_an_array_stay_so():
    t = torch.ones(2, device=JAX)
    cell = t.untyped_storage().cell
    cell.array = None
    with tg.lazy():
        assert (torch.ones(2, device=JAX) + 1).tolist() == [2, 2]
    assert cell.array is None


def test_quantised_weights_go_in_and_out():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).to(tg.device("jax"))
    x = torch.randn(5, 8).to(tg.device("jax"))
    tg.quantize_(model, "int8_dynamic", filter="0")
    with torch.no_grad():
        with tg.lazy():
            first = model(x)
            tg.quantize_(model, "int8_static", filter="2", calibrate=[x])
            second = model(x)
        assert model[2].weight.is_graft_quantized
        torch.testing.assert_close(second.cpu(), model(x).cpu())
        torch.testing.assert_close(second.cpu(), first.cpu(), rtol=0.1, atol=0.2)
