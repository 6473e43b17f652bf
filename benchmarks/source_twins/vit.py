"""A vision transformer by hand: functions over the parameters of examples/networks/vit.py."""

import jax
import jax.numpy as jnp

HEADS, PATCH = 4, 4


def layer_norm(p: dict, x: jax.Array, eps: float = 1e-6) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * p["weight"] + p["bias"]


def linear(p: dict, x: jax.Array) -> jax.Array:
    return x @ p["weight"].T + p["bias"]


def attention(p: dict, x: jax.Array) -> jax.Array:
    """Attention of all patches to all patches, x (batch, patches, width)."""
    batch, patches, width = x.shape
    size = width // HEADS
    qkv = linear(p["qkv"], x).reshape(batch, patches, 3, HEADS, size)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    scores = q @ k.mT * size**-0.5
    y = jax.nn.softmax(scores, axis=-1) @ v
    y = y.transpose(0, 2, 1, 3).reshape(batch, patches, width)
    return linear(p["proj"], y)


def block(p: dict, x: jax.Array) -> jax.Array:
    x = x + attention(p["attn"], layer_norm(p["norm1"], x))
    hidden = linear(p["mlp"][0], layer_norm(p["norm2"], x))
    hidden = jax.nn.gelu(hidden, approximate=False)
    return x + linear(p["mlp"][2], hidden)


def embed(p: dict, images: jax.Array) -> jax.Array:
    """Images (batch, 3, height, width) to patches (batch, patches, width)."""
    x = jax.lax.conv_general_dilated(images, p["weight"], window_strides=(PATCH, PATCH), padding="VALID")
    x = x + p["bias"][:, None, None]
    batch, width = x.shape[:2]
    return x.reshape(batch, width, -1).swapaxes(1, 2)


def vit(params: dict, images: jax.Array) -> jax.Array:
    """Images (batch, 3, height, width) to class logits."""
    x = embed(params["patch"], images)
    batch, _, width = x.shape
    cls = jnp.broadcast_to(params["cls"], (batch, 1, width))
    x = jnp.concatenate([cls, x], axis=1) + params["pos"]
    for p in params["blocks"]:
        x = block(p, x)
    x = layer_norm(params["norm"], x)
    return linear(params["head"], x[:, 0])
