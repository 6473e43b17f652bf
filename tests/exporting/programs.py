"""Programs that are exported: each function returns (program, arguments, named arguments)."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorgraft as tg

Program = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def torch_cnn() -> Program:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    return nn.Sequential(*layers, *head).eval(), (torch.from_numpy(_normal(2, 3, 16, 16)),), {}


def torch_batch_norm() -> Program:
    """A module in training mode, which writes its statistics."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).train(), (torch.from_numpy(_normal(6, 8)),), {}


def bert() -> Program:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    ids = torch.arange(16).reshape(2, 8) * 7 % 99
    return BertModel(config).eval(), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def equinox_mlp() -> Program:
    import equinox as eqx
    import jax

    return jax.vmap(eqx.nn.MLP(8, 4, 16, 2, key=jax.random.key(0))), (_normal(3, 8),), {}


def nnx_cnn() -> Program:
    import jax.numpy as jnp
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
            self.out = nnx.Linear(8, 5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))

    return Network(nnx.Rngs(0)), (jnp.asarray(_normal(2, 8, 8, 3)),), {}


def keras_mlp() -> Program:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    layers = keras.layers.Dense(16, activation="gelu"), keras.layers.LayerNormalization(), keras.layers.Dense(3)
    return keras.Sequential([keras.Input((8,)), *layers]), (tf.constant(_normal(2, 8)),), {}


def array_api() -> Program:
    def probabilities(x: Any, w: Any) -> Any:
        xp = x.__array_namespace__()
        y = xp.exp(x @ w - xp.max(x @ w, axis=-1, keepdims=True))
        return {"probabilities": y / xp.sum(y, axis=-1, keepdims=True), "best": xp.argmax(y, axis=-1)}

    xp = tg.array_api
    return probabilities, (xp.asarray(_normal(3, 4)), xp.asarray(_normal(4, 5))), {}


def jax_step() -> Program:
    """A training step: parameters and the optimizer's state, in and out."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(1e-2)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {"w": jnp.asarray(_normal(8, 16)), "v": jnp.asarray(_normal(16, 2))}
    return step, (params, optimizer.init(params), jnp.asarray(_normal(5, 8)), jnp.asarray(_normal(5, 2))), {}


def torch_step() -> Program:
    """A training step with momentum: parameters and momenta, in and out."""
    import torch
    from torch import nn
    from torch.func import functional_call, grad_and_value

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    class Step(nn.Module):
        def forward(self, params: Any, momenta: Any, x: Any, y: Any) -> Any:
            gradients, loss = grad_and_value(lambda p: ((functional_call(network, p, (x,)) - y) ** 2).mean())(params)
            momenta = {n: 0.9 * m + gradients[n] for n, m in momenta.items()}
            return {n: p - 0.1 * momenta[n] for n, p in params.items()}, momenta, loss

    params = {n: p.detach() for n, p in network.named_parameters()}
    momenta = {n: torch.zeros_like(p) for n, p in params.items()}
    return Step(), (params, momenta, torch.from_numpy(_normal(5, 3)), torch.from_numpy(_normal(5, 2))), {}


def keras_step() -> Program:
    """A training step that writes its variables."""
    from ecosystem.export.programs.keras import training_step

    step, arguments = training_step()
    return step, *arguments(4, 0)


PROGRAMS = {
    f.__name__: f for f in (torch_cnn, torch_batch_norm, bert, equinox_mlp, nnx_cnn, keras_mlp, array_api, jax_step,
                            keras_step, torch_step)
}  # fmt: skip
