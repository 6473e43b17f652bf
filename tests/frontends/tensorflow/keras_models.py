"""Whole Keras models with what trains them: a row makes a program of one step, and the data of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.keras_cases import normal, uniform, whole

L, P = keras.layers, keras.optimizers
Data = Any
Made = tuple[Callable[[Data], Any], Data]


def _steps(model: Any) -> Callable[[Data], Any]:
    """A training step, then an evaluation and a prediction."""

    def program(data: Data) -> Any:
        trained = model.train_step(data)
        return trained, model.test_step(data), model.predict_step(data)

    return program


def mlp() -> Made:
    model = keras.Sequential(
        [L.Dense(8, "gelu"), L.BatchNormalization(), L.Dropout(0.3, seed=1), L.LayerNormalization(), L.Dense(3)]
    )
    model.build((None, 4))
    model.compile(
        P.Adam(P.schedules.CosineDecay(0.05, 10, warmup_steps=2, warmup_target=0.1)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["sparse_categorical_crossentropy"],
    )
    return _steps(model), (normal(6, 4), whole(3, 6), uniform(6))


def cnn() -> Made:
    model = keras.Sequential(
        [
            L.RandomFlip(seed=2),
            L.RandomTranslation(0.2, 0.2, seed=3),
            L.Conv2D(4, 3, padding="same", activation="relu", kernel_regularizer="l2"),
            L.MaxPooling2D(),
            L.SeparableConv2D(4, 3, strides=2, padding="same", depthwise_constraint="max_norm"),
            L.GroupNormalization(2),
            L.GlobalAveragePooling2D(),
            L.Dense(3, "softmax", activity_regularizer="l1"),
        ]
    )
    model.build((None, 8, 8, 3))
    model.compile(P.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.2), "categorical_crossentropy", metrics=["auc"])
    steps = _steps(model)

    def program(data: Data) -> Any:
        x, y = data
        class_weight = tf.constant([1.0, 0.5, 3.0])
        return steps((x, y, tf.gather(class_weight, tf.argmax(y, -1))))  # as `fit(class_weight=)` does

    return program, (normal(4, 8, 8, 3), np.eye(3, dtype=np.float32)[[0, 1, 2, 1]])


def several_outputs() -> Made:
    a, b = keras.Input((4,), name="a"), keras.Input((6, 4), name="b")
    shared = L.Dense(5, "tanh", name="shared")
    h = L.Concatenate()([shared(a), L.GlobalMaxPooling1D()(shared(b))])
    outputs = {"class": L.Dense(3, "softmax", name="class")(h), "value": L.Dense(1, name="value")(h)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        P.AdamW(0.05, weight_decay=0.02, global_clipnorm=0.3),
        {"class": "sparse_categorical_crossentropy", "value": keras.losses.Huber()},
        loss_weights={"class": 0.7, "value": 1.3},
        metrics={"class": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)], "value": ["mae", "r2_score"]},
    )
    return _steps(model), ({"a": normal(5, 4), "b": normal(5, 6, 4)}, {"class": whole(3, 5), "value": normal(5, 1)})


class Block(L.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 4, dropout=0.2, seed=4)
        self.norms = [L.LayerNormalization(), L.RMSNormalization()]
        self.inner, self.outer = L.Dense(12, "silu"), L.Dense(8)

    def call(self, x: Any, training: bool = False) -> Any:
        h = self.norms[0](x)
        x = x + self.attention(h, h, use_causal_mask=True, training=training)
        self.add_loss(1e-2 * keras.ops.mean(keras.ops.square(x)))
        return x + self.outer(self.inner(self.norms[1](x)))


class Transformer(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = L.Embedding(11, 8), [Block()], L.Dense(11)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


def transformer() -> Made:
    model = Transformer()
    model(whole(11, 2, 5))
    model.compile(
        # by a larger epsilon: the gradient of keys' biases is nothing but rounding
        P.Adam(0.02, epsilon=1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return _steps(model), (whole(11, 2, 5), whole(11, 2, 5, seed=1))


def recurrent() -> Made:
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(3, 5), dtype="int32"),
            L.Embedding(9, 4, mask_zero=True),
            L.Bidirectional(L.GRU(3, return_sequences=True, dropout=0.2, seed=5)),
            L.LSTM(4, stateful=True, recurrent_dropout=0.2, seed=6),
            L.Dense(2),
        ]
    )
    model.compile(P.RMSprop(0.02, momentum=0.5, centered=True, clipvalue=0.05), "mse", metrics=["cosine_similarity"])
    return _steps(model), (whole(9, 3, 5), normal(3, 2))


def half() -> Made:
    """Loss scaling: the second half of a step has gradients that overflow, and is skipped."""
    policy = keras.mixed_precision.Policy("mixed_float16")
    model = keras.Sequential([L.Dense(8, "relu", dtype=policy), L.Dense(1, dtype=policy), L.Activation("linear")])
    model.build((None, 4))
    model.compile(P.LossScaleOptimizer(P.Adam(0.02), initial_scale=256.0, dynamic_growth_steps=2), "mse")

    def program(data: Data) -> Any:
        (x, y), huge = data
        return model.train_step((x, y)), model.train_step((x * huge, y)), model.train_step((x, y))

    return program, ((normal(5, 4), normal(5, 1)), np.float32(1e5))


def embedded() -> Made:
    """Gradients that are slices."""
    x = keras.Input((6,), dtype="int32")
    table = L.Embedding(12, 5)
    h = L.Conv1D(4, 3, padding="causal", activation="relu")(table(x))
    h = L.Dot(1)([L.Flatten()(h), L.Flatten()(L.Conv1D(4, 1)(table(x)))])
    model = keras.Model(x, L.Dense(1, "sigmoid")(h))
    model.compile(P.Adagrad(0.1), keras.losses.BinaryFocalCrossentropy(), metrics=["precision", "recall", "f1_score"])
    return _steps(model), (whole(12, 4, 6), whole(2, 4, 1).astype(np.float32))


def accumulating() -> Made:
    """Gradients of several steps at once; a part that is frozen."""
    frozen = keras.Sequential([L.Dense(6, "elu"), L.BatchNormalization()])
    frozen.build((None, 4))
    frozen.trainable = False
    x = keras.Input((4,))
    model = keras.Model(x, L.Dense(2, kernel_initializer="orthogonal")(L.SpectralNormalization(L.Dense(5))(frozen(x))))
    model.compile(P.Lion(0.01, gradient_accumulation_steps=2), "log_cosh", metrics=["mse", "pearson_correlation"])
    return _steps(model), (normal(4, 4), normal(4, 2))


class Adversaries(keras.Model):
    """Two networks, two optimizers, metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)
        self.generator = keras.Sequential([L.Dense(6, "leaky_relu"), L.Dense(4)])
        # what both batches add alike, as biases do, has the derivative 0, of whose rounding Nadam makes whole steps
        hidden = L.Dense(6, "leaky_relu", use_bias=False)
        self.critic = keras.Sequential([hidden, L.Dropout(0.2, seed=8), L.Dense(1, use_bias=False)])
        self.generator.build((None, 3))
        self.critic.build((None, 4))
        self.optimizers = [P.Adam(0.02, beta_1=0.5), P.Nadam(0.02)]
        self.optimizers[0].build(self.generator.trainable_variables)
        self.optimizers[1].build(self.critic.trainable_variables)
        self.tracked = keras.metrics.Mean()

    def train_step(self, data: Data) -> dict[str, Any]:
        n = keras.ops.shape(data)[0]
        with tf.GradientTape() as tape:
            fake = self.generator(keras.random.normal((n, 3), seed=self.seeds))
            with tf.GradientTape() as inner:
                t = keras.random.uniform((n, 1), seed=self.seeds)
                between = t * data + (1 - t) * fake
                inner.watch(between)
                score = self.critic(between, training=False)
            slope = tf.norm(inner.gradient(score, between) + 1e-6, axis=1)
            scores = self.critic(fake, training=True), self.critic(data, training=True)
            loss = tf.reduce_mean(scores[0] - scores[1]) + 10 * tf.reduce_mean((slope - 1) ** 2)
        variables = self.critic.trainable_variables
        self.optimizers[1].apply(tape.gradient(loss, variables), variables)
        with tf.GradientTape() as tape:
            fooled = -tf.reduce_mean(self.critic(self.generator(keras.random.normal((n, 3), seed=self.seeds))))
        variables = self.generator.trainable_variables
        self.optimizers[0].apply(tape.gradient(fooled, variables), variables)
        self.tracked.update_state(loss)
        return {"loss": self.tracked.result(), "fooled": fooled}


