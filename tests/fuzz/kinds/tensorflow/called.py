"""What programs call beside TensorFlow: data, derivatives by tapes, layers and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from tests.fuzz.kinds.tensorflow import autographed

import tensorflow as tf


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    to = tf.as_dtype(dtype).as_numpy_dtype
    kind = np.dtype(to).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    values: Any = rng.integers(-16, 17, shape) / 8 + 0.03125
    if kind == "c":
        values = values + 1j * rng.integers(-16, 17, shape) / 8
    return np.asarray(values).astype(to)


def gradient(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, unconnected_gradients="zero")


def jacobian(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x, unconnected_gradients="zero", experimental_use_pfor=False)


@tf.custom_gradient
def clipped(x: Any) -> Any:
    return tf.clip_by_value(x, -1, 1), lambda g: 2 * g


def gradients(f: Callable[..., Any], *sources: Any) -> Any:
    """Of a persistent tape, whose sources may be variables; twice, the second time of the first."""
    with tf.GradientTape(persistent=True) as outer:
        for x in sources:
            outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            for x in sources:
                inner.watch(x)
            y = f()
        first = inner.gradient(y, sources, unconnected_gradients="zero")
        again = inner.gradient(y, sources[0], unconnected_gradients="zero")
    return first, again, outer.gradient(first, sources, unconnected_gradients="zero")


def forwards(f: Callable[..., Any], x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = f(x)
    return accumulator.jvp(y, unconnected_gradients="zero")


def rows_gradient(f: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.batch_jacobian(y, x, unconnected_gradients="zero", experimental_use_pfor=False)


@tf.recompute_grad
def recomputed(x: Any) -> Any:
    return tf.sin(x) * tf.tanh(x)


def ragged(x: Any) -> Any:
    n = tf.shape(x, tf.int64)[0]
    return tf.RaggedTensor.from_row_lengths(x, [n // 2, 0, n - n // 2])


def layer(made: Callable[..., Any], said: str, shape: tuple[int, ...], seed: int) -> Any:
    new = eval(said, vars(keras.layers))
    new.build(shape)
    for i, w in enumerate(new.weights):
        values = made("float32", tuple(w.shape), seed + i)
        w.assign(abs(values) + 1 if "variance" in w.path else values / 2)
    new.fits = str(shape)
    return new


def optimizer(said: str, of: Any) -> Any:
    new = eval(said, {**vars(keras.optimizers), "tf": tf})
    variables = of.trainable_variables if isinstance(of, keras.Layer) else [of]
    new.build(variables)
    new.of = variables
    return new


def trained(o: Any, f: Callable[..., Any]) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(f()))
    o.apply_gradients(zip(tape.gradient(loss, o.of), o.of, strict=True))
    return loss


HELPERS = {
    "np": np,
    "tf": tf,
    "gradient": gradient,
    "jacobian": jacobian,
    "clipped": clipped,
    "gradients": gradients,
    "forwards": forwards,
    "rows_gradient": rows_gradient,
    "ragged": ragged,
    "optimizer": optimizer,
    "trained": trained,
    "recomputed": recomputed,
    **autographed.FUNCTIONS,
}
