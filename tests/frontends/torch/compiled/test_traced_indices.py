"""Indices whose values a traced function does not know: integers without axes, and masks."""

import pytest
import torch
from torch.nn import functional as F

import tensorgraft as tg

pytestmark = pytest.mark.sampled


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def agree(fn, device, *arguments, **tolerance):
    """A function gives on the CPU what it gives compiled, whatever integer comes."""
    compiled = tg.jit(fn)
    for k in (1, 2, -1):
        theirs = fn(*(a.clone() for a in arguments), torch.tensor(k))
        ours = compiled(*(a.to(device) for a in arguments), torch.tensor(k, device=device))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.cpu(), b, **tolerance)
    assert compiled.report.traces <= 1


def read(x, i, p):
    return [
        x[p], x[:, p], x[..., p], x[p, :, p], x[0, p], x[p, 1:, None], x[None, p], x[p, i], x[:, i, p], x[p, 0],
        x.select(1, p), torch.select(x, 2, p), torch.index_select(x, 0, p.abs()), x[1:][p], x[p][p], x[p.int()],
    ]  # fmt: skip


def test_an_integer_without_axes_chooses(device):
    agree(read, device, drawn(4, 4, 5), torch.tensor([2, 0]))


def set_to_a_number(x, v, p):
    x[p] = 7.0


def set_a_column(x, v, p):
    x[:, p] = v


def add_in_place(x, v, p):
    x[p] += 1


def set_a_part(x, v, p):
    x[p, 1:] = v[1:]


def set_beside_a_list(x, v, p):
    x[p, [0, 2]] = 3.0
    x[[0, 2], p] = 4.0


def write_the_row(x, v, p):
    x[p].fill_(9.0)
    x.select(1, p).mul_(2)
    x[p][1:] = 5.0


def write_both(x, v, p):
    row = x[p]
    row += 1
    x[1] *= 2
    row.mul_(3)
    x.add_(1)
    x[0] = row


def narrow(x, v, p):
    x.narrow(0, p.abs(), 2).add_(1)


WRITES = [set_to_a_number, set_a_column, add_in_place, set_a_part, set_beside_a_list, write_the_row, write_both, narrow]


@pytest.mark.parametrize("write", WRITES, ids=lambda fn: fn.__name__)
def test_what_an_integer_without_axes_chooses_is_written(write, device):
    def run(x, v, p):
        x = x.clone()
        write(x, v, p)
        return [x]

    agree(run, device, drawn(4, 4), torch.arange(4.0))


def test_gradients_of_rows(device):
    def loss(w, v, p):
        b = w * 2
        b[p] = v
        b[p] += 1
        b[:, p] *= v[0]
        b[p - 1].mul_(v)
        return b.sum() + (w[p] ** 2).sum() + w[:, p].exp().sum()

    def gradients(run, where, k):
        w, v = (t.to(where).requires_grad_() for t in (drawn(4, 4), drawn(4)))
        run(w, v, torch.tensor(k, device=where)).backward()
        return w.grad.cpu(), v.grad.cpu()

    run = tg.jit(loss)
    for k in (1, 2):
        for ours, theirs in zip(gradients(run, device, k), gradients(loss, "cpu", k), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_cache_is_written_step_by_step(device):
    def steps(where, wrap):
        cache, at = torch.zeros(2, 5, 3, device=where), torch.tensor(0, device=where)

        def step(x):
            cache[:, at] = x
            seen = cache * (torch.arange(5, device=where) <= at)[None, :, None]
            at.add_(1)
            return seen.sum(1)

        step = wrap(step)
        return [step(drawn(2, 3).to(where) * k).cpu() for k in range(3)]

    torch.testing.assert_close(steps(device, tg.jit), steps("cpu", lambda fn: fn))


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_a_row_with_a_history_is_not_used_after_its_tensor_was_written(backend):
    def run(w, p):
        row = w[p]
        with torch.no_grad():
            w.mul_(2)
        return row * 1

    device = tg.device(backend)
    with pytest.raises(tg.TracedValueError, match=r"(?s)written afterwards.*x\[i\]\.clone"):
        tg.jit(run)(drawn(3, 2).to(device).requires_grad_(), torch.tensor(1, device=device))


# ---- masks -----------------------------------------------------------------------------------------------------------

SELECTIONS = {
    "mean": lambda x, t, m, k: x[m].mean(),
    "sum": lambda x, t, m, k: t[m].sum(),
    "rows": lambda x, t, m, k: t[m].mean(0),
    "greatest": lambda x, t, m, k: x[m].max() + t[m].amin(),
    "var": lambda x, t, m, k: t[m].var(0, unbiased=False) + x[m].std(),
    "apart": lambda x, t, m, k: ((x[m] - x[m].mean()) ** 2).sum().sqrt(),
    "norm": lambda x, t, m, k: x[m].norm(),
    "count": lambda x, t, m, k: (x[m] > 0).sum() + (x[m] > 0).any(),
    "mse": lambda x, t, m, k: F.mse_loss(x[m], t[:, 0][m]),
    "cross entropy": lambda x, t, m, k: F.cross_entropy(t[m], k[m], label_smoothing=0.1),
    "accuracy": lambda x, t, m, k: (k[m] == t.argmax(-1)[m]).float().mean(),
    "masked_select": lambda x, t, m, k: torch.masked_select(t, t > 0).double().mean(),
    "of nothing": lambda x, t, m, k: x[x > 100].sum(),
    "logarithm": lambda x, t, m, k: x[x > 0].log().sum(),
    "with a row": lambda x, t, m, k: (t[m] * t[0]).sum(),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_a_mask_chooses_is_reduced(name, device):
    def gradients(where, wrap):
        x, t = (a.to(where).requires_grad_() for a in (drawn(6), drawn(6, 3)))
        out = wrap(SELECTIONS[name])(x, t, (drawn(6) > -0.5).to(where), torch.tensor([0, 1, 2] * 2, device=where))
        if out.requires_grad:
            out.sum().backward()
        return [a if a is None else a.detach().cpu() for a in (out, x.grad, t.grad)]

    for ours, theirs in zip(gradients(device, tg.jit), gradients("cpu", lambda fn: fn), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)


def test_what_a_mask_chooses_is_written(device):
    def write(x, t, p):
        x, t, mask = x.clone(), t.clone(), x > 0
        x[mask] *= 2
        x[mask] = x[mask].sqrt() + 1
        t[mask] += x[0]
        t[mask] = t[mask] / t[mask].abs()
        x[x < 0] = 1.0
        return x, t

    agree(write, device, drawn(6), drawn(6, 3))


@pytest.mark.parametrize(
    "fn", [lambda x: x[x > 0], lambda x: x[x > 0].shape, lambda x: [x[x > 0] + x], lambda x: len(x[x > 0])]
)
@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_what_needs_the_count_is_refused(fn, backend):
    with pytest.raises(tg.TracedValueError, match=r"`.*x\[x > 0\].*` needs the values of a bool tensor"):
        tg.jit(fn)(torch.ones(3, device=tg.device(backend)))
