"""GPT2: examples.networks.gpt2.GPT2 of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def layer_norm(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, length, 64)"""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + 1e-5) * p["weight"]
    return y + p["bias"]


def linear(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, length, n)"""
    return x @ p["weight"].T + p["bias"]


def dot_product_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """softmax(scale q k^T + mask) v of q (N, H, L, E), k (N, G, S, E), v (N, G, S, F).

    q: (batch, 4, length, 16), k: (batch, 4, length, 16), v: (batch, 4, length, 16)
    """
    length = q.shape[2]
    scores = jnp.where(jnp.tri(length, dtype=bool), q @ k.mT * 0.25, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v


def causal_self_attention(p: dict, x: jax.Array) -> jax.Array:
    """Every position looks at itself and at those before it.

    x: (batch, length, 64)
    """
    batch, length = x.shape[:2]
    q, k, v = jnp.split(linear(p["qkv"], x), 3, axis=-1)
    q = q.reshape(batch, length, 4, 16).transpose(0, 2, 1, 3)  # (batch, 4, length, 16)
    k = k.reshape(batch, length, 4, 16).transpose(0, 2, 1, 3)
    v = v.reshape(batch, length, 4, 16).transpose(0, 2, 1, 3)
    y = dot_product_attention(q, k, v)
    y = y.transpose(0, 2, 1, 3).reshape(batch, length, 64)
    return linear(p["proj"], y)


def mlp(p: dict, x: jax.Array) -> jax.Array:
    """The feed-forward half of a block.

    x: (batch, length, 64)
    """
    return linear(p["proj"], jax.nn.gelu(linear(p["fc"], x), approximate=True))


def block(p: dict, x: jax.Array) -> jax.Array:
    """Attention, then the feed-forward network, each after a norm and beside a shortcut.

    x: (batch, length, 64)
    """
    x = x + causal_self_attention(p["attn"], layer_norm(p["ln_1"], x))
    return x + mlp(p["mlp"], layer_norm(p["ln_2"], x))


def gpt2(params: dict, ids: jax.Array) -> jax.Array:
    """A language model: token ids to the logits of the next token.

    ids: (batch, length)
    """
    length = ids.shape[1]
    positions = jnp.arange(length)
    x = params["wte"]["weight"][ids] + params["wpe"]["weight"][positions]
    for p in params["h"]:
        x = block(p, x)
    return layer_norm(params["ln_f"], x) @ params["wte"]["weight"].T


# names of one array, and the name that it has here
TIES = {"lm_head.weight": "wte.weight"}


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
    weights = {name: jnp.asarray(x) for name, x in load_file(path).items() if name not in TIES}
    return nested(weights)


def save_weights(params: dict, path: str) -> None:
    """Write a file that the original loads."""
    weights = flat(params)
    weights |= {name: weights[source] for name, source in TIES.items()}
    save_file({name: np.asarray(x) for name, x in weights.items()}, path)
