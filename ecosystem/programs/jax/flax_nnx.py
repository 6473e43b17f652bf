"""Flax nnx: modules with state, by `split` and `merge`, in a training step of Optax."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def train(graph, state, x, y):
    model = nnx.merge(graph, state)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    losses = []
    for _ in range(3):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        losses.append(loss)
    return jnp.stack(losses), nnx.state(model, nnx.Param), nnx.state(model, nnx.BatchStat)


def evaluate(graph, state, x):
    model = nnx.merge(graph, state)
    model.eval()
    return model(x)


def cases():
    graph, state = nnx.split(Net(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (8, 6))
    y = jnp.arange(8) % 3
    return {
        "train": (lambda state, x, y: train(graph, state, x, y), (state, x, y)),
        "evaluate": (lambda state, x: evaluate(graph, state, x), (state, x)),
    }
