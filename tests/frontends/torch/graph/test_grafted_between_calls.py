"""Grafted modules: what they read of Python's objects, their tensors on the CPU, and integers of JAX's users."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg
from tensorgraft.compiled.uncompiled import UncompiledWarning
from tensorgraft.errors import DerivativeError

X = np.array([0.5, -1.0, 2.0], np.float32)
FACTOR = 1.0


def called(module, onto):
    """A grafted module as a function of one NumPy array."""
    grafted = tg.graft(module, onto=onto)
    if onto == "numpy":
        return grafted
    apply, params, buffers = grafted
    return lambda x: jax.tree.map(np.asarray, apply(params, buffers, jnp.asarray(x))[0])


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.table, self.rates, self.flags = 2.0, torch.ones(3), [1.0], {"shift": False}
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.k * self.table * self.weight * self.rates[0] * FACTOR + (3 if self.flags["shift"] else 0)


@pytest.mark.parametrize("onto", ["jax", "numpy"])
def test_what_is_read(onto, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    module = Reads()
    f = called(module, onto)
    steps = [
        lambda: None,
        lambda: setattr(module, "k", 3.0),
        lambda: module.rates.__setitem__(0, 4.0),
        lambda: module.flags.update(shift=True),
        lambda: module.table.mul_(2),
        lambda: setattr(module, "table", torch.full((3,), 7.0)),
        lambda: globals().update(FACTOR=5.0),
        lambda: module.register_forward_hook(lambda *args: args[-1] * 2),
        lambda: monkeypatch.setattr(Reads, "forward", lambda self, x: x * self.weight),
    ]
    for step in steps:
        step()
        for _ in range(2):
            np.testing.assert_allclose(f(X), module(torch.from_numpy(X)).detach(), rtol=1e-6)


@pytest.mark.parametrize("onto", ["jax", "numpy"])
def test_hooks_of_all_modules(onto):
    module = nn.ReLU()
    f = called(module, onto)
    for hooked in (False, True, False):
        handle = nn.modules.module.register_module_forward_hook(lambda *args: args[-1] * 2) if hooked else None
        try:
            np.testing.assert_allclose(f(X), module(torch.from_numpy(X)))
        finally:
            if handle is not None:
                handle.remove()


@pytest.mark.filterwarnings("ignore::tensorgraft.compiled.uncompiled.UncompiledWarning")
def test_what_is_changed_before_an_error_stays():
    class Counts(nn.Module):
        calls = 0

        def forward(self, x, fails):
            self.calls += 1
            if fails:
                raise KeyError("the program's own")
            return x * self.calls

    module = Counts()
    apply, params, buffers = tg.graft(module, onto="jax")
    for calls, fails in enumerate((False, True, True, False), 1):
        if fails:
            with pytest.raises(KeyError):
                apply(params, buffers, jnp.asarray(X), fails)
        else:
            np.testing.assert_allclose(apply(params, buffers, jnp.asarray(X), fails)[0], X * calls)
        assert module.calls == calls


@pytest.mark.parametrize("onto", ["jax", "numpy"])
def test_numbers_that_are_equal(onto):
    class Signed(nn.Module):
        def forward(self, x, k):
            return torch.copysign(x, torch.full_like(x, k)) * (10 if k is True else 1)

    grafted = tg.graft(Signed(), onto=onto)
    f = grafted if onto == "numpy" else lambda *args: grafted[0](*grafted[1:], *args)[0]
    x, signed = X if onto == "numpy" else jnp.asarray(X), Signed()
    for k in (0.0, -0.0, 0.0, 1, True, 1.0):
        np.testing.assert_allclose(f(x, k), signed(torch.from_numpy(X), k))


@pytest.mark.parametrize("onto", ["jax", "numpy"])
def test_what_differs_at_each_call(onto):
    class Counts(nn.Module):
        n = 0

        def forward(self, x):
            self.n += 1
            return x * self.n

    class Draws(nn.Module):
        def forward(self, x):
            return x * random.random()

    counts = Counts()
    f, g = called(counts, onto), called(Draws(), onto)
    with pytest.warns(UncompiledWarning, match="Counts reads and changes n. It is traced anew at each call"):
        assert [float(f(X)[2]) for _ in range(3)] == [2, 4, 6] and counts.n == 3
    with pytest.warns(UncompiledWarning, match="Draws draws random numbers"):
        assert float(g(X)[0]) != float(g(X)[0])


class Makes(nn.Module):
    def forward(self, x):
        a = x[:, None] @ x[None] + torch.eye(3) + torch.linspace(0, 1, 3)
        return torch.linalg.solve(a, x) * torch.hann_window(3, periodic=False), a.masked_fill(
            torch.ones(3, 3).tril() == 0, 0
        )


class Writes(nn.Module):
    def forward(self, x):
        out = torch.zeros(4)
        row = out[1:]
        row[0] = x[0] * 2
        out[3] = x.sum()
        return out


class Asks(nn.Module):
    def forward(self, x):
        n = int(torch.arange(3).sum())
        return x * n + torch.tensor([1.0, 2.0, 3.0]).tolist()[1] + torch.from_numpy(X)


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.std = torch.tensor([0.1, 0.2, 0.3]), torch.ones(3, requires_grad=True)

    def forward(self, x):
        return (x - self.mean) / self.std


@pytest.mark.parametrize("onto", ["jax", "numpy"])
@pytest.mark.parametrize("kind", [Makes, Writes, Asks, Attribute])
def test_cpu_tensors_are_constants(kind, onto):
    module = kind()
    want = jax.tree.map(lambda t: t.detach().numpy(), module(torch.from_numpy(X)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), called(module, onto)(X), want)
    if onto == "jax" and kind is not Asks:
        x = torch.from_numpy(X).requires_grad_()
        sum(t.sum() for t in jax.tree.leaves(module(x))).backward()
        apply, params, buffers = tg.graft(module, onto="jax")
        got = jax.grad(lambda x: sum(t.sum() for t in jax.tree.leaves(apply(params, buffers, x)[0])))(jnp.asarray(X))
        np.testing.assert_allclose(got, x.grad, rtol=1e-4, atol=1e-5)


def test_on_the_device_they_are_refused():
    module = nn.Sequential(nn.Linear(3, 3), Attribute()).to(tg.device("jax"))
    apply, params, buffers = tg.graft(module, onto="jax")
    with pytest.raises(RuntimeError, match="same device"):
        apply(params, buffers, X)


def test_integers_are_pytorchs_on_jax():
    class Indices(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 4)
            self.register_buffer("positions", torch.arange(3))

        def forward(self, i):
            return F.one_hot(i, 7), F.one_hot(self.positions, 5), self.bag(i[None]), i.dtype == torch.int64

    module, i = Indices(), np.array([0, 1, 2])
    apply, params, buffers = tg.graft(module, onto="jax")
    want = module(torch.from_numpy(i))
    for x in (jnp.asarray(i), i, i.astype(np.int32)):
        one_hot, positions, bag, wide = apply(params, buffers, x)[0]
        np.testing.assert_array_equal(one_hot, want[0]), np.testing.assert_array_equal(positions, want[1])
        np.testing.assert_allclose(bag, want[2].detach(), rtol=1e-6)
        assert wide and one_hot.dtype == np.int32


def test_results_of_several_parts_have_their_names():
    class Extremes(nn.Module):
        def forward(self, x):
            return x.max(0), {"top": x.topk(2)}

    apply, params, buffers = tg.graft(Extremes(), onto="jax")
    largest, more = jax.jit(apply)(params, buffers, jnp.asarray(X))[0]
    assert (largest.values, largest.indices) == (2, 2) and more["top"].indices.tolist() == [2, 0]


def test_second_derivatives_are_refused():
    apply, params, buffers = tg.graft(nn.Sequential(nn.Linear(3, 1), nn.Tanh()), onto="jax")
    with pytest.raises(DerivativeError, match=r"reverse mode.*\n.*torch.func.hessian"):
        jax.jacrev(jax.grad(lambda x: apply(params, buffers, x)[0].sum()))(jnp.asarray(X))


def test_native_arrays_are_compiled_natively():
    apply, params, buffers = tg.graft(nn.Linear(3, 1), onto="jax")
    with pytest.raises(TypeError, match=r"ArrayImpl.*JAX is compiled by jax.jit"):
        tg.jit(apply)(params, buffers, jnp.asarray(X))
