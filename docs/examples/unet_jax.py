"""UNet: examples.networks.unet.UNet of PyTorch 2.13.0, written for JAX by tensorgraft."""

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file


def conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
) -> jax.Array:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O)."""
    n = weight.ndim - 2
    strides, pads, gaps = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation)
    )
    pads = [p if isinstance(p, tuple) else (p, p) for p in pads]
    y = jax.lax.conv_general_dilated(x, weight, strides, pads, rhs_dilation=gaps)
    return y + bias.reshape(-1, *[1] * n)


def conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
) -> jax.Array:
    """The transpose of `conv` in its images: x (N, C, spatial...), weight (C, O / groups, spatial...), bias (O)."""
    taps = weight.shape[2:]
    n = len(taps)
    strides, pads, extra, gaps = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, output_padding, dilation)
    )
    weight = weight.swapaxes(0, 1)
    reach = [d * (k - 1) - p for k, d, p in zip(taps, gaps, pads, strict=True)]
    y = jax.lax.conv_general_dilated(
        x,
        jnp.flip(weight, range(2, n + 2)),
        (1,) * n,
        [(r, r + e) for r, e in zip(reach, extra, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=gaps,
    )
    return y + bias.reshape(-1, *[1] * n)


def max_pool(x: jax.Array, window: tuple[int, ...], stride: tuple[int, ...]) -> jax.Array:
    """The largest in each window over the last axes of x."""
    lead = x.ndim - len(window)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(
        x,
        np.array(least, x.dtype),
        jax.lax.max,
        (1,) * lead + window,
        (1,) * lead + stride,
        ((0, 0),) * lead + ((0, 0),) * len(window),
    )


def per_channel(v: jax.Array, x: jax.Array) -> jax.Array:
    """A number for each channel of x (N, C, ...)."""
    return v.reshape(-1, *[1] * (x.ndim - 2))


def conv2d(p: dict, x: jax.Array, padding: int) -> jax.Array:
    """x: (batch, n, size, size)"""
    return conv(x, p["weight"], p["bias"], padding=padding)


def group_norm(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, n, size, size)"""
    parts = x.reshape(x.shape[0], 8, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) * jax.lax.rsqrt(
        parts.var(-1, keepdims=True) + 1e-5
    )
    y = parts.reshape(x.shape)
    y = y * per_channel(p["weight"], x)
    return y + per_channel(p["bias"], x)


def conv_transpose2d(p: dict, x: jax.Array) -> jax.Array:
    """x: (batch, n, n, n)"""
    return conv_transpose(x, p["weight"], p["bias"], stride=2)


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
    return double_conv(p["conv"], max_pool(x, (2, 2), (2, 2)))


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
