"""Llama by hand: functions over the parameters of examples/networks/llama.py."""

import jax
import jax.numpy as jnp

HEADS, GROUPS, THETA = 4, 2, 10000.0


def rms_norm(p: dict, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    mean = jnp.mean(x**2, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + eps) * p["weight"]


def linear(p: dict, x: jax.Array) -> jax.Array:
    return x @ p["weight"].T


def rotations(length: int, size: int) -> tuple[jax.Array, jax.Array]:
    """The cosines and sines (length, size) of rotary position embeddings."""
    frequencies = THETA ** (-jnp.arange(0, size, 2) / size)
    angles = jnp.outer(jnp.arange(length), frequencies)
    angles = jnp.concatenate([angles, angles], axis=-1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-b, a], axis=-1) * sin


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def attention(p: dict, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Causal attention of x (batch, length, width), with shared keys and values."""
    batch, length, width = x.shape
    q = split_heads(linear(p["wq"], x), HEADS)
    k = split_heads(linear(p["wk"], x), GROUPS)
    v = split_heads(linear(p["wv"], x), GROUPS)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    k = jnp.repeat(k, HEADS // GROUPS, axis=1)
    v = jnp.repeat(v, HEADS // GROUPS, axis=1)
    scores = q @ k.mT / jnp.sqrt(width // HEADS)
    causal = jnp.tril(jnp.ones((length, length), dtype=bool))
    scores = jnp.where(causal, scores, -jnp.inf)
    y = jax.nn.softmax(scores, axis=-1) @ v
    y = y.transpose(0, 2, 1, 3).reshape(batch, length, width)
    return linear(p["wo"], y)


def feed_forward(p: dict, x: jax.Array) -> jax.Array:
    hidden = jax.nn.silu(linear(p["w1"], x)) * linear(p["w3"], x)
    return linear(p["w2"], hidden)


def block(p: dict, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    x = x + attention(p["attention"], rms_norm(p["attention_norm"], x), cos, sin)
    return x + feed_forward(p["feed_forward"], rms_norm(p["ffn_norm"], x))


def llama(params: dict, tokens: jax.Array) -> jax.Array:
    """Token ids (batch, length) to the logits of the next token."""
    x = params["tok_embeddings"]["weight"][tokens]
    cos, sin = rotations(tokens.shape[1], x.shape[-1] // HEADS)
    for p in params["layers"]:
        x = block(p, x, cos, sin)
    return linear(params["output"], rms_norm(params["norm"], x))
