"""JAX functions and models as native ones of PyTorch, TensorFlow and NumPy: values and derivatives are those of JAX."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensorgraft as tg

tf = pytest.importorskip("tensorflow")


def mlp(params, x, *, power=1):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return {"y": jax.nn.relu(h) ** power, "n": jnp.argmax(h, -1)}


def values():
    rng = np.random.default_rng(0)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in (("w", (4, 3)), ("b", (3,)), ("x", (5, 4)))}


def test_pytrees_and_gradients_on_pytorch():
    v = {k: torch.from_numpy(a).requires_grad_() for k, a in values().items()}
    out = tg.graft(mlp, onto="torch")({"w": v["w"], "b": v["b"]}, v["x"], power=2)
    assert out["n"].dtype == torch.int32 and not out["n"].requires_grad
    out["y"].sum().backward()
    host = values()
    right = jax.grad(lambda p, x: mlp(p, x, power=2)["y"].sum(), (0, 1))({k: host[k] for k in "wb"}, host["x"])
    for ours, theirs in ((v["w"], right[0]["w"]), (v["b"], right[0]["b"]), (v["x"], right[1])):
        np.testing.assert_allclose(ours.grad, theirs, rtol=1e-5, atol=1e-6)


def test_pytrees_and_gradients_on_tensorflow():
    v = {k: tf.Variable(a) for k, a in values().items()}
    f = tg.graft(mlp, onto="tensorflow")
    host = values()
    right = jax.grad(lambda p, x: mlp(p, x, power=2)["y"].sum(), (0, 1))({k: host[k] for k in "wb"}, host["x"])

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f({"w": v["w"], "b": v["b"]}, v["x"], power=2)["y"])
        return tape.gradient(loss, [v["w"], v["b"], v["x"]])

    for run in (gradients, tf.function(gradients), tf.function(gradients, jit_compile=True)):
        for ours, theirs in zip(run(), (right[0]["w"], right[0]["b"], right[1]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_on_numpy():
    v = values()
    out = tg.graft(mlp, onto="numpy")({"w": v["w"], "b": v["b"]}, v["x"])
    want = mlp({"w": v["w"], "b": v["b"]}, v["x"])
    assert isinstance(out["y"], np.ndarray) and out["n"].dtype == np.int32
    np.testing.assert_allclose(out["y"], want["y"], rtol=1e-5, atol=1e-6)


@jax.custom_vjp
def doubled(x):
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sin(x) * x,
        lambda x: doubled(x),
        lambda x: jax.nn.relu(x) * x**2,
        lambda x: jax.lax.scan(lambda c, y: (c * jnp.cos(y), c), x[0], x)[1],
        lambda x: jax.checkpoint(lambda x: jnp.exp(jnp.sin(x)))(x),
    ],
    ids=["plain", "custom_vjp", "relu", "scan", "checkpoint"],
)
def test_higher_derivatives_are_jaxs(fn):
    """A rule of JAX's counts, where PyTorch would differentiate what it computes."""
    f = tg.graft(fn, onto="torch")
    x = torch.tensor([0.3, -1.2, 0.0], requires_grad=True)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * g).sum(), x)
    slope = jax.grad(lambda x: fn(x).sum())
    at = jnp.array([0.3, -1.2, 0.0])
    np.testing.assert_allclose(g.detach(), slope(at), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h, jax.grad(lambda x: (slope(x) ** 2).sum())(at), rtol=1e-5, atol=1e-6)


def test_torch_func():
    def fn(w, x):
        return jnp.tanh(x @ w).sum(-1)

    v = values()
    f, w, x = tg.graft(fn, onto="torch"), torch.from_numpy(v["w"]), torch.from_numpy(v["x"])
    loss = lambda w, x: (f(w, x) ** 2).sum()  # noqa: E731
    right = lambda w, x: (fn(w, x) ** 2).sum()  # noqa: E731
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    close(torch.func.grad(loss)(w, x), jax.grad(right)(v["w"], v["x"]))
    close(torch.func.vmap(f, (None, 0))(w, x), jax.vmap(fn, (None, 0))(v["w"], v["x"]))
    per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    close(per_row, jax.vmap(jax.grad(right), (None, 0))(v["w"], v["x"]))
    close(torch.func.jvp(lambda w: f(w, x), (w,), (w,))[1], jax.jvp(lambda w: fn(w, v["x"]), (v["w"],), (v["w"],))[1])
    close(torch.func.hessian(lambda w: loss(w, x))(w), jax.hessian(lambda w: right(w, v["x"]))(v["w"]))


