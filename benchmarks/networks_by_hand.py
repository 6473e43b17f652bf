"""The networks of `networks` written by hand in JAX with Optax: the same parameters, the same arithmetic.

Parameters are dictionaries with the names of the PyTorch state dict. `apply(params, statistics, x, train)` returns the
outputs and the new batch-norm statistics (an empty dictionary where there are none).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

Tree = dict[str, jax.Array]
Apply = Callable[[Tree, Tree, Any, bool], tuple[Any, Tree]]


def load(state: dict[str, np.ndarray]) -> tuple[Tree, Tree]:
    """(parameters, batch-norm statistics) of a PyTorch state dict; a tied head is the embedding. Kernels of
    convolutions become channels-last."""
    params, statistics = {}, {}
    tied = {"head.weight": "token.weight", "model.lm_head.weight": "model.transformer.wte.weight"}
    for name, value in state.items():
        if "running" in name:
            statistics[name] = jnp.array(value)
        elif "num_batches" not in name and not (name in tied and value is state[tied[name]]):
            params[name] = jnp.array(value.transpose(2, 3, 1, 0) if value.ndim == 4 else value)
    return params, statistics


def linear(x: Any, name: str, params: Tree) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


# ---- GPT -------------------------------------------------------------------------------------------------------------


def layer_norm(x: Any, name: str, params: Tree) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"]


def gpt(params: Tree, statistics: Tree, tokens: Any, train: bool, heads: int = 6) -> tuple[Any, Tree]:
    batch, length = tokens.shape
    x = params["token.weight"][tokens] + params["position.weight"][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    layers = sum(name.endswith(".qkv.weight") for name in params)
    for i in range(layers):
        name = f"blocks.{i}"
        qkv = linear(layer_norm(x, f"{name}.norm1", params), f"{name}.qkv", params)
        q, k, v = qkv.reshape(batch, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linear(y, f"{name}.out", params)
        h = jax.nn.gelu(linear(layer_norm(x, f"{name}.norm2", params), f"{name}.up", params), approximate=False)
        x = x + linear(h, f"{name}.down", params)
    return layer_norm(x, "norm", params) @ params["token.weight"].T, statistics


def product(x: Any, name: str, params: Tree) -> Any:
    """A linear layer whose weights lie as (in, out)."""
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def public_gpt(params: Tree, statistics: Tree, tokens: Any, train: bool, width: int = 64) -> tuple[Any, Tree]:
    """Heads are `width` wide; a narrower model has one."""
    top = "model.transformer"
    batch, length = tokens.shape
    x = params[f"{top}.wte.weight"][tokens] + params[f"{top}.wpe.weight"][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    width = min(width, x.shape[-1])
    for i in range(sum(name.endswith(".attn.c_attn.weight") for name in params)):
        name = f"{top}.h.{i}"
        qkv = product(layer_norm(x, f"{name}.ln_1", params), f"{name}.attn.c_attn", params)
        q, k, v = qkv.reshape(batch, length, 3, -1, width).transpose(2, 0, 3, 1, 4)
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / width**0.5, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + product(y, f"{name}.attn.c_proj", params)
        h = jax.nn.gelu(product(layer_norm(x, f"{name}.ln_2", params), f"{name}.mlp.c_fc", params), approximate=True)
        x = x + product(h, f"{name}.mlp.c_proj", params)
    return layer_norm(x, f"{top}.ln_f", params) @ params[f"{top}.wte.weight"].T, statistics


# ---- ResNet ----------------------------------------------------------------------------------------------------------


def batch_norm(
    x: Any, name: str, params: Tree, statistics: Tree, kept: Tree, train: bool, momentum: float = 0.1
) -> Any:
    """Writes the new statistics into `kept`."""
    mean, var = statistics[f"{name}.running_mean"], statistics[f"{name}.running_var"]
    if train:
        new = x.mean((0, 1, 2)), x.var((0, 1, 2))
        n = x.size / x.shape[-1]
        kept[f"{name}.running_mean"] = (1 - momentum) * mean + momentum * lax.stop_gradient(new[0])
        kept[f"{name}.running_var"] = (1 - momentum) * var + momentum * lax.stop_gradient(new[1]) * n / (n - 1)
        mean, var = new
    return (x - mean) * lax.rsqrt(var + 1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"]


def convolution(x: Any, w: Any, stride: int, padding: int) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=layout)


def resnet(params: Tree, statistics: Tree, images: Any, train: bool) -> tuple[Any, Tree]:
    kept: Tree = {}
    norm = functools.partial(batch_norm, params=params, statistics=statistics, kept=kept, train=train)
    x = convolution(images.transpose(0, 2, 3, 1), params["conv1.weight"], 2, 3)
    x = jax.nn.relu(norm(x, "bn1"))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for i in range(8):
        name = f"blocks.{i}"
        stride = 2 if f"{name}.shortcut.0.weight" in params else 1
        y = jax.nn.relu(norm(convolution(x, params[f"{name}.conv1.weight"], stride, 1), f"{name}.bn1"))
        y = norm(convolution(y, params[f"{name}.conv2.weight"], 1, 1), f"{name}.bn2")
        if stride == 2:
            x = norm(convolution(x, params[f"{name}.shortcut.0.weight"], 2, 0), f"{name}.shortcut.1")
        x = jax.nn.relu(x + y)
    return linear(x.mean((1, 2)), "classify", params), kept if train else statistics


# ---- LSTM ------------------------------------------------------------------------------------------------------------


def lstm_layer(x: Any, layer: int, params: Tree) -> Any:
    """(T, N, H) -> (T, N, H): the products with the inputs at once, those with the states in the loop."""
    w_ih, w_hh, b_ih, b_hh = (params[f"lstm.{k}_l{layer}"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    hidden = w_hh.shape[1]

    def step(carry: Any, gates: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(gates + h @ w_hh.T, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], hidden), x.dtype)
    return lax.scan(step, (zeros, zeros), x @ w_ih.T + (b_ih + b_hh))[1]


def lstm(params: Tree, statistics: Tree, tokens: Any, train: bool) -> tuple[Any, Tree]:
    x = params["token.weight"][tokens.T]
    for layer in range(sum("weight_hh" in name for name in params)):
        x = lstm_layer(x, layer, params)
    return linear(x, "head", params).swapaxes(0, 1), statistics


# ---- inference and training -----------------------------------------------------------------------------------------

SGD = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(1e-2, momentum=0.9))
ADAMW = optax.adamw(1e-3, weight_decay=1e-2)
NETWORKS: dict[str, tuple[Apply, optax.GradientTransformation]] = {
    "GPT-2": (gpt, ADAMW),
    "ResNet-18": (resnet, SGD),
    "LSTM": (lstm, ADAMW),
    "transformers' GPT-2": (public_gpt, ADAMW),
}


def inference(name: str) -> Callable[..., Any]:
    """(params, statistics, inputs) -> outputs."""
    apply, _ = NETWORKS[name]
    return lambda params, statistics, inputs: apply(params, statistics, inputs, False)[0]


def training_step(name: str) -> Callable[..., Any]:
    """(params, statistics, optimizer state, inputs, targets) -> the first three anew, and the loss."""
    apply, optimizer = NETWORKS[name]

    def loss_of(params: Tree, statistics: Tree, inputs: Any, targets: Any) -> tuple[Any, Tree]:
        outputs, statistics = apply(params, statistics, inputs, True)
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets).mean(), statistics

    def step(params: Tree, statistics: Tree, state: Any, inputs: Any, targets: Any) -> Any:
        (loss, statistics), grads = jax.value_and_grad(loss_of, has_aux=True)(params, statistics, inputs, targets)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), statistics, state, loss

    return step


DONATED = (0, 1, 2)
