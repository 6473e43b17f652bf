"""Flax linen: a convolutional network with batch statistics and dropout, its gradients, and steps of Optax."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3), use_bias=False)(x)))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
        x = nn.Dropout(0.3, deterministic=not train)(nn.gelu(nn.Dense(16)(x)))
        return nn.Dense(4)(x)


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(32, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
        return nn.Dense(32)(x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x)))))


model, decoder, optimizer = Net(), Decoder(), optax.adamw(1e-2)


def loss_fn(params, stats, x, y, key):
    out, new = model.apply(
        {"params": params, "batch_stats": stats}, x, True, mutable=["batch_stats"], rngs={"dropout": key}
    )
    return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), new["batch_stats"]


def train(variables, x, y, key):
    params, stats = variables["params"], variables["batch_stats"]
    state, losses = optimizer.init(params), []
    for k in jax.random.split(key, 3):
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y, k)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(loss)
    return jnp.stack(losses), params, stats


def recurrent(variables, x):
    return nn.RNN(nn.GRUCell(8)).apply(variables, x)


def cases():
    key = jax.random.key(0)
    x = jax.random.normal(key, (4, 8, 8, 1))
    y = jnp.array([0, 1, 2, 3])
    variables = model.init(key, x, False)
    tokens = jax.random.randint(key, (2, 6), 0, 32)
    weights = decoder.init(key, tokens)
    sequence = jax.random.normal(key, (2, 5, 3))
    cells = nn.RNN(nn.GRUCell(8)).init(key, sequence)
    return {
        "evaluate": (lambda v, x: model.apply(v, x, False), (variables, x)),
        "train": (train, (variables, x, y, key)),
        "decoder": (decoder.apply, (weights, tokens)),
        "decoder gradient": (jax.grad(lambda w, t: (decoder.apply(w, t) ** 2).mean()), (weights, tokens)),
        "recurrent": (recurrent, (cells, sequence)),
    }
