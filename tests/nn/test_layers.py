"""Layers, on every backend: the parameters, results and gradients of Equinox's layers for the same key."""

import functools

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
from tensorgraft.transforms import filter, filter_grad, is_array, tree_inference

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)
RNG = np.random.default_rng(0)


def values(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


# name: (of either namespace and a key -> the layer, its arguments)
LAYERS = {
    "Linear": (lambda n, k: n.Linear(5, 3, key=k), [values(5)]),
    "Linear without bias": (lambda n, k: n.Linear(5, 3, use_bias=False, key=k), [values(5)]),
    "Linear of scalars": (lambda n, k: n.Linear("scalar", "scalar", key=k), [values()]),
    "Linear, complex": (lambda n, k: n.Linear(4, 2, dtype=np.dtype("complex64"), key=k), [values(4)]),
    "MLP": (lambda n, k: n.MLP(4, 2, 8, 2, key=k), [values(4)]),
    "MLP, depth 0": (lambda n, k: n.MLP(4, "scalar", 8, 0, key=k), [values(4)]),
    "Embedding": (lambda n, k: n.Embedding(10, 4, key=k), [np.int32(7)]),
    "LayerNorm": (lambda n, k: n.LayerNorm((3, 4)), [values(3, 4)]),
    "LayerNorm without weights": (lambda n, k: n.LayerNorm(6, use_weight=False, use_bias=False), [values(6)]),
    "RMSNorm": (lambda n, k: n.RMSNorm(6), [values(6)]),
    "GRUCell": (lambda n, k: n.GRUCell(4, 3, key=k), [values(4), values(3)]),
    "GRUCell without bias": (lambda n, k: n.GRUCell(4, 3, use_bias=False, key=k), [values(4), values(3)]),
    "LSTMCell": (lambda n, k: n.LSTMCell(4, 3, key=k), [values(4), (values(3), values(3))]),
    "MultiheadAttention": (lambda n, k: n.MultiheadAttention(2, 8, key=k), [values(5, 8)] * 3),
    "MultiheadAttention, all sizes": (
        lambda n, k: n.MultiheadAttention(
            2, 6, 5, 4, 3, 7, 2, True, True, True, True, key=k
        ),
        [values(3, 6), values(5, 5), values(5, 4)],
    ),
    "MultiheadAttention with a mask": (
        lambda n, k: n.MultiheadAttention(2, 8, key=k),
        [*[values(4, 8)] * 3, np.tril(np.ones((4, 4), bool))],
    ),
    "MultiheadAttention with a mask a head": (
        lambda n, k: n.MultiheadAttention(2, 4, key=k),
        [*[values(3, 4)] * 3, np.stack([np.tril(np.ones((3, 3), bool)), np.eye(3, dtype=bool)])],
    ),
    "Conv1d": (lambda n, k: n.Conv1d(2, 4, 3, key=k), [values(2, 9)]),
    "Conv2d": (lambda n, k: n.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=1, groups=2, key=k), [values(4, 7, 6)]),
    "Conv3d": (lambda n, k: n.Conv3d(1, 2, 2, key=k), [values(1, 4, 3, 3)]),
    "Conv, SAME": (lambda n, k: n.Conv(2, 1, 2, 4, stride=3, padding="SAME", key=k), [values(1, 8, 7)]),
    "Conv, SAME_LOWER, dilated": (
        lambda n, k: n.Conv1d(1, 2, 3, dilation=2, padding="SAME_LOWER", key=k), [values(1, 8)],
    ),
    "Conv, circular": (
        lambda n, k: n.Conv2d(1, 2, 3, padding=((1, 2), (0, 1)), padding_mode="circular", key=k), [values(1, 5, 4)],
    ),
    "Conv, reflected": (lambda n, k: n.Conv1d(1, 2, 3, padding=2, padding_mode="REFLECT", key=k), [values(1, 5)]),
    "Conv, replicated": (
        lambda n, k: n.Conv1d(1, 2, 3, padding="SAME", padding_mode="REPLICATE", use_bias=False, key=k),
        [values(1, 5)],
    ),
    "Sequential": (
        lambda n, k: n.Sequential([n.Linear(4, 3, key=k), n.Lambda(lambda x: x * 2), n.Identity()]), [values(4)],
    ),
}  # fmt: skip
SAMPLE = {"Linear, complex", "MLP", "Embedding", "LayerNorm", "RMSNorm", "LSTMCell", "GRUCell", "Conv2d",
          "Conv, circular", "MultiheadAttention with a mask"}  # fmt: skip
