"""Functions whose derivative is a rule: of any order, both modes, batched and compiled, on every backend."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import custom_vjp

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
A = np.array([4.0, 9.0])
C = np.array([2.0, 1.0])


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def close(ours, right):
    np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-12, atol=1e-14)


@pytest.fixture
def here(backend):
    """(the array, another that the function reads from outside, c sqrt(a) with its rule)"""
    a, c = (xp.asarray(x, device=backend, copy=True) for x in (A, C))

    def rule(args, y, g):
        return (g * c * c / (2 * root(*args)),)

    root = custom_vjp(lambda a: xp.sqrt(a) * c, rule)
    return a, c, root


def test_derivatives_of_any_order(here):
    a, _, root = here

    def total(a):
        return xp.sum(root(a))

    close(tg.grad(total)(a), C / (2 * A**0.5))
    close(tg.jacobian(root)(a), np.diag(C / (2 * A**0.5)))
    close(tg.hessian(total)(a), np.diag(-C / (4 * A**1.5)))
    third = tg.grad(lambda a: xp.sum(tg.grad(lambda a: xp.sum(tg.grad(total)(a)))(a)))(a)
    close(third, 3 / 8 * C / A**2.5)


def test_forward_derivatives(here, backend):
    a, _, root = here
    v = xp.asarray([1.0, 10.0], device=backend)
    out, moved = tg.jvp(root, (a,), (v,))
    close(out, C * A**0.5)
    close(moved, C / (2 * A**0.5) * [1, 10])
    second = -C / (4 * A**1.5) * [1, 10]
    close(tg.jvp(tg.grad(lambda a: xp.sum(root(a))), (a,), (v,))[1], second)
    close(tg.grad(lambda a: xp.sum(tg.jvp(root, (a,), (v,))[1]))(a), second)


def test_batches(here):
    a, _, root = here
    rows = xp.stack([a, a * 4])
    right = np.stack([A, A * 4])
    close(tg.vmap(root)(rows), C * right**0.5)
    close(tg.vmap(tg.grad(lambda a: xp.sum(root(a))))(rows), C / (2 * right**0.5))
    close(tg.grad(lambda x: xp.sum(tg.vmap(root)(x)))(rows), C / (2 * right**0.5))


def test_compiled(here, backend):
    a, c, root = here
    gradient = tg.jit(tg.grad(lambda a: xp.sum(root(a))))
    close(gradient(a), C / (2 * A**0.5))
    c += 1  # read at every call
    close(gradient(a), (C + 1) / (2 * A**0.5))
    close(tg.jit(tg.hessian(lambda a: xp.sum(root(a))))(a), np.diag(-(C + 1) / (4 * A**1.5)))
    close(tg.jit(lambda a: tg.jvp(root, (a,), (a,)))(a)[1], (C + 1) / 2 * A**0.5)


def test_pytrees_complex_numbers_and_integers(backend):
    """The rule decides, also against the function; integers have no derivative; None is zero."""

    def rule(args, out, g):
        given, _, _ = args
        return {"a": 100 * g["y"] * given["a"] ** 2, "n": None}, None, None

    f = custom_vjp(lambda t, u, k: {"y": t["a"] ** 3 + u, "k": k + t["n"]}, rule)
    a = xp.asarray(np.array([1 + 2j, 3 - 1j]), device=backend)
    n = xp.asarray(np.array([1, 2]), device=backend)

    def total(a, u):
        out = f({"a": a, "n": n}, u, 7)
        return xp.sum(xp.real(out["y"]))

    out = f({"a": a, "n": n}, a, 7)
    close(out["k"], [8, 9])
    da, du = tg.grad(total, (0, 1))(a, a)
    close(da, 100 * np.array([1 + 2j, 3 - 1j]) ** 2)
    close(du, np.zeros(2))


def test_loops_by_value(backend):
    """Outside of a compiled function `fn` sees values, whatever is differentiated."""

    def newton(a):
        x = xp.ones_like(a)
        while xp.max(xp.abs(x * x - a)) > 1e-12:
            x = (x + a / x) / 2
        return x

    sqrt = custom_vjp(newton, lambda args, x, g: (g / (2 * sqrt(*args)),))
    a = xp.asarray(A, device=backend)
    close(sqrt(a), [2, 3])
    close(tg.grad(lambda a: xp.sum(sqrt(a)))(a), [1 / 4, 1 / 6])
    close(tg.hessian(lambda a: xp.sum(sqrt(a)))(a), np.diag(-1 / (4 * A**1.5)))


def test_writes_and_wrong_rules_are_errors(backend):
    a = xp.asarray(A, device=backend, copy=True)

    def gradient(rule, fn=lambda a: a * 2):
        return tg.grad(lambda a: xp.sum(custom_vjp(fn, rule)(a)))(a)

    with pytest.raises(TypeError, match="a tuple of cotangents, one for each of the 1 arguments, got a Array"):
        gradient(lambda args, out, g: g)
    with pytest.raises(ValueError, match=r"cotangent of argument 0 of .* must have its shape \(2,\), got one of"):
        gradient(lambda args, out, g: (xp.sum(g),))
    with pytest.raises(ValueError, match="does not have its structure"):
        custom = custom_vjp(lambda t: t["a"] * 2, lambda args, out, g: ([g, g],))
        tg.grad(lambda a: xp.sum(custom({"a": a})))(a)
