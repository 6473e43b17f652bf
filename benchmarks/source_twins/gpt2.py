"""GPT-2 by hand: functions over the parameters of examples/networks/gpt2.py."""

import jax
import jax.numpy as jnp

HEADS = 4


def layer_norm(p: dict, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * p["weight"] + p["bias"]


def linear(p: dict, x: jax.Array) -> jax.Array:
    return x @ p["weight"].T + p["bias"]


def split_heads(x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    return x.reshape(batch, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)


def attention(p: dict, x: jax.Array) -> jax.Array:
    """Causal self-attention of x (batch, length, width)."""
    batch, length, width = x.shape
    q, k, v = jnp.split(linear(p["qkv"], x), 3, axis=-1)
    q, k, v = split_heads(q), split_heads(k), split_heads(v)
    scores = q @ k.mT / jnp.sqrt(width // HEADS)
    causal = jnp.tril(jnp.ones((length, length), dtype=bool))
    scores = jnp.where(causal, scores, -jnp.inf)
    y = jax.nn.softmax(scores, axis=-1) @ v
    y = y.transpose(0, 2, 1, 3).reshape(batch, length, width)
    return linear(p["proj"], y)


def mlp(p: dict, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(linear(p["fc"], x), approximate=True)
    return linear(p["proj"], hidden)


def block(p: dict, x: jax.Array) -> jax.Array:
    x = x + attention(p["attn"], layer_norm(p["ln_1"], x))
    return x + mlp(p["mlp"], layer_norm(p["ln_2"], x))


def gpt2(params: dict, ids: jax.Array) -> jax.Array:
    """Token ids (batch, length) to the logits of the next token."""
    wte = params["wte"]["weight"]
    wpe = params["wpe"]["weight"]
    x = wte[ids] + wpe[: ids.shape[1]]
    for p in params["h"]:
        x = block(p, x)
    return layer_norm(params["ln_f"], x) @ wte.T
