"""LSTMModel: examples.networks.lstm.LSTMModel of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def _lstm(
    x: jax.Array,
    h: jax.Array,
    c: jax.Array,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: jax.Array,
    b_hh: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer (Hochreiter, Schmidhuber 1997), from x (T, N, I) and states h, c (N, H): (every h,
    the last h, the last c).

    x: (length, batch, n), h: (batch, 96), c: (batch, 96), w_ih: (384, n), w_hh: (384, 96), b_ih:
    (384,), b_hh: (384,)
    """

    def step(state, row):
        h, c = state
        (gates,) = row
        i, f, g, o = jnp.split(gates + (h @ w_hh.T + b_hh), 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), (h,)

    (h, c), (ys,) = jax.lax.scan(step, (h, c), (x @ w_ih.T + b_ih,))
    return ys, h, c


def lstm(
    p: dict, x: jax.Array, hx_0: jax.Array, hx_1: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x: (batch, length, 64), hx_0: (2, batch, 96), hx_1: (2, batch, 96)"""
    ys, h, c = _lstm(
        x.transpose(1, 0, 2),
        hx_0[0],
        hx_1[0],
        p["weight_ih_l0"],
        p["weight_hh_l0"],
        p["bias_ih_l0"],
        p["bias_hh_l0"],
    )
    ys, h2, c2 = _lstm(
        ys, hx_0[1], hx_1[1], p["weight_ih_l1"], p["weight_hh_l1"], p["bias_ih_l1"], p["bias_hh_l1"]
    )
    return ys.transpose(1, 0, 2), jnp.stack([h, h2]), jnp.stack([c, c2])


def lstm_model(params: dict, ids: jax.Array, state_0: jax.Array, state_1: jax.Array):
    """Token ids to the logits of the next token, and the state after the last one.

    ids: (batch, length), state_0: (2, batch, 96), state_1: (2, batch, 96)
    """
    embedded = params["encoder"]["weight"][ids]
    output, state_0, state_1 = lstm(params["rnn"], embedded, state_0, state_1)
    return output @ params["decoder"]["weight"].T + params["decoder"]["bias"], (state_0, state_1)


def nested(flat: dict) -> dict:
    """{"h.0.w": x} as {"h": [{"w": x}]}: numbers that count from 0 are places in a list."""
    tree: dict = {}
    for path, value in flat.items():
        *parts, last = path.split(".")
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = value

    def listed(node):
        if not isinstance(node, dict):
            return node
        node = {int(k) if k.isdigit() else k: listed(v) for k, v in node.items()}
        return [node[i] for i in range(len(node))] if set(node) == set(range(len(node))) else node

    return listed(tree)


def flat(tree, prefix: str = "") -> dict:
    """The opposite of `nested`."""
    if not isinstance(tree, dict | list):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for name, child in items for k, v in flat(child, f"{prefix}{name}.").items()}


def load_weights(path: str) -> dict:
    """The parameters of a safetensors file with the names of the original."""
    weights = {name: jnp.asarray(x) for name, x in load_file(path).items()}
    return nested(weights)


def save_weights(params: dict, path: str) -> None:
    """Write a file that the original loads."""
    weights = flat(params)
    save_file({name: np.asarray(x) for name, x in weights.items()}, path)