def adversaries() -> Made:
    return Adversaries().train_step, normal(5, 4)


class Coder(keras.Model):
    """A variational autoencoder: a sample, losses and metrics that it adds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = L.Dense(4), L.Dense(5, "sigmoid")
        self.seeds, self.kl = keras.random.SeedGenerator(9), keras.metrics.Mean("kl")

    def call(self, x: Any) -> Any:
        mean, log = keras.ops.split(self.encode(x), 2, axis=-1)
        kl = -0.5 * keras.ops.mean(1 + log - keras.ops.square(mean) - keras.ops.exp(log))
        self.add_loss(kl)
        self.kl.update_state(kl)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return self.decode(mean + keras.ops.exp(0.5 * log) * noise)


def coder() -> Made:
    model = Coder()
    model(uniform(4, 5))
    model.compile(P.Lamb(0.02), "binary_crossentropy", metrics=[keras.metrics.RootMeanSquaredError()])
    x = uniform(4, 5)
    return _steps(model), (x, x)


MODELS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (
        mlp, cnn, several_outputs, transformer, recurrent, half, embedded, accumulating, adversaries, coder
    )
}  # fmt: skip


def made(name: str) -> tuple[Callable[..., Any], Sequence[np.ndarray]]:
    """A program of flat arguments, and these."""
    keras.utils.set_random_seed(3)
    step, data = MODELS[name]()

    def program(*flat: Any) -> Any:
        return step(tf.nest.pack_sequence_as(data, flat))

    return program, [np.asarray(x) for x in tf.nest.flatten(data)]
