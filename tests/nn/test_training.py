"""Training on every backend with the losses of the same model in Equinox: handwritten digits, and a transformer block
that learns to copy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft import nn, random
from tensorgraft.hub import registry
from tensorgraft.transforms import (
    apply_updates,
    assert_max_traces,
    filter_jit,
    filter_value_and_grad,
    is_array,
    tree_deserialise_leaves,
    tree_equal,
    tree_serialise_leaves,
)

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    """Inductor takes seconds a program."""
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def descent(loss, rate, value_and_grad, apply, tree_map):
    """A step of gradient descent, of either library."""

    def step(model, *batch):
        value, grads = value_and_grad(loss)(model, *batch)
        return value, apply(model, tree_map(lambda g: -rate * g, grads))

    return step


def ours(loss, rate):
    step = descent(loss, rate, filter_value_and_grad, apply_updates, optree.tree_map)
    return filter_jit(assert_max_traces(step, max_traces=1))


def equinoxs(loss, rate):
    return eqx.filter_jit(descent(loss, rate, eqx.filter_value_and_grad, eqx.apply_updates, jax.tree.map))


def losses(step, model, batches):
    found = []
    for batch in batches:
        value, model = step(model, *batch)
        found.append(float(value))
    return np.array(found), model


def digits():
    sklearn = pytest.importorskip("sklearn.datasets")
    x, y = sklearn.load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], np.eye(10, dtype=np.float32)[y[order]]
    return [(x[i : i + 64], y[i : i + 64]) for i in range(0, 64 * 20, 64)]


def classifier(n, key, activation):
    return n.MLP(64, 10, 32, 1, activation=activation, key=key)


@ON
@pytest.mark.slow_with("numpy", "jax")
def test_digits(backend):
    batches = digits()

    def loss(model, x, y):
        return -xp.mean(xp.sum(y * nn.log_softmax(model(x)), axis=-1))

    def their_loss(model, x, y):
        return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(jax.vmap(model)(x)), axis=-1))

    model = classifier(nn, random.key(0, device=backend), nn.gelu)
    found, trained = losses(ours(loss, 0.5), model, batches)
    right = classifier(eqx.nn, jax.random.key(0), jax.nn.gelu)
    expected, _ = losses(equinoxs(their_loss, 0.5), right, batches)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert found[-1] < 0.75 * found[0]
    assert all(str(x.device) == backend for x in optree.tree_leaves(trained) if is_array(x))


class Block(tg.Module):
    """A pre-norm transformer block with its embedding."""

    embedding: nn.Embedding
    norm1: nn.LayerNorm
    attention: nn.MultiheadAttention
    norm2: nn.RMSNorm
    mlp: nn.MLP
    out: nn.Linear

    def __init__(self, size, words, *, key):
        e, a, m, o = xp.unstack(random.split(key, 4))
        self.embedding = nn.Embedding(words, size, key=e)
        self.norm1, self.norm2 = nn.LayerNorm(size, device=key.device), nn.RMSNorm(size, device=key.device)
        self.attention = nn.MultiheadAttention(2, size, key=a)
        self.mlp = nn.MLP(size, size, 2 * size, 1, activation=nn.silu, key=m)
        self.out = nn.Linear(size, words, key=o)

    def __call__(self, words, mask):
        x = self.embedding(words)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, mask)
        x = x + self.mlp(self.norm2(x))
        return nn.log_softmax(self.out(x))


class TheirBlock(eqx.Module):
    embedding: eqx.nn.Embedding
    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.RMSNorm
    mlp: eqx.nn.MLP
    out: eqx.nn.Linear

    def __init__(self, size, words, *, key):
        e, a, m, o = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(words, size, key=e)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(size), eqx.nn.RMSNorm(size)
        self.attention = eqx.nn.MultiheadAttention(2, size, key=a)
        self.mlp = eqx.nn.MLP(size, size, 2 * size, 1, activation=jax.nn.silu, key=m)
        self.out = eqx.nn.Linear(size, words, key=o)

    def __call__(self, words, mask):
        x = jax.vmap(self.embedding)(words)
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y, mask)
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))
        return jax.nn.log_softmax(jax.vmap(self.out)(x))


@ON
@pytest.mark.slow_with("torch", "tensorflow")
def test_transformer(backend, tmp_path):
    words, size, length = 7, 8, 6
    mask = np.tril(np.ones((length, length), bool))
    tokens = np.random.default_rng(1).integers(0, words, (8, length)).astype(np.int32)
    wanted = np.eye(words, dtype=np.float32)[np.roll(tokens, 1, axis=-1)]  # the word before
    batches = [(tokens, wanted)] * 20
    inside = xp.asarray(mask, device=backend)

    def loss(model, tokens, wanted):
        return -xp.mean(xp.sum(model(tokens, inside) * wanted, axis=-1))

    def their_loss(model, tokens, wanted):
        return -jnp.mean(jnp.sum(jax.vmap(lambda t: model(t, mask))(tokens) * wanted, axis=-1))

    model = Block(size, words, key=random.key(5, device=backend))
    right = TheirBlock(size, words, key=jax.random.key(5))
    found, trained = losses(ours(loss, 0.6), model, batches)
    expected, _ = losses(equinoxs(their_loss, 0.6), right, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[-1] < 0.7 * found[0]
    tree_serialise_leaves(tmp_path / "block.safetensors", trained)
    assert tree_equal(tree_deserialise_leaves(tmp_path / "block.safetensors", model), trained)
