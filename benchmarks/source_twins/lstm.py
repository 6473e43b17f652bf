"""An LSTM language model by hand: functions over the parameters of examples/networks/lstm.py."""

import jax
import jax.numpy as jnp

LAYERS = 2


def lstm_layer(p: dict, layer: int, x: jax.Array, h: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x (batch, length, width) -> (every h, the last h, the last c)."""
    w_ih, w_hh = p[f"weight_ih_l{layer}"], p[f"weight_hh_l{layer}"]
    bias = p[f"bias_ih_l{layer}"] + p[f"bias_hh_l{layer}"]

    def step(carry: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        i, f, g, o = jnp.split(gates + h @ w_hh.T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    gates = (x @ w_ih.T + bias).swapaxes(0, 1)
    (h, c), outputs = jax.lax.scan(step, (h, c), gates)
    return outputs.swapaxes(0, 1), h, c


def lstm_model(
    params: dict, ids: jax.Array, h: jax.Array, c: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Token ids (batch, length), h and c (layers, batch, hidden) -> (logits, (h, c))."""
    x = params["encoder"]["weight"][ids]
    hs, cs = [], []
    for layer in range(LAYERS):
        x, last_h, last_c = lstm_layer(params["rnn"], layer, x, h[layer], c[layer])
        hs.append(last_h)
        cs.append(last_c)
    logits = x @ params["decoder"]["weight"].T + params["decoder"]["bias"]
    return logits, (jnp.stack(hs), jnp.stack(cs))
