"""UNet: examples.networks.unet.UNet of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def conv2d(p: dict, x: jax.Array, padding: int) -> jax.Array:
    """x: (batch, n, size, size)"""
    y = jax.lax.conv_general_dilated(
        x, p["weight"], (1, 1), ((padding, padding), (padding, padding))
    )
    return y + p["bias"].reshape(-1, 1, 1)


def group_norm(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, n, size, size)"""
    batch, size, size2 = x.shape[:3]
    parts = x.reshape(batch, 8, -1)
    centred = parts - jnp.mean(parts, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(batch, size, size2, size2)
    return y * p["weight"].reshape(-1, 1, 1) + p["bias"].reshape(-1, 1, 1)


def conv_transpose2d(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, n, n, n)"""
    swapped = jnp.flip(p["weight"].swapaxes(0, 1), axis=(2, 3))
    y = jax.lax.conv_general_dilated(x, swapped, (1, 1), ((1, 1), (1, 1)), lhs_dilation=(2, 2))
    return y + p["bias"].reshape(-1, 1, 1)


def double_conv(p: dict, x: jax.Array) -> jax.Array:
    """Two convolutions of 3 x 3, each with a norm and a SiLU.

    x: (batch, n, size, size)
    """
    x = jax.nn.silu(group_norm(p["norm1"], conv2d(p["conv1"], x, padding=1)))
    return jax.nn.silu(group_norm(p["norm2"], conv2d(p["conv2"], x, padding=1)))


def down(p: dict, x: jax.Array) -> jax.Array:
    """Half the resolution, then two convolutions.

    x: (batch, n, size, size)
    """
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return double_conv(p["conv"], x)


def up(p: dict, x: jax.Array, skip: jax.Array) -> jax.Array:
    """Twice the resolution, beside what the way down had there.

    x: (batch, n, n, n), skip: (batch, n, n, n)
    """
    return double_conv(p["conv"], jnp.concatenate([skip, conv_transpose2d(p["up"], x)], axis=1))


def unet(params: dict, image: jax.Array) -> jax.Array:
    """Images to a map of logits of the same size.

    image: (batch, 3, size, size)
    """
    x1 = double_conv(params["inc"], image)
    x2 = down(params["down1"], x1)
    x3 = down(params["down2"], x2)
    x = down(params["down3"], x3)
    x = up(params["up1"], x, x3)
    x = up(params["up2"], x, x2)
    x = up(params["up3"], x, x1)
    return conv2d(params["outc"], x, padding=0)


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
