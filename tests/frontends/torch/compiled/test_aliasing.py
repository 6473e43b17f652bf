"""Compiled functions and memory: arguments, captured tensors and results that share storages, as in eager PyTorch."""

import pytest
import torch

import tensorgraft as tg


def numbers(where, *values):
    return torch.tensor(values or (1.0, 2.0, 3.0, 4.0), device=where)


def plain(where):
    p = numbers(where)
    return p, [p[:2], p[1:3], p]


def parameter(where):
    p = numbers(where).requires_grad_()
    return p, [p]


def detached(where):
    p = numbers(where).requires_grad_()
    return p, [p.detach()[1:3]]


def history(where):
    p = numbers(where).requires_grad_()
    return p, [p * 1]


def doubled(p, a, *rest):
    z = a * 2
    return z, z, z[1:], z.view(-1, 1)


def quietly(p, a):
    with torch.no_grad():
        a.mul_(3)
    return a.sum(), a


CASES = {
    "an argument is a view of what is captured": (detached, lambda p, v: (p * 2, v + 1)),
    "what is captured is written": (plain, lambda p, a, b, c: (p.mul_(2), b + 1)),
    "a view of what is captured is written": (plain, lambda p, a, b, c: (b.add_(10), p.sum())),
    "one of several arguments is written": (plain, lambda p, a, b, c: (a.add_(1), b * 1, c.sum())),
    "written through a view made inside": (plain, lambda p, a, b, c: (p[1:].copy_(p[:3] * 2), p.view(2, 2))),
    "results are views of arguments": (plain, lambda p, a, b, c: (a.view(2, 1), c[::2], c, c.view(2, 2).t(), a)),
    "results are views of each other": (plain, doubled),
    "the same with gradients": (parameter, doubled),
    "a leaf is written": (parameter, lambda p, a: a.mul_(3)),
    "a leaf is written without gradients": (parameter, quietly),
    "an argument comes back": (parameter, lambda p, a: (a, a.view(2, 2), a * 2, a.detach(), 3)),
    "an argument with a history comes back": (history, lambda p, a: (a, a.view(2, 2), a * 2)),
    "what is captured comes back": (plain, lambda p, a, b, c: (p[1:], p.view(2, 2))),
    "expanded": (plain, lambda p, a, b, c: (a[:1].expand(3), p[None].expand(2, 4))),
}


def seen(tensors):
    """Values, places in memory, who shares a storage with whom, gradients."""
    storages = {}
    found = []
    for t in tensors:
        if isinstance(t, torch.Tensor):
            storage = storages.setdefault(t.untyped_storage()._cdata, len(storages))
            gradient = t.grad.tolist() if t.is_leaf and t.grad is not None else None
            about = (t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf)
            t = (t.tolist(), storage, gradient, *about)
        found.append(t)
    return found, [next(j for j, p in enumerate(tensors) if p is t) for t in tensors]


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager_pytorch(name):
    make, fn = CASES[name]
    found = []
    for where, compiled in (("cpu", False), (tg.device("jax"), True)):
        p, args = make(where)
        run = (tg.jit if compiled else lambda f: f)(lambda *args, p=p: fn(p, *args))
        calls = []
        for _ in range(2):
            try:
                out = run(*args)
            except RuntimeError as error:
                calls.append(str(error))
                continue
            results = list(out) if isinstance(out, tuple) else [out]
            smooth = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn is not None]
            if smooth and make is parameter:
                sum(t.square().sum() for t in smooth).backward()
            calls.append(seen([*results, *args, p]))
        found.append(calls)
    assert found[0] == found[1]


def test_arguments_that_come_to_share_are_another_program():
    results = []
    for where, compiled in (("cpu", False), (tg.device("jax"), True)):
        run = (tg.jit if compiled else lambda f: f)(lambda a, b: (a.add_(1), b * 1))
        p, q = numbers(where), numbers(where)
        results.append([seen(run(p, q)), seen(run(p, p)), seen(run(q, p))])
    assert results[0] == results[1]


def test_a_result_is_written_through_another():
    first, second = tg.jit(lambda x: (lambda z: (z, z[1:]))(x * 2))(numbers(tg.device("jax")))
    second.zero_()
    assert first.tolist() == [2, 0, 0, 0]


def test_an_argument_with_a_history_is_written_by_eager_code():
    x = numbers(tg.device("jax")).requires_grad_() * 1
    with pytest.warns(tg.transforms.UncompiledWarning, match=r"writes an argument in place that has a grad_fn"):
        total = tg.jit(lambda x: x.mul_(2).sum())(x)
    assert (x.tolist(), total.item(), x.grad_fn.name()) == ([2, 4, 6, 8], 20, "MulBackward0")


def looks(x):
    y = x * 2
    return y, y.conj(), y.conj().imag, torch._neg_view(y), x.conj(), x.imag, x.conj().imag, x.expand(2, 2).real


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_results_that_are_lazy_conjugates_and_parts_of_complex_numbers(backend):
    x = torch.tensor([1 + 2j, 3 - 1j])
    for expected, found in zip(looks(x), tg.jit(looks, compile="first")(x.to(tg.device(backend))), strict=True):
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
        assert torch.equal(found.cpu().resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg())


def test_a_gradient_that_is_a_lazy_conjugate():
    def step(w):
        w.conj().mul(2 + 1j).conj().real.sum().backward()
        return w.grad

    w, v = (torch.tensor([1 + 2j, 3 - 1j], device=d, requires_grad=True) for d in ("cpu", tg.device("jax")))
    assert torch.equal(tg.jit(step, compile="first")(v).cpu(), step(w)) and torch.equal(v.grad.cpu(), w.grad)
