"""Llama: examples.networks.llama.Llama of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def rms_norm(p: dict, x: jax.Array) -> jax.Array:
    """Scaled by the root of the mean of the squares.

    x: (batch, length, 64)
    """
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5) * p["weight"]


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary position embeddings of x (batch, heads, length, size).

    x: (batch, n, length, 16), cos: (length, 16), sin: (length, 16)
    """
    a, b = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-b, a], axis=-1) * sin


def dot_product_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """softmax(scale q k^T + mask) v of q (N, H, L, E), k (N, G, S, E), v (N, G, S, F).

    q: (batch, 4, length, 16), k: (batch, 4, length, 16), v: (batch, 4, length, 16)
    """
    length = q.shape[2]
    scores = jnp.where(jnp.tri(length, dtype=bool), q @ k.mT * 0.25, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v


def feed_forward(p: dict, x: jax.Array) -> jax.Array:
    """A SwiGLU.

    x: (batch, length, 64)
    """
    return jax.nn.silu(x @ p["w1"]["weight"].T) * (x @ p["w3"]["weight"].T) @ p["w2"]["weight"].T


def attention(p: dict, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Causal attention, in which groups of queries share keys and values.

    x: (batch, length, 64), cos: (length, 16), sin: (length, 16)
    """
    batch, length = x.shape[:2]
    q = (x @ p["wq"]["weight"].T).reshape(batch, length, 4, 16).transpose(0, 2, 1, 3)
    k = (x @ p["wk"]["weight"].T).reshape(batch, length, 2, 16).transpose(0, 2, 1, 3)
    q = rotate(q, cos, sin)
    k = rotate(k, cos, sin)
    x = (x @ p["wv"]["weight"].T).reshape(batch, length, 2, 16).transpose(0, 2, 1, 3)
    k = jnp.repeat(k, 2, axis=1)
    v = jnp.repeat(x, 2, axis=1)
    y = dot_product_attention(q, k, v)
    return y.transpose(0, 2, 1, 3).reshape(batch, length, 64) @ p["wo"]["weight"].T


def block(p: dict, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Attention, then the feed-forward network, each after a norm and beside a shortcut.

    x: (batch, length, 64), cos: (length, 16), sin: (length, 16)
    """
    h = x + attention(p["attention"], rms_norm(p["attention_norm"], x), cos, sin)
    return h + feed_forward(p["feed_forward"], rms_norm(p["ffn_norm"], h))


def llama(params: dict, tokens: jax.Array) -> jax.Array:
    """A language model: token ids to the logits of the next token.

    tokens: (batch, length)
    """
    length = tokens.shape[1]
    frequencies = 10000.0 ** ((-jnp.arange(0, 16, 2)).astype(jnp.float32) / 16.0)
    angles = jnp.arange(length)[..., None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)  # (length, 16)
    cos = jnp.cos(angles)
    sin = jnp.sin(angles)
    h = params["tok_embeddings"]["weight"][tokens]
    for p in params["layers"]:
        h = block(p, h, cos, sin)
    return rms_norm(params["norm"], h) @ params["output"]["weight"].T


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
