"""The training steps of the demo's two scripts written by hand in JAX: the same parameters, the same arithmetic.

Parameters are dictionaries with the names of the PyTorch state dict. Convolution is channels-last, as a JAX user writes
it, so its kernels are transposed once, when they are loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Tree = dict[str, jax.Array]


def adamw(
    params: Tree, grads: Tree, state: Any, lr: Any, betas: tuple[float, float] = (0.9, 0.999), decay: float = 1e-2
) -> tuple[Tree, Any]:
    """One step of `torch.optim.AdamW` (eps 1e-8)."""
    step, first, second = state
    step = step + 1
    b1, b2 = betas

    def leaf(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        denominator = jnp.sqrt(v) / jnp.sqrt(1 - b2**step) + 1e-8
        return p * (1 - lr * decay) - lr / (1 - b1**step) * m / denominator, m, v

    new = {name: leaf(params[name], grads[name], first[name], second[name]) for name in params}
    unzipped = [{name: parts[i] for name, parts in new.items()} for i in range(3)]
    return unzipped[0], (step, unzipped[1], unzipped[2])


def adamw_state(params: Tree) -> Any:
    zeros = {name: jnp.zeros_like(p) for name, p in params.items()}
    return jnp.zeros(()), zeros, {name: jnp.zeros_like(p) for name, p in params.items()}


def cross_entropy(logits: Any, labels: Any) -> Any:
    logp = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logp, labels[..., None], axis=-1).mean()


# ---- digits ----------------------------------------------------------------------------------------------------------


def load_digits(state: dict[str, np.ndarray]) -> tuple[Tree, Tree]:
    """(parameters, batch-norm statistics) from the state dict of `examples/pytorch/digits.py`."""
    params, statistics = {}, {}
    for name, value in state.items():
        if "running" in name:
            statistics[name] = jnp.asarray(value)
        elif "num_batches" not in name:
            params[name] = jnp.asarray(value.transpose(2, 3, 1, 0) if value.ndim == 4 else value)
    return params, statistics


def batch_norm(x: Any, name: str, params: Tree, statistics: Tree, momentum: float = 0.1) -> tuple[Any, Tree]:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    n = x.size / x.shape[-1]
    new = {"running_mean": mean, "running_var": var * n / (n - 1)}
    kept = {
        f"{name}.{k}": (1 - momentum) * statistics[f"{name}.{k}"] + momentum * lax.stop_gradient(v)
        for k, v in new.items()
    }
    return (x - mean) * lax.rsqrt(var + 1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"], kept


def digits_loss(params: Tree, statistics: Tree, images: Any, labels: Any, keep: Any) -> tuple[Any, Tree]:
    x, kept = images.transpose(0, 2, 3, 1), {}
    for conv, norm in (("features.0", "features.1"), ("features.4", "features.5")):
        x = lax.conv_general_dilated(
            x, params[f"{conv}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x, new = batch_norm(x, norm, params, statistics)
        kept |= new
        x = jax.nn.gelu(x, approximate=False)
        batch, height, width, channels = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    x = jax.nn.gelu(x @ params["hidden.weight"].T + params["hidden.bias"], approximate=False)
    x = x * keep / 0.75
    return cross_entropy(x @ params["classify.weight"].T + params["classify.bias"], labels), kept


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
def digits_step(params: Tree, statistics: Tree, state: Any, lr: Any, images: Any, labels: Any, keep: Any) -> Any:
    (loss, statistics), grads = jax.value_and_grad(digits_loss, has_aux=True)(params, statistics, images, labels, keep)
    params, state = adamw(params, grads, state, lr)
    return params, statistics, state, loss


# ---- gpt -------------------------------------------------------------------------------------------------------------


def load_gpt(state: dict[str, np.ndarray]) -> Tree:
    """The parameters of `examples/pytorch/gpt.py`; `head.weight` is `token.weight`."""
    return {name: jnp.asarray(value) for name, value in state.items() if name != "head.weight"}


def layer_norm(x: Any, name: str, params: Tree) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"]


def linear(x: Any, name: str, params: Tree) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def gpt_loss(params: Tree, inputs: Any, targets: Any, heads: int = 4, layers: int = 2) -> Any:
    batch, length = inputs.shape
    x = params["token.weight"][inputs] + params["position.weight"][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for i in range(layers):
        name = f"blocks.{i}"
        qkv = linear(layer_norm(x, f"{name}.norm1", params), f"{name}.qkv", params)
        q, k, v = qkv.reshape(batch, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linear(y, f"{name}.out", params)
        h = jax.nn.gelu(linear(layer_norm(x, f"{name}.norm2", params), f"{name}.mlp.0", params), approximate=False)
        x = x + linear(h, f"{name}.mlp.2", params)
    return cross_entropy(layer_norm(x, "norm", params) @ params["token.weight"].T, targets)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def gpt_step(params: Tree, state: Any, lr: Any, inputs: Any, targets: Any) -> Any:
    loss, grads = jax.value_and_grad(gpt_loss)(params, inputs, targets)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    scale = jnp.minimum(1.0 / (norm + 1e-6), 1.0)
    grads = {name: g * scale for name, g in grads.items()}
    params, state = adamw(params, grads, state, lr, betas=(0.9, 0.95))
    return params, state, loss


# ---- steps as the scripts call them ----------------------------------------------------------------------------------


def digits(state: dict[str, np.ndarray], lr: float) -> Callable[..., Any]:
    """A function that makes one step and returns the loss, as the compiled `train_step` of the script does."""
    params, statistics = load_digits(state)
    held = [params, statistics, adamw_state(params)]
    rate = jnp.asarray(lr)

    def step(*batch: Any) -> Any:
        *held[:], loss = digits_step(*held, rate, *batch)
        return loss

    return step


def gpt(state: dict[str, np.ndarray], lr: float) -> Callable[..., Any]:
    params = load_gpt(state)
    held = [params, adamw_state(params)]
    rate = jnp.asarray(lr)

    def step(*batch: Any) -> Any:
        *held[:], loss = gpt_step(*held, rate, *batch)
        return loss

    return step
