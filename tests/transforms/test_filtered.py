"""Filtered transforms, on every backend, against Equinox's on the same functions."""

import tracemalloc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import (
    Module,
    apply_updates,
    assert_max_traces,
    field,
    filter_checkpoint,
    filter_grad,
    filter_hessian,
    filter_jacfwd,
    filter_jacrev,
    filter_jit,
    filter_jvp,
    filter_value_and_grad,
    filter_vjp,
    filter_vmap,
    get_num_traces,
    if_array,
    is_array,
    tree_equal,
)

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)
W = np.array([[1.0, 0.5, -1.0], [-0.5, 2.0, 0.25]])
B = np.array([0.1, -0.2])
X = np.array([0.3, -1.2, 0.7])


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


class Affine(Module):
    weight: object
    bias: object
    act: object
    count: object
    name: str = field(static=True)

    def __call__(self, x):
        return self.act(self.weight @ x + self.bias)


class TheirAffine(eqx.Module):
    weight: object
    bias: object
    act: object
    count: object
    name: str = eqx.field(static=True)

    def __call__(self, x):
        return self.act(self.weight @ x + self.bias)


def array(a, backend):
    return xp.asarray(np.asarray(a), device=backend, copy=True)


def model(backend):
    return Affine(array(W, backend), array(B, backend), xp.tanh, array(3, backend), "m")


def theirs():
    return TheirAffine(jnp.asarray(W), jnp.asarray(B), jnp.tanh, jnp.asarray(3), "m")


def loss(model, x):
    y = model(x)
    return (y * y).sum() if isinstance(y, jax.Array) else xp.sum(y * y)


def same(ours, right):
    """Pytrees with the same leaves, None in the same places."""
    a = optree.tree_leaves(ours, is_leaf=lambda x: x is None)
    b = jax.tree.leaves(right, is_leaf=lambda x: x is None)
    assert [x is None for x in a] == [x is None for x in b]
    for x, y in zip(a, b, strict=True):
        if is_array(y):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-10, atol=1e-12)


@ON
def test_gradients(backend):
    m, x = model(backend), array(X, backend)
    value, grads = filter_value_and_grad(loss)(m, x)
    right, their_grads = eqx.filter_value_and_grad(loss)(theirs(), jnp.asarray(X))
    same((value, grads), (right, their_grads))
    assert grads.act is None and grads.count is None and grads.name == "m"
    same(filter_grad(lambda m, x: (loss(m, x), "aux"), has_aux=True)(m, x)[0], their_grads)
    assert filter_grad(has_aux=True)(lambda m: (xp.sum(m.weight), m.name))(m)[1] == "m"
    value, nothing = filter_value_and_grad(lambda n: xp.sum(x * n))(2)
    assert nothing is None and float(value) == pytest.approx(2 * X.sum())
    with pytest.raises(TypeError, match="must return a real 0-dimensional floating-point array"):
        filter_grad(lambda m: m.weight)(m)


@ON
def test_vjp_and_jvp(backend):
    m, x, seed = model(backend), array(X, backend), array([1.0, 2.0], backend)

    def f(m, x):
        return m(x), m.count, m.name

    out, pullback = filter_vjp(f, m, x)
    right, their_pullback = eqx.filter_vjp(f, theirs(), jnp.asarray(X))
    assert out[2] == "m"
    same(out[:2], right[:2])
    same(pullback((seed, None, None)), their_pullback((jnp.array([1.0, 2.0]), None, None)))
    same(
        filter_vjp(lambda m: (m(x), "aux"), m, has_aux=True)[1](seed),
        their_pullback((jnp.array([1.0, 2.0]), None, None))[:1],
    )
    with pytest.raises(ValueError, match="the cotangents must have the shapes and dtypes of the result"):
        pullback((x, None, None))
    with pytest.raises(ValueError, match="must have the structure of the result"):
        pullback(seed)
    by = optree.tree_map(lambda v: v * 2 if tg.transforms.is_inexact_array(v) else None, m)
    their_by = jax.tree.map(lambda v: v * 2 if eqx.is_inexact_array(v) else None, theirs())
    out, moved = filter_jvp(f, (m, x), (by, None))
    _, right = eqx.filter_jvp(f, (theirs(), jnp.asarray(X)), (their_by, None))
    same(moved, right)
    assert filter_jvp(lambda n: n + 1, (1,), (None,)) == (2, None)


@ON
def test_jacobians(backend):
    m, x = model(backend), array(X, backend)

    def f(m):
        return {"y": m(x), "n": m.count, "name": m.name}

    right = eqx.filter_jacrev(lambda m: {"y": m(jnp.asarray(X))})(theirs())["y"]
    for transform in (filter_jacrev, filter_jacfwd):
        found = transform(f)(m)
        same(found["y"], right)
        assert found["n"] is None and found["name"] is None
    found, aux = filter_jacfwd(lambda m: (f(m), 7), has_aux=True)(m)
    same(found["y"], right)
    assert aux == 7
    same(filter_hessian(lambda m: loss(m, x))(m), eqx.filter_hessian(lambda m: loss(m, jnp.asarray(X)))(theirs()))


