"""Equinox: layers under `vmap`, batch statistics as state, and a filtered training step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Net(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    head: eqx.nn.MLP

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=a)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.head = eqx.nn.MLP(4 * 16, 3, 16, 1, key=b)

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        return self.head(jax.nn.relu(x).ravel()), state


def loss(model, state, x):
    out, state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    return jnp.square(out).mean(), state


def cases():
    key = jax.random.key(0)
    model, state = eqx.nn.make_with_state(Net)(key)
    x = jax.random.normal(key, (3, 1, 6, 6))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def train(params, state, x):
        opt, losses = optimizer.init(params), []
        for _ in range(3):
            (value, state), grads = jax.value_and_grad(lambda p, s: loss(eqx.combine(p, static), s, x), has_aux=True)(
                params, state
            )
            updates, opt = optimizer.update(grads, opt)
            params = eqx.apply_updates(params, updates)
            losses.append(value)
        return jnp.stack(losses), params, state

    attention = eqx.nn.MultiheadAttention(2, 8, key=key)
    rows = jax.random.normal(key, (5, 8))
    return {
        "train": (train, (params, state, x)),
        "attention": (lambda x: attention(x, x, x), (rows,)),
    }
