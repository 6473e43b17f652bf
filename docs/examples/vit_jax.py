"""ViT: examples.networks.vit.ViT of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def conv2d(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, 3, size, size)"""
    y = jax.lax.conv_general_dilated(x, p["weight"], (4, 4), "VALID")
    return y + p["bias"].reshape(64, 1, 1)


def layer_norm(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, 65, 64)"""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + 1e-6) * p["weight"]
    return y + p["bias"]


def linear(p: dict, x: jax.Array) -> jax.Array:
    """x: (...,)"""
    return x @ p["weight"].T + p["bias"]


def attention(p: dict, x: jax.Array) -> jax.Array:
    """Attention of all patches to all patches, written out.

    x: (batch, 65, 64)
    """
    batch = x.shape[0]
    qkv = linear(p["qkv"], x).reshape(batch, 65, 3, 4, 16).transpose(2, 0, 3, 1, 4)
    q, k, v = jnp.unstack(qkv)
    scores = q @ k.transpose(0, 1, 3, 2) * 0.25
    x = jax.nn.softmax(scores, axis=-1) @ v
    return linear(p["proj"], x.transpose(0, 2, 1, 3).reshape(batch, 65, 64))


def block(p: dict, x: jax.Array) -> jax.Array:
    """A pre-norm transformer block.

    x: (batch, 65, 64)
    """
    x = x + attention(p["attn"], layer_norm(p["norm1"], x))
    x2 = linear(p["mlp"][0], layer_norm(p["norm2"], x))
    x2 = linear(p["mlp"][2], jax.nn.gelu(x2, approximate=False))
    return x + x2


def vit(params: dict, images: jax.Array) -> jax.Array:
    """Images to class logits, by a class token before the patches.

    images: (batch, 3, size, size)
    """
    batch = images.shape[0]
    x = conv2d(params["patch"], images).reshape(batch, 64, 64).transpose(0, 2, 1)
    x = jnp.concatenate([jnp.broadcast_to(params["cls"], (batch, 1, 64)), x], axis=1)
    x = x + params["pos"]
    for p in params["blocks"]:
        x = block(p, x)
    x = layer_norm(params["norm"], x)
    return linear(params["head"], x[:, 0])


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
