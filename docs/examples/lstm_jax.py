"""LSTMModel: examples.networks.lstm.LSTMModel of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def lstm(
    x: jax.Array,
    h: jax.Array,
    c: jax.Array,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: jax.Array | None = None,
    b_hh: jax.Array | None = None,
    w_hr: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer (Hochreiter, Schmidhuber 1997): x (T, N, I), h and c (N, H), gates i, f, g, o -> (every h, the last h,
    the last c)."""

    def step(
        carry: tuple[jax.Array, jax.Array], gates: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        gates = gates + h @ w_hh.T if b_hh is None else gates + h @ w_hh.T + b_hh
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        h = h if w_hr is None else h @ w_hr.T
        return (h, c), h

    gates = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    (h, c), ys = jax.lax.scan(step, (h, c), gates, reverse=reverse)
    return ys, h, c


def lstm_2(p: dict, x: jax.Array, hx_0: jax.Array, hx_1: jax.Array):
    """x: (3, length, 64), hx_0: (2, 3, 96), hx_1: (2, 3, 96)"""
    x, x2, x3 = lstm(
        x.transpose(1, 0, 2),
        hx_0[0],
        hx_1[0],
        p["weight_ih_l0"],
        p["weight_hh_l0"],
        p["bias_ih_l0"],
        p["bias_hh_l0"],
    )
    x, x4, x5 = lstm(
        x, hx_0[1], hx_1[1], p["weight_ih_l1"], p["weight_hh_l1"], p["bias_ih_l1"], p["bias_hh_l1"]
    )
    return (x.transpose(1, 0, 2), jnp.stack([x2, x4]), jnp.stack([x3, x5]))


def lstmmodel(params: dict, ids: jax.Array, state_0: jax.Array, state_1: jax.Array):
    """Token ids to the logits of the next token, and the state after the last one.

    ids: (3, length), state_0: (2, 3, 96), state_1: (2, 3, 96)
    """
    state_0, state_1, x = lstm_2(params["rnn"], params["encoder"]["weight"][ids], state_0, state_1)
    return (state_0 @ params["decoder"]["weight"].T + params["decoder"]["bias"], (state_1, x))


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
