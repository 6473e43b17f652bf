"""`tg.jit(fn, guard_values=True)`: values that Python asks for choose among programs."""

import pytest
import torch
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.compiled  # what is traced, and when, is counted

DEVICE = "jax"


def tensor(*values):
    return torch.tensor(values, device=tg.device(DEVICE))


def test_branches_and_loops_by_value():
    @tg.jit(guard_values=True)
    def f(x, n, mask):
        if mask.any():
            x = x + 1
        for _ in range(int(n)):
            x = x * 2
        assert torch.equal(n, n)
        return x if bool((x > 3).all()) else -x

    def eager(x, n, mask):
        x = x + 1 if mask.any() else x
        x = x * 2 ** int(n)
        return x if bool((x > 3).all()) else -x

    calls = [([1.0, 2.0], 2, [True]), ([1.0, 2.0], 2, [False]), ([0.1, 2.0], 2, [True]), ([3.0, 4.0], 0, [True])]
    for _ in range(2):
        for x, n, mask in calls:
            given = tensor(*x), tensor(n)[0], tensor(*mask)
            assert f(*given).tolist() == pytest.approx(eager(*(t.cpu() for t in given)).tolist())
    assert f.report.traces == 3  # one for each set of answers
    assert "a value that Python asks for is" in str(f.report.reasons[1])


def test_a_training_step_that_looks_at_its_buffers():
    """What is asked for before a write and after it; nothing is done twice."""

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.seen += 1
            y = self.layer(x)
            return y * 0.5 if self.seen > 2 else y

    found = []
    for where, wrap in (("cpu", lambda f: f), (tg.device(DEVICE), lambda f: tg.jit(f, guard_values=True))):
        torch.manual_seed(0)
        model = Counted().to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        x = torch.tensor([[1.0, 2.0]], device=where)
        losses = [run(x).item() for _ in range(4)]
        found.append((losses, model.seen.item(), model.layer.weight.flatten().tolist()))
    assert found[1][1] == found[0][1] == 4
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-5)


def test_what_stays_an_error():
    x = tensor(1.0, 2.0)
    with pytest.raises(tg.TracedValueError, match="needs the value of a float32 tensor"):
        tg.jit(lambda x: x * float(x.sum()), guard_values=True)(x)
    with pytest.raises(tg.TracedValueError, match="needs the value of a bool tensor"):
        branch = lambda x: x * 2 if x.sum() > 1 else x * 1  # noqa: E731
        tg.jit(lambda x: torch.cond(x.sum() > 0, branch, lambda x: x * 1, (x,)), guard_values=True)(x)
    with pytest.raises(tg.TracedValueError, match="needs the value of a bool tensor"):
        tg.jit(lambda x: x if x.sum() > 0 else -x)(x)


def test_masks_lists_and_sizes():
    def f(x, mask, sizes):
        rows = x[mask].sum(0)
        at = mask.nonzero()[:, 0]
        parts = torch.split(x, sizes.tolist())
        picked = torch.masked_select(x, mask[:, None])
        return rows, at, parts[0].mean(), torch.where(mask)[0] * 2, picked, x.new_zeros(int(sizes[0]))

    run = tg.jit(f, guard_values=True)
    x = torch.arange(8.0).reshape(4, 2)
    for mask, sizes in (([1, 0, 1, 1], [1, 3]), ([0, 0, 1, 0], [2, 2]), ([1, 0, 1, 1], [1, 3])):
        given = x, torch.tensor(mask).bool(), torch.tensor(sizes)
        for a, e in zip(run(*(t.to(tg.device(DEVICE)) for t in given)), f(*given), strict=True):
            assert a.tolist() == e.tolist()
    assert run.report.traces == 2


def test_arguments_are_looked_at_anew():
    """What a mask picks, and of what: an argument has values while it is traced, which are not those of later calls."""
    run = tg.jit(lambda x, mask: (x[mask].sum(0), torch.masked_select(x, mask[:, None])), guard_values=True)
    x = torch.arange(8.0).reshape(4, 2)
    for mask, scale in (([1, 0, 1, 1], 1), ([0, 0, 1, 0], 1), ([1, 0, 1, 1], 5)):
        given = x * scale, torch.tensor(mask).bool()
        for a, e in zip(run(*(t.to(tg.device(DEVICE)) for t in given)), run.fn(*given), strict=True):
            assert a.tolist() == e.tolist()


def test_a_check_in_every_layer_is_guessed():
    """A line that asks again: told the same at first, and looked at."""
    traces = []

    def f(x):
        traces.append(1)
        for k in range(6):
            x = x * 2 if (x < 9).all() else x - 1
            assert x.sum() < 1000 or k < 0
        return x

    run = tg.jit(f, guard_values=True)
    for start in (1.0, 20.0, 1.0):
        assert run(tensor(start)).tolist() == f(torch.tensor([start])).tolist()
    assert run.report.traces == 3  # the first one guessed wrong
    assert len(traces) - 3 < 8
    with pytest.raises(AssertionError):
        run(tensor(5000.0))
