"""Loops of JAX functions on backends that compute at once, where they are replayed as source: the values, dtypes and
derivatives of JAX, arrays of their own, and everything that is not to be recorded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import tensorgraft as tg
from tensorgraft.hub import cpp, registry
from tensorgraft.hub.recorded import c_program, native

A = (np.eye(3) / 2 + 0.1).astype(np.float32)
V = np.array([0.5, 1.5, 2.0], np.float32)
X = np.float32(0.7)
EDGES = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1.5, -2.0, 3e38], np.float32)
WHOLE = np.array([7, -7, 0, 2**31 - 1, -(2**31), 1, -1, 3], np.int32)


def leapfrog(x, a):
    def step(state, _):
        q, p = state
        p = p - 0.05 * jnp.sin(q) * a[0, 0]
        q = q + 0.1 * p
        return (q, p), (q, p * p)

    return lax.scan(step, (x, x + 1), None, length=12)


def rnn(x, a):
    rows = jnp.linspace(0, 1, 36).reshape(12, 3)
    return lax.scan(lambda h, r: (jnp.tanh(h @ a + r), h * x), jnp.ones(3), rows, reverse=True)


def newton(x, a):
    def goes_on(s):
        return (jnp.max(jnp.abs(s[0] ** 2 - a[0])) > 1e-4) & (s[1] < 50)

    return lax.while_loop(goes_on, lambda s: (s[0] - (s[0] ** 2 - a[0]) / (2 * s[0]), s[1] + 1), (a[1] + 1 + x, 0))


def kalman(x, a):
    def step(state, z):
        m, p = a @ state[0], a @ state[1] @ a.T + x * jnp.eye(3)
        s = p[:2, :2] + jnp.eye(2)
        inverse = jnp.array([[s[1, 1], -s[0, 1]], [-s[1, 0], s[0, 0]]]) / (s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0])
        gain = p[:, :2] @ inverse
        return (m + gain @ (z - m[:2]), p - gain @ p[:2]), jnp.linalg.norm(z) + gain.sum()

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), jnp.ones((12, 2)))


def carries_change_places(x, a):
    return lax.fori_loop(0, 11, lambda i, s: (s[1], s[0].T, s[3], s[2] + i), (a, a * 2, x, x * 3))


def within_a_loop(x, a):
    def outer(c, i):
        inner = lax.fori_loop(0, i, lambda _, q: a @ q, c)
        return lax.cond(i % 3 == 0, lambda: inner + x, lambda: inner * 0.5), inner[0]

    return lax.scan(outer, jnp.ones(3), jnp.arange(10))


def by_position(x, a):
    rows = jnp.arange(12.0).reshape(12, 1) * x
    written = lax.fori_loop(0, 12, lambda i, c: c.at[i].set(rows[i, 0] + c[i - 1]), jnp.zeros(12))
    summed = lax.fori_loop(0, 20, lambda i, c: c.at[i % 5].add(a[i % 3, 0]), jnp.zeros(5))
    return written, summed


def numbers(x, a):
    """Order, choice and NaN of numbers without axes, and integers at their bounds."""

    def step(c, k):
        k = k + jnp.int32(x)
        e, n = jnp.asarray(EDGES)[k % 8], jnp.asarray(WHOLE)[k % 8]
        f, m = jnp.asarray(EDGES)[k // 8], jnp.asarray(WHOLE)[k // 8]
        reals = (jnp.maximum(e, f), jnp.minimum(e, f), e + f, e * f, e / f, -e, abs(e), jnp.sign(e), e < f, e == f)
        whole = (n + m, n * m, n - m, -n, n // m, n % m, n & m, ~n, jnp.maximum(n, m), n >> 1, abs(n), n.astype("int8"))
        chosen = (jnp.where(e < f, e, f), lax.clamp(-1.0, e, 1.0), jnp.int32(e), jnp.float32(n), jnp.isnan(e) | (e > f))
        return c + 1, (reals, whole, chosen)

    return lax.scan(step, 0, jnp.arange(64))


def types(x, a):
    half = lax.fori_loop(0, 9, lambda i, c: c * 1.5 + 1, jnp.bfloat16(x))
    turned = lax.fori_loop(0, 9, lambda i, c: c * (0.6 + 0.8j) / (1 + c * c), x + 1j)
    flags = lax.fori_loop(0, 9, lambda i, c: ~c ^ (c & (i > 3)), jnp.array([True, False]))
    bits = lax.fori_loop(0, 9, lambda i, c: c * jnp.uint8(7) + jnp.uint8(200), jnp.arange(3, dtype=jnp.uint8))
    return half, turned, flags, bits


def constant_parts(x, a):
    def step(c, _):
        return c + (a @ jnp.ones(3)).sum() * jnp.exp(x), (jnp.broadcast_to(x, (2,)), jnp.stack([x, c, x]))

    return lax.scan(step, x, None, length=9)


def drawn(x, a):
    key = jax.random.fold_in(jax.random.key(3), jnp.int32(x))

    def step(key, _):
        key, sub = jax.random.split(key)
        return key, jax.random.uniform(sub, (2,))

    return lax.scan(step, key, None, length=9)[1]


LOOPS = (leapfrog, rnn, newton, kalman, carries_change_places, within_a_loop, by_position, numbers, types,
         constant_parts, drawn)  # fmt: skip


@pytest.fixture
def replays(monkeypatch):
    """Return the programs that are run as source."""
    made = []
    init = native.NativeProgram.__init__
    monkeypatch.setattr(native.NativeProgram, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1])
    return made


def native_arrays(onto, *arrays):
    return [torch.from_numpy(np.array(x)) if onto == "torch" else np.array(x) for x in arrays]


def agree(got, want):
    leaves = jax.tree.leaves(want)
    assert len(jax.tree.leaves(got)) == len(leaves)
    for g, w in zip(jax.tree.leaves(got), leaves, strict=True):
        w = np.asarray(w)
        dtype, values = w.dtype, w.astype(complex)
        g = g.detach() if isinstance(g, torch.Tensor) else np.asarray(g)
        assert str(g.dtype).removeprefix("torch.") == dtype.name
        assert tuple(g.shape) == w.shape
        found = np.asarray(g.to(torch.complex64) if isinstance(g, torch.Tensor) else g.astype(complex))
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("onto", ["numpy", "torch"])
@pytest.mark.parametrize("f", LOOPS)
def test_values(f, onto, replays):
    g = tg.graft(f, onto=onto)
    arrays = native_arrays(onto, X, A)
    want = jax.jit(f)(X, A)
    agree(g(*arrays), want)
    agree(g(*arrays), want)
    assert len(replays) == 1
    np.testing.assert_array_equal(np.asarray(arrays[1]), A)  # nothing of the arguments is written


@pytest.mark.parametrize("onto", ["numpy", "torch"])
@pytest.mark.parametrize("f", [leapfrog, rnn, kalman, constant_parts])
def test_derivatives_by_jax(f, onto, replays):
    def total(x, a):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(f(x, a)))

    def second(x, a):
        return jax.grad(lambda x: jnp.sum(jax.grad(total, 1)(x, a) ** 2))(x)

    batched = jax.vmap(jax.grad(total), (0, None))
    for derivative, operands in ((jax.grad(total, (0, 1)), (X, A)), (second, (X, A)), (batched, (V, A))):
        agree(tg.graft(derivative, onto=onto)(*native_arrays(onto, *operands)), derivative(*operands))
    assert replays


def test_derivatives_by_pytorch():
    def total(x, a):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(kalman(x, a)))

    g = tg.graft(total, onto="torch")
    x, a = (t.requires_grad_() for t in native_arrays("torch", X, A))
    first = torch.autograd.grad(g(x, a), (x, a), create_graph=True)
    agree(first, jax.grad(total, (0, 1))(X, A))
    agree(torch.autograd.grad(first[0], a), jax.grad(jax.grad(total), 1)(X, A))
    x, a = x.detach(), a.detach()
    agree(torch.func.jvp(g, (x, a), (x, a)), jax.jvp(total, (X, A), (X, A)))
    batch = torch.from_numpy(V)
    agree(torch.func.vmap(torch.func.grad(g), (0, None))(batch, a), jax.vmap(jax.grad(total), (0, None))(V, A))
    agree(torch.func.hessian(g)(x, a), jax.hessian(total)(X, A))


@pytest.mark.parametrize("onto", ["numpy", "torch"])
def test_results_are_arrays_of_their_own(onto):
    """A loop without a step returns what it began with, of constants, arguments, or one array twice."""

    def f(a):
        start = (jnp.arange(3.0), a, a)
        return lax.while_loop(lambda s: s[0][0] > 0, lambda s: (s[0] * 2, s[1], s[2] + 1), start)

    g = tg.graft(f, onto=onto)
    (a,) = native_arrays(onto, A)
    first = g(a)
    for x in first:
        x[...] = 7
    agree(g(a), f(np.asarray(a)))
    np.testing.assert_array_equal(np.asarray(a), A)


def of_the_host(c, _):
    """A step that checks its state on the host, as `equinox.error_if` does."""

    def check(v):
        if v > 100:
            raise ValueError("too large")
        return np.asarray(v)

    kept = lax.cond(c > 5, lambda c: jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), c), lambda c: c, c)
    return kept + 1, kept


def test_what_is_not_recorded(replays):
    """Effects happen at every step of every call, and what traces sees the operations."""
    seen = []

    def f(x):
        def step(c, _):
            jax.debug.callback(lambda v: seen.append(float(v)), c)
            return c * 2, jax.pure_callback(lambda v: np.asarray(v + 1), jax.ShapeDtypeStruct((), np.float32), c)

        return lax.scan(step, x, None, length=9)

    g = tg.graft(f, onto="numpy")
    for _ in range(2):
        agree(g(X), (X * 2**9, X * 2 ** np.arange(9, dtype=np.float32) + 1))
    assert len(seen) == 18
    assert not replays
    checked = tg.graft(lambda x: lax.scan(of_the_host, x, None, length=9), onto="torch")
    for value in (1.0, 2.0):
        x = np.float32(value)
        agree(checked(torch.tensor(value)), (x + 9, x + np.arange(9, dtype=np.float32)))
    assert len(replays) == 1
    with pytest.raises(Exception, match="too large"):
        checked(torch.tensor(95.0))
    h = tg.graft(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=9), onto="torch")
    x = torch.from_numpy(V)
    traced = torch.jit.trace(h, x, check_trace=False)
    agree(traced(x + 1), h(x + 1))
    assert len(torch.fx.experimental.proxy_tensor.make_fx(h)(x).graph.nodes) > 9


def test_loops_of_many_numbers_are_computed_by_pytorch(replays):
    f = tg.graft(lambda x: lax.scan(lambda c, _: (jnp.sin(c) * 2, c[3]), x, None, length=9), onto="torch")
    x = np.linspace(-1, 1, 10000, dtype=np.float32)
    agree(f(torch.from_numpy(x)), jax.jit(f.fn)(x))
    assert [p.xp.name for p in replays] == ["torch"]


@pytest.mark.skipif(cpp.compiler() is None, reason="no C++ compiler")
def test_loops_compiled_as_c(monkeypatch):
    made = []
    init = c_program.CProgram.__init__
    monkeypatch.setattr(c_program.CProgram, "__init__", lambda self, *args: (init(self, *args), made.append(self))[0])
    monkeypatch.setattr(registry.get("torch"), "dynamo", "inductor")

    def all_loops(x, a):
        return [f(x, a) for f in LOOPS if f is not types]

    g = tg.jit(tg.graft(all_loops, onto="torch"))
    arrays = native_arrays("torch", X, A)
    for _ in range(2):
        agree(g(*arrays), jax.jit(all_loops)(X, A))
    x, a = (t.requires_grad_() for t in arrays)

    def total(x, a):
        return sum(jnp.sum(leaf) for f in (leapfrog, kalman) for leaf in jax.tree.leaves(f(x, a)))

    first = torch.autograd.grad(tg.jit(tg.graft(total, onto="torch"))(x, a), (x, a))
    agree(first, jax.grad(total, (0, 1))(X, A))
    assert len(made) == 3


def test_compiled_loops_without_words_are_replayed(monkeypatch, replays):
    monkeypatch.setattr(registry.get("torch"), "dynamo", "inductor")
    g = tg.jit(tg.graft(types, onto="torch"))
    agree(g(*native_arrays("torch", X, A)), jax.jit(types)(X, A))
