"""A U-Net by hand: functions over the parameters of examples/networks/unet.py."""

import jax
import jax.numpy as jnp

GROUPS = 8


def conv(p: dict, x: jax.Array, padding: int = 0) -> jax.Array:
    y = jax.lax.conv_general_dilated(x, p["weight"], window_strides=(1, 1), padding=[(padding, padding)] * 2)
    return y + p["bias"][:, None, None]


def upsample(p: dict, x: jax.Array) -> jax.Array:
    """A transposed convolution of 2 x 2 with stride 2."""
    y = jax.lax.conv_transpose(
        x,
        p["weight"],
        strides=(2, 2),
        padding="VALID",
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        transpose_kernel=True,
    )
    return y + p["bias"][:, None, None]


def group_norm(p: dict, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    y = x.reshape(x.shape[0], GROUPS, -1)
    mean = y.mean(-1, keepdims=True)
    variance = y.var(-1, keepdims=True)
    y = (y - mean) * jax.lax.rsqrt(variance + eps)
    return y.reshape(x.shape) * p["weight"][:, None, None] + p["bias"][:, None, None]


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 2 x 2."""
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        window_dimensions=(1, 1, 2, 2),
        window_strides=(1, 1, 2, 2),
        padding="VALID",
    )


def double_conv(p: dict, x: jax.Array) -> jax.Array:
    x = jax.nn.silu(group_norm(p["norm1"], conv(p["conv1"], x, padding=1)))
    return jax.nn.silu(group_norm(p["norm2"], conv(p["conv2"], x, padding=1)))


def down(p: dict, x: jax.Array) -> jax.Array:
    return double_conv(p["conv"], max_pool(x))


def up(p: dict, x: jax.Array, skip: jax.Array) -> jax.Array:
    x = jnp.concatenate([skip, upsample(p["up"], x)], axis=1)
    return double_conv(p["conv"], x)


def unet(params: dict, image: jax.Array) -> jax.Array:
    """Images (batch, 3, height, width) to maps of logits."""
    x1 = double_conv(params["inc"], image)
    x2 = down(params["down1"], x1)
    x3 = down(params["down2"], x2)
    x = down(params["down3"], x3)
    x = up(params["up1"], x, x3)
    x = up(params["up2"], x, x2)
    x = up(params["up3"], x, x1)
    return conv(params["outc"], x)
