"""Networks of Keras, and a training step that writes its variables."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ecosystem.export.programs import Program, normal, tokens


def _image(batch: int, length: int) -> Any:
    import tensorflow as tf

    return (tf.constant(normal(batch, 64, 64, 3)),), {}


def _application(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import keras

        keras.utils.set_random_seed(0)
        network = getattr(keras.applications, name)
        return network(input_shape=(64, 64, 3), weights=None, classes=10, **settings), _image

    return build


def _densenet() -> Any:
    import keras
    from keras.src.applications.densenet import DenseNet

    keras.utils.set_random_seed(0)
    return DenseNet([2, 3, 2, 2], weights=None, classes=10, input_shape=(64, 64, 3)), _image


def _resnet() -> Any:
    import keras
    from keras.src.applications.resnet import ResNet, stack_residual_blocks_v2

    keras.utils.set_random_seed(0)

    def stacks(x: Any) -> Any:
        x = stack_residual_blocks_v2(x, 16, 2, name="conv2")
        return stack_residual_blocks_v2(x, 32, 2, stride1=1, name="conv3")

    return ResNet(stacks, True, True, "resnet", weights=None, classes=10, input_shape=(64, 64, 3)), _image


def _efficientnet() -> Any:
    import keras
    from keras.src.applications.efficientnet_v2 import EfficientNetV2

    keras.utils.set_random_seed(0)
    settings = {"weights": None, "classes": 10, "input_shape": (64, 64, 3), "name": "efficientnetv2-b0"}
    return EfficientNetV2(0.5, 0.25, 64, min_depth=8, **settings), _image


def _lstm() -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)
    body = [layers.Embedding(99, 16), layers.Bidirectional(layers.LSTM(16, return_sequences=True)), layers.GRU(8)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *body, layers.Dense(3)])
    return model, lambda batch, length: ((tf.constant(tokens(batch, length).astype("int32")),), {})


def _backbone(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        model = getattr(importlib.import_module("keras_hub.models"), name)(**settings)

        def arguments(batch: int, length: int) -> Any:
            ids = tf.constant(tokens(batch, length).astype("int32"))
            return ({"token_ids": ids, "padding_mask": tf.ones_like(ids)},), {}

        return model, arguments

    return build


def training_step() -> Any:
    """A training step that writes its variables."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, lambda batch, length: ((tf.constant(normal(batch, 7)), tf.constant(normal(batch, 3))), {})


def _of(name: str, build: Callable[[], Any], sequence: bool = False, writes: bool = False) -> Program:
    return Program(name, "Keras", "tensorflow", build, sequence, writes)


_GPT2 = {"vocabulary_size": 99, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64}
_GPT2 |= {"max_sequence_length": 64}
PROGRAMS = [
    _of("MobileNetV2", _application("MobileNetV2", alpha=0.35)),
    _of("ResNetV2", _resnet),
    _of("EfficientNetV2", _efficientnet),
    _of("DenseNet of Keras", _densenet),
    _of("LSTM and GRU", _lstm, True),
    _of("GPT-2 of KerasHub", _backbone("GPT2Backbone", **_GPT2), True),
    _of("step of Keras", training_step, writes=True),
]