@pytest.mark.parametrize("onto", ["torch", "tensorflow", "numpy"])
def test_compiled(onto, monkeypatch):
    monkeypatch.setenv("TENSORGRAFT_TORCH_COMPILER", "none")
    v = values()
    f = tg.jit(tg.graft(mlp, onto=onto))
    native = {"torch": torch.from_numpy, "tensorflow": tf.constant, "numpy": np.asarray}[onto]
    for _ in range(2):
        out = f({"w": native(v["w"]), "b": native(v["b"])}, native(v["x"]))
    np.testing.assert_allclose(out["y"], mlp(v, v["x"])["y"], rtol=1e-5, atol=1e-6)


def test_equinox_model_as_a_module():
    model = eqx.nn.MLP(4, 3, 16, 2, key=jax.random.key(0))
    module = tg.graft(model, onto="torch")
    assert isinstance(module, torch.nn.Module)
    names = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert names["layers.0.weight"] == (16, 4) and names["layers.2.bias"] == (3,) and len(names) == 6
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), model(x), rtol=1e-5, atol=1e-6)

    def loss(model, x):
        return (model(x) ** 2).sum()

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (module(torch.from_numpy(x)) ** 2).sum().backward()
        optimizer.step()
        gradient = eqx.filter_grad(loss)(model, x)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))
    state = module.state_dict()
    np.testing.assert_allclose(state["layers.1.weight"], model.layers[1].weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), model(x), rtol=1e-4, atol=1e-6)


def test_equinox_model_as_a_tf_module(tmp_path):
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    module = tg.graft(model, onto="tensorflow")
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    assert isinstance(module, tf.Module) and len(module.trainable_variables) == 4
    np.testing.assert_allclose(module(tf.constant(x)), model(x), rtol=1e-5, atol=1e-6)
    module.get_concrete_function(tf.TensorSpec((4,)))
    tf.saved_model.save(module, str(tmp_path))
    program = (
        "import sys, numpy as np, tensorflow as tf\n"
        f"m = tf.saved_model.load({str(tmp_path)!r})\n"
        "print(*np.asarray(m(tf.constant(np.linspace(-1, 1, 4, dtype=np.float32)))).ravel().tolist())\n"
        "assert not {'torch', 'tensorgraft'} & set(sys.modules)"  # TensorFlow itself imports JAX where it is
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), float), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("onto", ["torch", "numpy"])
def test_random_keys(onto):
    def fn(key, x):
        one, two = jax.random.split(key)
        return jax.random.bernoulli(one, 0.5, x.shape), jax.random.randint(two, (3,), 0, 1000)

    x = np.ones(40, np.float32)
    native = torch.from_numpy(x) if onto == "torch" else x
    for seed in range(3):
        for got, want in zip(
            tg.graft(fn, onto=onto)(jax.random.key(seed), native), fn(jax.random.key(seed), x), strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_static_values_and_shapes():
    traces = []

    def fn(x, n, k=1):
        traces.append(isinstance(n, int))
        return x[: min(n, 3)] * k

    f = tg.graft(fn, onto="numpy")
    x = np.arange(5, dtype=np.float32)
    assert f(x, 2).shape == (2,) and f(x + 1, 2).shape == (2,) and f(x, 4, k=2).shape == (3,)
    assert traces == [True, True, True]  # a value that is asked for is static, and what was traced without it undone
    assert f(np.arange(6, dtype=np.int64), 1).dtype == np.int32  # as in the user's configuration of JAX
    with pytest.raises(TypeError, match="which is neither an array of numpy nor hashable"):
        f(x, {1})


def test_results_are_not_the_arguments():
    f = tg.graft(lambda x: (x, x[:2], jnp.broadcast_to(x[0], (3,))), onto="torch")
    x = torch.ones(3)
    for y in f(x):
        y.add_(1)
        assert torch.equal(x, torch.ones(3))
        assert torch.equal(y, torch.full_like(y, 2))


def test_errors():
    with pytest.raises(TypeError, match=r"tg\.graft takes"):
        tg.graft(3, onto="torch")
    f = tg.graft(lambda x: jax.lax.psum(x, "i"), onto="numpy")
    with pytest.raises(NameError):  # what JAX raises itself
        f(np.ones(3, np.float32))