CASES = [(name, b) for name in LAYERS for b in BACKENDS if b in ("numpy", "torch") or name in SAMPLE]


def same(ours, right, atol=2e-6):
    a, b = optree.tree_leaves(ours), jax.tree.leaves(right)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=atol)


def on(backend, tree):
    return optree.tree_map(lambda a: xp.asarray(np.asarray(a), device=backend), tree)


def loss(total, real):
    return lambda layer, *args: total(real(optree.tree_leaves(layer(*args))[0]) ** 2)


@functools.cache
def equinox_gives(name):
    """(the parameters, the result, the gradient of a loss)."""
    make, args = LAYERS[name]

    @eqx.filter_jit  # one program, instead of one for each operation
    def all_of_it(key, args):
        layer = make(eqx.nn, key)
        grads = eqx.filter_grad(loss(jnp.sum, jnp.real))(layer, *args)
        return eqx.filter(layer, eqx.is_array), layer(*args), grads

    return all_of_it(jax.random.key(3), jax.tree.map(jnp.asarray, args))


@pytest.mark.sampled(by_parameters=True)
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_layers(name, backend, monkeypatch):
    make, args = LAYERS[name]
    monkeypatch.setattr(registry, "default", lambda: backend)  # of the weights of layers that take no key
    layer = make(nn, random.key(3, device=backend))
    held, result, grads = equinox_gives(name)
    found = filter(layer, is_array)
    assert all(str(x.device) == backend for x in optree.tree_leaves(found))
    same(found, held, atol=1e-7)  # XLA fuses what scales random numbers
    inputs = [on(backend, a) for a in args]
    same(layer(*inputs), result)
    if optree.tree_leaves(found):
        same(filter_grad(loss(xp.sum, xp.real))(layer, *inputs), grads, atol=1e-5)


ACTIVATIONS = {
    "relu": {}, "gelu": {}, "silu": {}, "sigmoid": {}, "softplus": {}, "elu": {"alpha": 0.7}, "leaky_relu": {},
    "softmax": {"axis": 0}, "log_softmax": {}, "logsumexp": {"axis": 1},
}  # fmt: skip


@ON
def test_functions(backend):
    x = np.array([[0.0, -1.5, 2.0, 30.0], [-0.0, 0.5, -40.0, 1e-3]], np.float32)
    for name, options in [*ACTIVATIONS.items(), ("gelu", {"approximate": False})]:
        ours = getattr(nn, name)
        right = getattr(jax.nn, name)
        same(ours(xp.asarray(x, device=backend), **options), right(jnp.asarray(x), **options))
        g = tg.grad(lambda x: xp.sum(ours(x, **options) ** 2))(xp.asarray(x, device=backend))  # noqa: B023
        same(g, jax.grad(lambda x: jnp.sum(right(x, **options) ** 2))(jnp.asarray(x)), atol=1e-5)  # noqa: B023


def test_nan_goes_through_relu():
    assert np.isnan(np.asarray(nn.relu(xp.asarray([np.nan], device="numpy"))))[0]


@ON
def test_dropout(backend):
    x, key = values(6, 5), 4
    ours, right = nn.Dropout(0.3), eqx.nn.Dropout(0.3)
    a = xp.asarray(x, device=backend)
    same(ours(a, key=random.key(key, device=backend)), right(jnp.asarray(x), key=jax.random.key(key)))
    assert tree_inference(ours, True)(a) is a
    assert nn.Dropout(0)(a) is a
    with pytest.raises(RuntimeError, match="key"):
        ours(a)


@ON
def test_dropout_of_attention(backend):
    x = values(4, 8)
    ours = nn.MultiheadAttention(2, 8, dropout_p=0.4, key=random.key(1, device=backend))
    right = eqx.nn.MultiheadAttention(2, 8, dropout_p=0.4, key=jax.random.key(1))
    a = xp.asarray(x, device=backend)
    same(ours(a, a, a, key=random.key(2, device=backend)), right(x, x, x, key=jax.random.key(2)))
    same(tree_inference(ours, True)(a, a, a), eqx.tree_inference(right, True)(x, x, x))


