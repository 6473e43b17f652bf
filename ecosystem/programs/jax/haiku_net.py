"""Haiku: a transformed network with state, an LSTM, and gradients."""

import haiku as hk
import jax
import jax.numpy as jnp


def net(x, training):
    x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(hk.Conv2D(6, 3)(x), training))
    return hk.Linear(3)(hk.Flatten()(hk.MaxPool(2, 2, "SAME")(x)))


def core(x):
    lstm = hk.LSTM(8)
    out, _ = hk.dynamic_unroll(lstm, x, lstm.initial_state(x.shape[1]))
    return hk.BatchApply(hk.Linear(2))(out)


model, recurrent = hk.transform_with_state(net), hk.without_apply_rng(hk.transform(core))


def loss(params, state, x):
    out, state = model.apply(params, state, None, x, True)
    return jnp.square(out).mean(), state


def cases():
    key = jax.random.key(0)
    x = jax.random.normal(key, (2, 6, 6, 1))
    params, state = model.init(key, x, True)
    sequence = jax.random.normal(key, (5, 2, 3))
    weights = recurrent.init(key, sequence)
    return {
        "apply": (lambda p, s, x: model.apply(p, s, None, x, False)[0], (params, state, x)),
        "gradient": (jax.value_and_grad(loss, has_aux=True), (params, state, x)),
        "lstm": (recurrent.apply, (weights, sequence)),
        "lstm gradient": (jax.grad(lambda w, x: jnp.square(recurrent.apply(w, x)).sum()), (weights, sequence)),
    }
