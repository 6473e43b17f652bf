"""Functions and models of JAX on TensorFlow with extents that are not known: in a `tf.function`, as layers of Keras."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorgraft as tg

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


def graph(f, *shapes):
    return tf.function(f, input_signature=[tf.TensorSpec(s, tf.float32) for s in shapes])


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x: jax.nn.softmax(x @ x.T) * x.shape[0], [(None, 8)]),
        (lambda x: x.reshape(x.shape[0] * 2, 4), [(None, 8)]),
        (lambda x: (jnp.arange(x.shape[0])[:, None] + x, jnp.zeros((x.shape[0], 2))), [(None, 8)]),
        (lambda x, y: jnp.concatenate([x, y]).reshape(-1, 4), [(None, 8), (None, 8)]),
        (lambda x, y: {"sum": x + y}, [(None, 8), (None, 8)]),
        (lambda x: jax.lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1], [(None, 3)]),
        (lambda x: jnp.sort(x, 0)[::-1].mean((0, 1)), [(None, None)]),
        (lambda x: jax.lax.conv(x, jnp.ones((2, 3, 2, 2)), (1, 1), "SAME"), [(None, 3, None, 5)]),
    ],
)
def test_unknown_extents_are_symbolic_ones(fn, shapes):
    f = graph(tg.graft(fn, onto="tensorflow"), *shapes)
    for extent in (4, 6):
        arrays = [normal(*(n or extent for n in shape)) for shape in shapes]
        jax.tree.map(close, f(*arrays), fn(*arrays))


@jax.custom_vjp
def doubled(x):
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def test_derivatives_are_jaxs():
    def fn(w, x):
        return doubled(x @ w).sum(-1), jnp.argmax(x, -1)

    f = tg.graft(fn, onto="tensorflow")

    @tf.function(input_signature=[tf.TensorSpec((8, 3)), tf.TensorSpec((None, 8))])
    def slopes(w, x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch([w, x])
                loss = tf.reduce_sum(f(w, x)[0])
            first = tape.gradient(loss, [w, x])
            bent = tf.reduce_sum(first[1] ** 2)
        return [*first, outer.gradient(bent, x)]

    w, x = normal(8, 3), normal(5, 8)
    right = jax.grad(lambda w, x: fn(w, x)[0].sum(), (0, 1))
    for a, b in zip(slopes(w, x), (*right(w, x), jax.grad(lambda x: (right(w, x)[1] ** 2).sum())(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: sum(x[i] for i in range(x.shape[0])), r"axis 0 of an argument of shape \(None, 8\)"),
        (lambda x: x if x.shape[0] > 3 else -x, "batch_size=32"),
        (lambda x: x @ x, r"axis 0 of an argument of shape \(None, 8\)"),
    ],
)
def test_a_program_that_needs_the_extent_says_which(fn, says):
    f = tg.graft(fn, onto="tensorflow")
    with pytest.raises(Exception, match=says):  # TensorFlow makes an error of its own of it
        graph(f, (None, 8)).get_concrete_function()
    with pytest.raises(tg.ShapeError, match=says):
        f(keras.Input((8,)))


def test_other_errors_are_the_programs_own():
    f = tg.graft(lambda x: jnp.linalg.cholesky(x), onto="tensorflow")
    with pytest.raises(NotImplementedError, match="require known extents"):
        f(keras.Input((4, 4)))
    with pytest.raises(ValueError, match="mine"):
        tg.graft(lambda x: {}[x.ndim] if x.ndim == 1 else int("mine"), onto="tensorflow")(keras.Input((8,)))
    with pytest.raises(tg.ShapeError, match="number of axes"):
        tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec(None))
    import torch

    with pytest.raises(ValueError, match=r"\(None, 8\).*traced only for known shapes"):
        tg.graft(torch.nn.Linear(8, 3), onto="tensorflow")(keras.Input((8,)))
    same = graph(tg.graft(lambda x, y: x + y, onto="tensorflow"), (None, 8), (None, 8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="extent"):
        same(normal(4, 8), normal(3, 8))


class Net(eqx.Module):
    layers: list
    steps: jax.Array

    def __init__(self, seed):
        keys = jax.random.split(jax.random.key(seed))
        self.layers = [eqx.nn.Linear(8, 6, key=keys[0]), eqx.nn.Linear(6, 3, key=keys[1])]
        self.steps = jnp.arange(3)

    def __call__(self, x):
        return jax.vmap(lambda x: self.layers[1](jax.nn.relu(self.layers[0](x))))(x) + self.steps


def functional(seed):
    keras.utils.set_random_seed(seed)  # of the weights of Dense, and of the order of the batches
    inputs = keras.Input((8,))
    grafted = tg.graft(Net(seed), onto="tensorflow")
    return keras.Model(inputs, keras.layers.Dense(2)(grafted(inputs))), grafted


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with NumPy 2
def test_a_layer_of_a_keras_model(tmp_path):
    model, grafted = functional(0)
    x, y = normal(50, 8), normal(50, 2)
    assert len(model.trainable_weights) == 6 and len(model.non_trainable_weights) == 1
    assert model.count_params() == 8 * 6 + 6 + 6 * 3 + 3 + 3 + 3 * 2 + 2
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    assert "Net" in "".join(lines) and "(None, 3)" in "".join(lines)
    close(grafted(x), Net(0)(x))
    before = [v.numpy() for v in grafted.trainable_variables]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    losses = model.fit(x, y, epochs=3, batch_size=20, verbose=0).history["loss"]  # two batches of 20, one of 10
    assert losses[-1] < losses[0]
    assert all(np.abs(a - v.numpy()).max() > 0 for a, v in zip(before, grafted.trainable_variables, strict=True))
    close(model.predict(x, verbose=0), model(x))
    trained = eqx.tree_at(
        lambda n: [p for layer in n.layers for p in (layer.weight, layer.bias)],
        Net(0),
        [jnp.asarray(grafted.state[f"layers.{i}.{p}"].numpy()) for i in (0, 1) for p in ("weight", "bias")],
    )
    close(grafted(x), trained(x))

    model.save_weights(tmp_path / "model.weights.h5")
    other, _ = functional(1)
    other.load_weights(tmp_path / "model.weights.h5")
    close(other(x), model(x))
    with pytest.raises(NotImplementedError, match="save_weights"):
        model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    np.save(tmp_path / "x.npy", x[:7])
    program = (
        "import sys, numpy as np, tensorflow as tf\n"
        f"m = tf.saved_model.load({str(tmp_path / 'exported')!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, m.serve(np.load({str(tmp_path / 'x.npy')!r})))\n"
        "assert 'tensorgraft' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    close(np.load(tmp_path / "y.npy"), model(x[:7]))


def test_one_step_is_that_of_jax():
    inputs = keras.Input((8,))
    grafted = tg.graft(Net(0), onto="tensorflow")
    model = keras.Model(inputs, grafted(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = normal(20, 8), normal(20, 3)
    model.fit(x, y, batch_size=20, verbose=0)
    slopes = eqx.filter_grad(lambda n: ((n(x) - y) ** 2).mean())(Net(0))
    for i in (0, 1):
        right = Net(0).layers[i].weight - 0.1 * slopes.layers[i].weight
        close(grafted.state[f"layers.{i}.weight"], right)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.grafted = tg.graft(Net(0), onto="tensorflow")
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(self.grafted(x))


@pytest.mark.parametrize(
    "make",
    [
        Subclassed,
        lambda: keras.Sequential([keras.Input((8,)), tg.graft(Net(0), onto="tensorflow"), keras.layers.Dense(1)]),
        lambda: keras.Sequential([tg.graft(Net(0), onto="tensorflow"), keras.layers.Dense(1)]),
    ],
    ids=["subclassed", "sequential", "sequential without input"],
)
def test_in_other_models_of_keras(make):
    model = make()
    x = normal(10, 8)
    assert model(x).shape == (10, 1)
    assert len(model.trainable_weights) == 6
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, normal(10, 1), verbose=0)
    assert all(np.abs(a - w.numpy()).max() > 0 for a, w in zip(before, model.trainable_weights, strict=True))


def test_functions_and_frozen_layers():
    a, b = keras.Input((8,)), keras.Input((8,))
    f = tg.graft(lambda x, y: {"product": x * y, "all": x.sum()}, onto="tensorflow")
    model = keras.Model([a, b], f(a, b))
    x, y = normal(5, 8), normal(5, 8)
    close(model([x, y])["product"], x * y)
    assert f(a, b)["product"].shape == (None, 8) and not model.weights
    two = [tg.graft(Net(0), onto="tensorflow") for _ in range(2)]
    two[0].trainable = False
    both = keras.Model(a, keras.layers.add([m(a) for m in two]))  # their names differ
    assert len(both.trainable_weights) == 4 and len(two[1].trainable_variables) == 4
    assert not two[0].trainable_variables
    import torch

    linear = torch.nn.Linear(8, 3)
    fixed = keras.Input((8,), batch_size=5)
    model = keras.Model(fixed, tg.graft(linear, onto="tensorflow")(fixed))
    close(model(x), linear(torch.from_numpy(x)).detach())
    assert len(model.trainable_weights) == 2
