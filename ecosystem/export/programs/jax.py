"""Networks of Flax and Equinox, a function of JAX, and a training step of Optax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ecosystem.export.programs import Arguments, Program, normal, tokens


def _image(batch: int, length: int) -> Any:
    import jax.numpy as jnp

    return (jnp.asarray(normal(batch, 32, 32, 3)),), {}


def _channels_first(batch: int, length: int) -> Any:
    import jax.numpy as jnp

    return (jnp.asarray(normal(batch, 3, 32, 32)),), {}


def _features(batch: int, length: int) -> Any:
    import jax.numpy as jnp

    return (jnp.asarray(normal(batch, length, 16)),), {}


def _ids(batch: int, length: int) -> Any:
    import jax.numpy as jnp

    return (jnp.asarray(tokens(batch, length).astype("int32")),), {}


# ---- Flax ------------------------------------------------------------------------------------------------------------


def _nnx_cnn() -> Any:
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.conv = nnx.Conv(width, width, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(width, use_running_average=True, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return nnx.relu(x + self.norm(self.conv(x)))

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.stem = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
            self.first, self.second = Block(16, rngs), Block(16, rngs)
            self.out = nnx.Linear(16, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.max_pool(self.first(self.stem(x)), (2, 2), strides=(2, 2))
            return self.out(self.second(x).mean((1, 2)))

    return Network(nnx.Rngs(0)), _image


def _nnx_transformer() -> Any:
    import jax.numpy as jnp
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(4, 32, decode=False, rngs=rngs)
            self.norm_1, self.norm_2 = nnx.LayerNorm(32, rngs=rngs), nnx.LayerNorm(32, rngs=rngs)
            self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)

        def __call__(self, x: Any, mask: Any) -> Any:
            x = x + self.attention(self.norm_1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm_2(x))))

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.tokens, self.positions = nnx.Embed(99, 32, rngs=rngs), nnx.Embed(64, 32, rngs=rngs)
            self.layers = nnx.List([Layer(rngs), Layer(rngs)])
            self.out = nnx.Linear(32, 99, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))
            mask = nnx.make_causal_mask(ids)
            for layer in self.layers:
                x = layer(x, mask)
            return self.out(x)

    return Decoder(nnx.Rngs(0)), _ids


def _nnx_lstm() -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    return nnx.RNN(nnx.LSTMCell(16, 24, rngs=rngs)), _features


def _nnx_mlp() -> Any:
    import jax.numpy as jnp
    from flax import nnx

    rngs = nnx.Rngs(0)
    layers = nnx.Linear(7, 32, rngs=rngs), nnx.gelu, nnx.LayerNorm(32, rngs=rngs), nnx.Linear(32, 3, rngs=rngs)
    return nnx.Sequential(*layers), lambda batch, length: ((jnp.asarray(normal(batch, 7)),), {})


def _linen_resnet() -> Any:
    import jax
    from flaxmodels.resnet import resnet

    network = resnet.ResNet(architecture="resnet18", output="logits", pretrained=None, normalize=False, num_classes=10)
    variables = network.init(jax.random.key(0), normal(1, 32, 32, 3), train=False)
    return partial(network.apply, variables, train=False), _image


def _linen_mixer() -> Any:
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(24, (8, 8), strides=(8, 8))(x)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            for _ in range(2):
                y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
                y = nn.Dense(x.shape[1])(nn.gelu(nn.Dense(20)(y)))
                x = x + jnp.swapaxes(y, 1, 2)
                x = x + nn.Dense(24)(nn.gelu(nn.Dense(48)(nn.LayerNorm()(x))))
            return nn.Dense(10)(x.mean(1))

    network = Mixer()
    return partial(network.apply, network.init(jax.random.key(0), normal(1, 32, 32, 3))), _image


def _linen_gru() -> Any:
    import jax
    from flax import linen as nn

    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(99, 16)(ids)
            forward, backward = nn.RNN(nn.GRUCell(12)), nn.RNN(nn.GRUCell(12), reverse=True, keep_order=True)
            return nn.Dense(5)(nn.Bidirectional(forward, backward)(x))

    network = Tagger()
    return partial(network.apply, network.init(jax.random.key(0), tokens(1, 4).astype("int32"))), _ids


# ---- Equinox ---------------------------------------------------------------------------------------------------------


def _batched(call: Callable[..., Any], arguments: Arguments) -> Any:
    import jax

    return jax.vmap(call), arguments


def _equinox_mlp() -> Any:
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    network = eqx.nn.MLP(7, 3, 32, 2, key=jax.random.key(0))
    return _batched(network, lambda batch, length: ((jnp.asarray(normal(batch, 7)),), {}))


def _equinox_attention() -> Any:
    import equinox as eqx
    import jax

    keys = jax.random.split(jax.random.key(0), 2)

    class Encoder(eqx.Module):
        attention: Any
        norm: Any
        out: Any

        def __call__(self, x: Any) -> Any:
            y = jax.vmap(self.norm)(x)
            return jax.vmap(self.out)(x + self.attention(y, y, y))

    attention = eqx.nn.MultiheadAttention(4, 16, key=keys[0])
    return _batched(Encoder(attention, eqx.nn.LayerNorm(16), eqx.nn.Linear(16, 5, key=keys[1])), _features)


def _equinox_resnet() -> Any:
    import equinox as eqx
    import jax
    from jaxonmodels.models import resnet

    settings = {"zero_init_residual": False, "groups": 1, "width_per_group": 64, "replace_stride_with_dilation": None}
    build = eqx.nn.make_with_state(resnet.ResNet)
    module, state = build(resnet.BasicBlock, [2, 2, 2, 2], 10, key=jax.random.key(0), **settings)
    module = eqx.nn.inference_mode(module)
    return _batched(lambda image: module(image, state, inference=True)[0], _channels_first)


def _equimo(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import importlib

        import jax

        module = getattr(importlib.import_module("equimo.models"), name)(key=jax.random.key(0), **settings)
        return _batched(lambda image: module(image, key=jax.random.key(0), inference=True), _channels_first)

    return build


# ---- JAX, Optax ------------------------------------------------------------------------------------------------------


def _scan() -> Any:
    """A recurrent network, and the most likely states of a chain."""
    import jax
    import jax.numpy as jnp

    w, u, v = (jnp.asarray(normal(*s)) for s in ((16, 12), (12, 12), (12, 6)))

    def network(x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = jnp.tanh(row @ w + h @ u)
            return h, h @ v

        last, scores = jax.lax.scan(step, jnp.zeros((x.shape[0], 12)), jnp.swapaxes(x, 0, 1))
        values, places = jax.lax.top_k(jax.nn.log_softmax(jnp.swapaxes(scores, 0, 1)), 2)
        return {"state": last, "values": values, "places": places}

    return network, _features


def _step() -> Any:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.LayerNorm()(nn.gelu(nn.Dense(16)(x))))

    network = Network()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    params = network.init(jax.random.key(0), normal(1, 7))

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((network.apply(params, x) - y) ** 2)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def arguments(batch: int, length: int) -> Any:
        return (params, optimizer.init(params), jnp.asarray(normal(batch, 7)), jnp.asarray(normal(batch, 3))), {}

    return step, arguments


def _of(library: str, name: str, build: Callable[[], Any], sequence: bool = False) -> Program:
    return Program(name, library, "jax", build, sequence)


_VIT = {"img_size": 32, "patch_size": 8, "dim": 32, "depths": [2], "num_heads": 4, "num_classes": 10, "in_channels": 3}
_CONVNEXT = {"in_channels": 3, "depths": [1, 1, 2, 1], "dims": [16, 24, 32, 40], "num_classes": 10}
PROGRAMS = [
    _of("Flax", "CNN of NNX", _nnx_cnn),
    _of("Flax", "decoder of NNX", _nnx_transformer, True),
    Program("LSTM of NNX", "Flax", "jax", _nnx_lstm, sequence=True, writes=True),  # a counter of keys
    _of("Flax", "MLP of NNX", _nnx_mlp),
    _of("Flax", "ResNet-18 of Linen", _linen_resnet),
    _of("Flax", "mixer of Linen", _linen_mixer),
    _of("Flax", "GRU of Linen", _linen_gru, True),
    _of("Equinox", "MLP", _equinox_mlp),
    _of("Equinox", "attention of Equinox", _equinox_attention, True),
    _of("Equinox", "ResNet-18 of Equinox", _equinox_resnet),
    _of("Equinox", "ViT of Equinox", _equimo("VisionTransformer", **_VIT)),
    _of("Equinox", "ConvNeXt of Equinox", _equimo("ConvNeXt", **_CONVNEXT)),
    _of("JAX", "scan", _scan, True),
    _of("Optax", "step of AdamW", _step),
]