@ON
def test_leading_axes_are_batches(backend):
    layers = {
        "Linear": ((5,), {}), "MLP": ((5,), {}), "LayerNorm": ((5,), {}), "RMSNorm": ((5,), {}), "Conv1d": ((2, 6), {}),
    }  # fmt: skip
    key = random.key(0, device=backend)
    made = {
        "Linear": nn.Linear(5, 3, key=key),
        "MLP": nn.MLP(5, 3, 4, 1, key=key),
        "LayerNorm": nn.LayerNorm(5, device=backend),
        "RMSNorm": nn.RMSNorm(5, device=backend),
        "Conv1d": nn.Conv1d(2, 3, 3, key=key),
    }
    for name, (shape, _) in layers.items():
        x = xp.asarray(values(3, *shape), device=backend)
        same(made[name](x), [np.stack([np.asarray(made[name](x[i])) for i in range(3)])])
    attention = nn.MultiheadAttention(2, 4, key=key)
    x = xp.asarray(values(3, 5, 4), device=backend)
    mask = xp.asarray(np.tril(np.ones((5, 5), bool)), device=backend)
    same(attention(x, x, x, mask), [np.stack([np.asarray(attention(x[i], x[i], x[i], mask)) for i in range(3)])])
    cell = nn.LSTMCell(4, 3, key=key)
    h, x = xp.asarray(values(2, 3), device=backend), xp.asarray(values(2, 4), device=backend)
    same(cell(x, (h, h))[0], [np.stack([np.asarray(cell(x[i], (h[i], h[i]))[0]) for i in range(2)])])


class Slope(tg.Module):
    """An activation with a parameter."""

    slope: object

    def __call__(self, x):
        return xp.where(x > 0, x, self.slope * x)


class TheirSlope(eqx.Module):
    slope: object

    def __call__(self, x):
        return jnp.where(x > 0, x, self.slope * x)


@ON
def test_activations_with_parameters(backend):
    x, key = values(3), random.key(0, device=backend)
    slope = xp.asarray(np.float32(0.25), device=backend)
    ours = nn.MLP(3, 2, 4, 2, activation=Slope(slope), final_activation=Slope(slope), key=key)
    assert ours.activation.slope.shape == (2, 4) and ours.final_activation.slope.shape == (2,)
    right = eqx.nn.MLP(3, 2, 4, 2, TheirSlope(jnp.float32(0.25)), TheirSlope(jnp.float32(0.25)), key=jax.random.key(0))
    a = xp.asarray(x, device=backend)
    same(ours(a), right(x))
    grads = filter_grad(lambda m: xp.sum(m(a)))(ours)
    same(grads, eqx.filter_grad(lambda m: jnp.sum(m(x)))(right))


def test_wrong_use():
    key = random.key(0, device="numpy")
    x = xp.asarray(values(4), device="numpy")
    with pytest.raises(ValueError, match=r"Linear\(5, 3\) expects \(\.\.\., 5\), got float32\[4\]"):
        nn.Linear(5, 3, key=key)(x)
    with pytest.raises(ValueError, match=r"LayerNorm\(\(5,\)\)"):
        nn.LayerNorm(5, device="numpy")(x)
    with pytest.raises(ValueError, match="3 in_channels are not a multiple of 2 groups"):
        nn.Conv1d(3, 4, 2, groups=2, key=key)
    with pytest.raises(ValueError, match="Conv of 1 spatial axes"):
        nn.Conv1d(3, 4, 2, key=key)(x)
    with pytest.raises(ValueError, match="padding_mode"):
        nn.Conv1d(3, 4, 2, padding_mode="mirror", key=key)
    with pytest.raises(ValueError, match="kernel_size"):
        nn.Conv2d(3, 4, (2, 2, 2), key=key)
    with pytest.raises(ValueError, match="padding must be"):
        nn.Conv2d(3, 4, 2, padding="FULL", key=key)
    with pytest.raises(ValueError, match="num_embeddings"):
        nn.Embedding(3, key=key)
    with pytest.raises(ValueError, match="the weight has shape"):
        nn.Embedding(3, 3, weight=xp.zeros((2, 3), device="numpy"))
    with pytest.raises(IndexError, match="out of bounds"):
        nn.Embedding(3, 3, key=key)(3)
    with pytest.raises(ValueError, match="the same length"):
        y = xp.zeros((3, 4), device="numpy")
        nn.MultiheadAttention(2, 4, key=key)(y, y, y[1:])
    with pytest.raises(TypeError, match="expected a key"):
        nn.Linear(5, 3, key=0)
