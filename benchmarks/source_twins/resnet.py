"""A residual network by hand: functions over the parameters and buffers of examples/networks/resnet.py."""

import jax
import jax.numpy as jnp


def conv(p: dict, x: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        p["weight"],
        window_strides=(stride, stride),
        padding=[(padding, padding)] * 2,
    )


def batch_norm(p: dict, b: dict, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """x (N, C, H, W) by the running statistics of each channel."""
    scale = p["weight"] * jax.lax.rsqrt(b["running_var"] + eps)
    shift = p["bias"] - b["running_mean"] * scale
    return x * scale[:, None, None] + shift[:, None, None]


def max_pool(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        window_dimensions=(1, 1, size, size),
        window_strides=(1, 1, stride, stride),
        padding=[(0, 0), (0, 0), (padding, padding), (padding, padding)],
    )


def basic_block(p: dict, b: dict, x: jax.Array, stride: int) -> jax.Array:
    identity = x
    if "downsample" in p:
        identity = conv(p["downsample"][0], x, stride)
        identity = batch_norm(p["downsample"][1], b["downsample"][1], identity)
    out = conv(p["conv1"], x, stride, padding=1)
    out = jax.nn.relu(batch_norm(p["bn1"], b["bn1"], out))
    out = conv(p["conv2"], out, padding=1)
    out = batch_norm(p["bn2"], b["bn2"], out)
    return jax.nn.relu(out + identity)


def stage(p: list, b: list, x: jax.Array, stride: int) -> jax.Array:
    for i, (block_p, block_b) in enumerate(zip(p, b, strict=True)):
        x = basic_block(block_p, block_b, x, stride if i == 0 else 1)
    return x


def resnet(params: dict, buffers: dict, x: jax.Array) -> jax.Array:
    """Images (batch, 3, height, width) to class logits."""
    x = conv(params["conv1"], x, stride=2, padding=3)
    x = jax.nn.relu(batch_norm(params["bn1"], buffers["bn1"], x))
    x = max_pool(x, 3, stride=2, padding=1)
    x = stage(params["layer1"], buffers["layer1"], x, stride=1)
    x = stage(params["layer2"], buffers["layer2"], x, stride=2)
    x = stage(params["layer3"], buffers["layer3"], x, stride=2)
    x = stage(params["layer4"], buffers["layer4"], x, stride=2)
    x = x.mean((2, 3))
    return x @ params["fc"]["weight"].T + params["fc"]["bias"]
