"""TensorFlow programs compiled on JAX beside TensorFlow's own `jit_compile=True`: steps, and first calls."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TENSORGRAFT_CACHE"] = "0"  # what is measured is compiling, too

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from benchmarks.measure import Row, interleaved

import tensorgraft as tg
from tensorgraft.hub import registry

LIMIT, FIRST = 1.1, 2.0
ROUNDS = 12
Made = tuple[Callable[..., Any], list[np.ndarray]]


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _labels(n: int, classes: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, classes, n).astype(np.int32)


def training(model: Any, inputs: np.ndarray, classes: int) -> Made:
    """A step of Adam, of Keras, with its own loop."""
    optimizer = tf.keras.optimizers.Adam(1e-3)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model(inputs)
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, [inputs, _labels(len(inputs), classes)]


def mlp() -> Made:
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([dense(512, "relu"), dense(512, "relu"), dense(10)])
    return training(model, _numbers(128, 256), 10)


def cnn() -> Made:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return training(model, _numbers(32, 28, 28, 1), 10)


def lstm() -> Made:
    model = tf.keras.Sequential([tf.keras.layers.LSTM(64), tf.keras.layers.Dense(10)])
    return training(model, _numbers(32, 24, 32), 10)


def transformer() -> Made:
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((64, 128))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(normal, normal)
        x = x + layers.Dense(128)(layers.Dense(512, "gelu")(layers.LayerNormalization()(x)))
    model = tf.keras.Model(inputs, x)
    return (lambda x: model(x, training=False)), [_numbers(8, 64, 128)]


PROGRAMS: dict[str, tuple[Callable[[], Made], int]] = {
    "MLP, training step": (mlp, 6),
    "CNN, training step": (cnn, 2),
    "LSTM, training step": (lstm, 3),
    "transformer, inference": (transformer, 3),
}


def _cpu(fn: Callable[[], object]) -> float:
    start = time.process_time()
    fn()
    return time.process_time() - start


def compare(name: str) -> Iterator[Row]:
    """Raises AssertionError where the two do not give the same numbers."""
    make, calls = PROGRAMS[name]
    xp = registry.get("jax")
    subjects: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    results: dict[str, list[np.ndarray]] = {}
    for kind in ("warm-up", "TensorFlow", "TensorFlow compiled", "JAX", "JAX compiled"):
        tf.keras.utils.set_random_seed(0)
        program, arguments = make()
        if "JAX" in kind:
            grafted = tg.graft(tf.function(program), onto="jax")
            fn = tg.jit(grafted) if "compiled" in kind else grafted
            with xp.scope():
                given = [xp.asarray(x) for x in arguments]
            call = lambda fn=fn, given=given: np.asarray(fn(*given))  # noqa: E731
        else:
            fn = tf.function(program, jit_compile="compiled" in kind)
            given = [tf.constant(x) for x in arguments]
            call = lambda fn=fn, given=given: fn(*given).numpy()  # noqa: E731
        found: list[np.ndarray] = []
        first[kind] = _cpu(lambda call=call, found=found: found.append(call()))
        results[kind] = [*found, call(), call()]
        if "compiled" in kind:
            subjects[kind] = call
    for kind in results:
        for got, want in zip(results[kind], results["TensorFlow"], strict=True):
            assert np.allclose(got, want, rtol=1e-3, atol=1e-4), (name, kind, got, want)
    seconds = interleaved(subjects, calls, ROUNDS, time.process_time)
    yield Row(name, seconds["JAX compiled"], seconds["TensorFlow compiled"], "TensorFlow, jit_compile=True", LIMIT)
    yield Row(f"{name}: first call", first["JAX"], first["TensorFlow"], "tf.function", FIRST)
    yield Row(
        f"{name}: first call, compiled",
        first["JAX compiled"],
        first["TensorFlow compiled"],
        "tf.function, jit_compile=True",
        FIRST,
    )


def measure() -> Iterator[Row]:
    started = tg.graft(tf.function(lambda x: x + 1.0), onto="jax")  # JAX is there, and what its first program takes
    tg.jit(started)(started(np.float32(1)))
    for name in PROGRAMS:
        yield from compare(name)