@ON
def test_jit(backend):
    m, x = model(backend), array(X, backend)
    step = filter_jit(assert_max_traces(filter_value_and_grad(loss), max_traces=1))
    right = eqx.filter_value_and_grad(loss)(theirs(), jnp.asarray(X))
    for _ in range(3):
        same(step(m, x), right)
    same(step(m, X), right)  # an array of NumPy is one of the device
    moved = apply_updates(m, optree.tree_map(lambda g: -0.1 * g, step(m, x)[1]))
    same(moved.weight, W - 0.1 * right[1].weight)
    assert moved.act is xp.tanh and moved.count is m.count
    same(step(moved, x)[0], loss(TheirAffine(*map(jnp.asarray, (moved.weight, moved.bias)), jnp.tanh, 3, "m"), X))
    traced = 0 if backend == "numpy" else 1
    assert get_num_traces(step) == traced
    if traced:
        with pytest.raises(RuntimeError, match="traced for the 2th time, but at most 1"):
            step(Affine(m.weight, m.bias, xp.sin, m.count, "m"), x)
    out = filter_jit(lambda m, x: (m, m.twice if False else m.act, x + 1, "text", None))(m, x)
    assert tree_equal(out[0], m) and out[1] is xp.tanh and out[3:] == ("text", None)
    for f in (m, m.__call__):
        same(filter_jit(f)(x), m(x).native if backend == "jax" else np.asarray(m(x)))


@ON
def test_jit_sees_what_functions_reach(backend):
    scale = 2.0

    def f(x):
        return x * scale

    program = filter_jit(lambda f, x: f(x))
    x = array(X, backend)
    same(program(f, x), jnp.asarray(X * 2))
    scale = 3.0
    same(program(f, x), jnp.asarray(X * 3))


class Scaled(Module):
    by: object

    @filter_jit
    def __call__(self, x):
        return x * self.by

    @filter_grad
    def slope(self, x):
        return xp.sum(x * self.by)


@ON
def test_methods(backend):
    s, x = Scaled(array(2.0, backend)), array(X, backend)
    same(s(x), jnp.asarray(2 * X))
    assert float(s.slope(x).by) == pytest.approx(X.sum())


@ON
def test_vmap(backend):
    m, x = model(backend), array(X, backend)
    rows = array(np.stack([X, 2 * X, -X]), backend)
    their_rows = jnp.asarray(np.stack([X, 2 * X, -X]))
    right = jax.vmap(theirs())(their_rows)
    same(filter_vmap(m)(rows), right)
    same(filter_vmap(m, out_axes=1)(rows), right.T)
    same(filter_jit(filter_vmap(lambda m, x: m(x), in_axes=(None, 0)))(m, rows), right)
    same(filter_vmap(m, in_axes=1)(rows.T), right)
    several = filter_vmap(lambda s: Affine(m.weight * s, m.bias, m.act, m.count, "m"))(array([1.0, 2.0], backend))
    assert several.weight.shape == (2, 2, 3) and several.act is xp.tanh and several.name == "m"
    found = filter_vmap(lambda m, x: m(x), in_axes=(if_array(0), None))(several, x)
    same(found, jnp.stack([theirs()(jnp.asarray(X)), jnp.tanh(2 * W @ X + B)]))
    same(filter_vmap(lambda: x, axis_size=2)(), jnp.asarray([X, X]))
    grads = filter_grad(lambda m: xp.sum(filter_vmap(m)(rows)))(m)
    same(grads.weight, jax.grad(lambda w: jnp.sum(jnp.tanh(their_rows @ w.T + B)))(jnp.asarray(W)))


def test_wrong_vmaps():
    x = array(np.ones((2, 3)), "numpy")
    with pytest.raises(ValueError, match="no argument is mapped"):
        filter_vmap(lambda n: n)(3)
    with pytest.raises(TypeError, match="in_axes is 0 for a int"):
        filter_vmap(lambda x, n: x, in_axes=(0, 0))(x, 3)
    with pytest.raises(ValueError, match="in_axes is not a prefix"):
        filter_vmap(lambda x: x, in_axes=(0, 0))(x)
    with pytest.raises(ValueError, match="different extents"):
        filter_vmap(lambda x, y: x)(x, x.T)
    with pytest.raises(ValueError, match="out_axes is None for an array"):
        filter_vmap(lambda x: x, out_axes=None)(x)
    with pytest.raises(ValueError, match="axis_size is 5"):
        filter_vmap(lambda x: x, axis_size=5)(x)
    with pytest.raises(TypeError, match="expected a function"):
        filter_jit(3)


@ON
def test_checkpoint(backend):
    m, x = model(backend), array(X, backend)
    square = Affine(array(np.eye(3) * 0.5 + 0.1, backend), array(0.3 * X, backend), xp.tanh, m.count, "m")

    def run(wrap):
        def f(m, x):
            inner = wrap(lambda v: xp.sin(square(v)) * x)  # x from outside
            return xp.sum(m(inner(wrap(square)(x))))

        return f

    plain, again = run(lambda f: f), run(filter_checkpoint)
    for transform in (
        lambda f: filter_grad(lambda mx: f(*mx))((m, x)),
        lambda f: filter_jit(filter_grad(lambda mx: f(*mx)))((m, x)),
        lambda f: filter_hessian(lambda x: f(m, x))(x),
        lambda f: filter_jvp(f, (m, x), (None, x)),
        lambda f: filter_vmap(lambda s: filter_grad(lambda x: f(m, x))(x * s))(array([1.0, 2.0], backend)),
    ):
        assert tree_equal(transform(plain), transform(again), rtol=1e-10, atol=1e-12)
    assert tree_equal(filter_checkpoint(m)(x), m(x))


def test_checkpoint_keeps_less():
    x = array(np.ones(100_000), "numpy")

    def block(x):
        for _ in range(10):
            x = xp.sin(x)
        return x

    def f(x, block):
        for _ in range(8):
            x = block(x)
        return xp.sum(x)

    def peak(block):
        tracemalloc.start()
        tg.grad(lambda x: f(x, block))(x)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(filter_checkpoint(block)) < 0.4 * peak(block)
