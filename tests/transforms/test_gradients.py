"""`tg.grad` and its family, and `tg.jit`, of functions of `Array`s: on every backend what JAX gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)
X = np.array([[0.3, -1.2, 0.7], [2.0, 0.1, -0.4]])
W = np.array([[1.0, 0.5], [-0.5, 2.0], [0.25, -1.0]])


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    """Inductor takes seconds a program; the table of updates and tests/backends/test_torch.py have it."""
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def array(a, backend):
    return xp.asarray(a, device=backend, copy=True)


def close(ours, right):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(right), rtol=1e-10, atol=1e-12)


def loss(m, params, x):
    """Of either namespace."""
    h = m.tanh(x @ params["w"]) + params["b"]
    return m.sum(h * h) / 2 + m.sum(m.max(h, axis=0))


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


@ON
def test_gradients_of_pytrees(backend, wide):
    params = {"w": array(W, backend), "b": array(np.array([0.1, -0.2]), backend)}
    value, (dp, dx) = tg.value_and_grad(lambda p, x: loss(xp, p, x), (0, 1))(params, array(X, backend))
    right, (rp, rx) = jax.value_and_grad(lambda p, x: loss(jnp, p, x), (0, 1))(
        {"w": jnp.asarray(W), "b": jnp.array([0.1, -0.2])}, jnp.asarray(X)
    )
    close(value, right)
    close(dp["w"], rp["w"])
    close(dp["b"], rp["b"])
    close(dx, rx)
    assert str(dx.device) == backend and dx.dtype == xp.float64


@ON
def test_auxiliary_results(backend):
    x = array(X, backend)
    g, aux = tg.grad(lambda x: (xp.sum(x * x), {"n": 3, "twice": x * 2}), has_aux=True)(x)
    close(g, 2 * X)
    close(aux["twice"], 2 * X)
    assert aux["n"] == 3


@ON
def test_vjp_and_jvp(backend, wide):
    def f(m, x):
        return m.sin(x) * x, m.sum(x)

    x, seed = array(X, backend), array(np.cos(X), backend)
    out, pullback = tg.vjp(lambda x: f(xp, x), x)
    (found,) = pullback((seed, array(np.array(2.0), backend)))
    right, theirs = jax.vjp(lambda x: f(jnp, x), jnp.asarray(X))
    close(found, theirs((jnp.cos(X), jnp.array(2.0)))[0])
    close(out[0], right[0])
    _, moved = tg.jvp(lambda x: f(xp, x), (x,), (seed,))
    _, right = jax.jvp(lambda x: f(jnp, x), (jnp.asarray(X),), (jnp.cos(X),))
    for a, b in zip(moved, right, strict=True):
        close(a, b)


@ON
def test_jacobian_and_hessian(backend, wide):
    x = array(X, backend)
    close(
        tg.jacobian(lambda x: xp.sin(x) @ array(W, backend))(x), jax.jacobian(lambda x: jnp.sin(x) @ W)(jnp.asarray(X))
    )
    close(
        tg.hessian(lambda x: xp.sum(x**3 * xp.sin(x)))(x),
        jax.hessian(lambda x: jnp.sum(x**3 * jnp.sin(x)))(jnp.asarray(X)),
    )


@ON
def test_vmap(backend, wide):
    def f(m, w, x):
        return m.tanh(x @ w), m.argmax(x)

    ours = tg.vmap(lambda w, x: f(xp, w, x), (None, 1))(array(W, backend), array(X.T, backend))
    right = jax.vmap(lambda w, x: f(jnp, w, x), (None, 1))(jnp.asarray(W), jnp.asarray(X.T))
    for a, b in zip(ours, right, strict=True):
        close(a, b)
    out = tg.vmap(lambda x: x * 2, out_axes=1)(array(X, backend))
    close(out, 2 * X.T)
    each = tg.vmap(tg.grad(lambda x: xp.sum(x**3)))(array(X, backend))
    close(each, 3 * X**2)


@ON
def test_writes_inside_a_batch(backend):
    def f(x):
        y = xp.zeros((4,), dtype=xp.float64, device=backend)
        y[1:] = x
        y[0] = xp.sum(x)
        return y

    close(tg.vmap(f)(array(X, backend)), np.concatenate([X.sum(1, keepdims=True), X], 1))


@ON
def test_writes_to_arguments_and_outside_happen_once(backend):
    x, seen = array(X, backend), array(np.zeros(3), backend)
    view = x[0]
    calls = []

    def f(x):
        calls.append(1)
        x[1] = x[0] * 2
        seen[...] = x[1]
        return xp.sum(x * x)

    close(tg.grad(f)(x), np.stack([10 * X[0], 0 * X[0]]))
    close(x, np.stack([X[0], 2 * X[0]]))
    close(seen, 2 * X[0])
    view[0] = 9.0  # still a view of the same memory
    assert float(x[0, 0]) == 9 and calls == [1]


@ON
def test_compiled_functions(backend):
    x, w, out = array(X, backend), array(W, backend), array(np.zeros((2, 2)), backend)

    @tg.jit
    def step(x, scale, *, shift):
        out[...] = x @ w
        x *= scale
        return {"x": x, "out": out, "sum": xp.sum(x) + shift, "scale": scale, "column": x.T[0]}

    now = X.copy()
    for k in range(3):
        made = step(x, 2.0, shift=array(np.array(float(k)), backend))
        close(out, now @ W)
        now = now * 2
        close(x, now)
        close(made["sum"], now.sum() + k)
        assert made["x"] is x and made["scale"] == 2.0
    assert step.report.traces == (0 if backend == "numpy" else 1)
    made["column"][0] = 7.0
    assert float(x[0, 0]) == 7
    w[...] = 0.0  # an array from outside is read at every call
    step(x, 2.0, shift=array(np.array(0.0), backend))
    assert not np.asarray(out).any()
    step(x, 3.0, shift=array(np.array(0.0), backend))
    assert step.report.traces == (0 if backend == "numpy" else 1)  # the number is an input


@ON
def test_compiled_gradients_see_what_changes_outside(backend):
    x, w = array(X, backend), array(W, backend)
    g = tg.jit(tg.grad(lambda x: xp.sum(xp.sin(x @ w))))
    for _ in range(2):
        close(g(x), np.cos(X @ np.asarray(w)) @ np.asarray(w).T)
        w[0, 0] = 3.0
    both = tg.grad(tg.jit(lambda x: xp.sum(x * x)))
    close(both(x), 2 * X)


@ON
def test_an_exception_leaves_everything_as_it_was(backend):
    x = array(X, backend)

    def f(x):
        x[0] = 5.0
        raise KeyError("no")

    for transform in (tg.grad, tg.vmap):
        with pytest.raises(KeyError):
            transform(f)(x)
        close(x, X)
    close(tg.grad(lambda x: xp.sum(x * x))(array(X, backend)), 2 * X)


@ON
def test_errors(backend):
    x = array(X, backend)
    n = array(np.arange(3), backend)
    with pytest.raises(TypeError, match="grad: only floating-point arrays have derivatives, got int64"):
        tg.grad(xp.sum)(n)
    with pytest.raises(TypeError, match=r"must return a real 0-dimensional floating-point array, got float64\[2, 3\]"):
        tg.grad(lambda x: x)(x)
    with pytest.raises(TypeError, match=r"expected arrays of tensorgraft\.array_api in argument 0, got a float"):
        tg.grad(lambda x: x)(1.0)
    with pytest.raises(ValueError, match="argnums is 3, but the function was called with 1 argument"):
        tg.grad(lambda x: x, 3)(x)
    with pytest.raises(
        ValueError, match=r"the cotangents must have the shapes of the results, float64\[2, 3\], got float64\[3, 2\]"
    ):
        tg.vjp(lambda x: x * 2, x)[1](x.T)
    with pytest.raises(ValueError, match=r"the tangents must have the shapes of the primals"):
        tg.jvp(lambda x: x * 2, (x,), (x.T,))
    with pytest.raises(ValueError, match=r"different extents: \[2, 3\]"):
        tg.vmap(lambda a, b: a + b)(x, x.T)
    with pytest.raises(ValueError, match="writes an array from outside, which would happen"):
        tg.vmap(lambda row: x.__setitem__(0, row))(array(X, backend))
    close(x, X)
    branch = tg.jit(lambda x: x if x[0, 0] > 0 else -x)
    if backend == "numpy":  # compiles nothing
        close(branch(x), X)
    else:
        with pytest.raises(tg.TracedValueError):
            branch(x)


def test_devices_do_not_mix():
    with pytest.raises(ValueError, match="grad: the arrays are on several devices"):
        tg.grad(lambda a, b: xp.sum(a), (0, 1))(array(X, "numpy"), array(X, "jax"))


def test_a_torch_program_compiled_beside_arrays_is_explained():
    import torch

    step = tg.jit(lambda x: x * 2)
    x = torch.ones(2, device=tg.device("jax"))
    assert step(x).tolist() == [2, 2]
    assert "1 trace in 1 call" in str(tg.explain(step, x))
