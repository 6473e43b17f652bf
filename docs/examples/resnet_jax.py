"""ResNet: examples.networks.resnet.ResNet of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def batch_norm2d(p: dict, b: dict, x: jax.Array) -> jax.Array:
    """x: (batch, n, n, n)"""
    scale = jax.lax.rsqrt(b["running_var"] + 1e-5).reshape(-1, 1, 1)
    y = (x - b["running_mean"].reshape(-1, 1, 1)) * scale
    return y * p["weight"].reshape(-1, 1, 1) + p["bias"].reshape(-1, 1, 1)


def basic_block(p: dict, b: dict, x: jax.Array) -> jax.Array:
    """Two convolutions beside a shortcut, which is projected where the shape changes.

    x: (batch, n, n, n)
    """
    x2 = jax.lax.conv_general_dilated(x, p["conv1"]["weight"], (1, 1), ((1, 1), (1, 1)))
    out = jax.nn.relu(batch_norm2d(p["bn1"], b["bn1"], x2))
    out = jax.lax.conv_general_dilated(out, p["conv2"]["weight"], (1, 1), ((1, 1), (1, 1)))
    out = batch_norm2d(p["bn2"], b["bn2"], out)
    return jax.nn.relu(out + x)


def basic_block_2(p: dict, b: dict, x: jax.Array) -> jax.Array:
    """Two convolutions beside a shortcut, which is projected where the shape changes.

    x: (batch, n, n, n)
    """
    identity = jax.lax.conv_general_dilated(x, p["downsample"][0]["weight"], (2, 2), "VALID")
    identity = batch_norm2d(p["downsample"][1], b["downsample"][1], identity)
    x = jax.lax.conv_general_dilated(x, p["conv1"]["weight"], (2, 2), ((1, 1), (1, 1)))
    out = jax.nn.relu(batch_norm2d(p["bn1"], b["bn1"], x))
    out = jax.lax.conv_general_dilated(out, p["conv2"]["weight"], (1, 1), ((1, 1), (1, 1)))
    out = batch_norm2d(p["bn2"], b["bn2"], out)
    return jax.nn.relu(out + identity)


def resnet(params: dict, buffers: dict, x: jax.Array) -> jax.Array:
    """Images to class logits, by four stages of blocks.

    x: (batch, 3, size, size)
    """
    x = jax.lax.conv_general_dilated(x, params["conv1"]["weight"], (2, 2), ((3, 3), (3, 3)))
    x = jax.lax.reduce_window(
        jax.nn.relu(batch_norm2d(params["bn1"], buffers["bn1"], x)),
        -jnp.inf,
        jax.lax.max,
        (1, 1, 3, 3),
        (1, 1, 2, 2),
        ((0, 0), (0, 0), (1, 1), (1, 1)),
    )
    for p, b in zip(params["layer1"], buffers["layer1"], strict=True):
        x = basic_block(p, b, x)
    x = basic_block_2(params["layer2"][0], buffers["layer2"][0], x)
    x = basic_block(params["layer2"][1], buffers["layer2"][1], x)
    x = basic_block_2(params["layer3"][0], buffers["layer3"][0], x)
    x = basic_block(params["layer3"][1], buffers["layer3"][1], x)
    x = basic_block_2(params["layer4"][0], buffers["layer4"][0], x)
    x = basic_block(params["layer4"][1], buffers["layer4"][1], x)
    return jnp.mean(x, axis=(-2, -1)) @ params["fc"]["weight"].T + params["fc"]["bias"]


# arrays that are not trained
BUFFERS = {"num_batches_tracked", "running_mean", "running_var"}


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


def load_weights(path: str) -> tuple[dict, dict]:
    """(parameters, buffers) of a safetensors file with the names of the original."""
    weights = {name: jnp.asarray(x) for name, x in load_file(path).items()}
    buffers = {name: x for name, x in weights.items() if name.rsplit(".", 1)[-1] in BUFFERS}
    params = {name: x for name, x in weights.items() if name not in buffers}
    return nested(params), nested(buffers)


def save_weights(params: dict, buffers: dict, path: str) -> None:
    """Write a file that the original loads."""
    weights = {**flat(params), **flat(buffers)}
    save_file({name: np.asarray(x) for name, x in weights.items()}, path)
