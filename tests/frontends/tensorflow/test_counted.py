"""Shapes by values in compiled programs: rows that are counted where the program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import agree, difference, native, on_host

import tensorgraft as tg

X = np.asarray([1.0, -2.0, 0.0, 3.0, -1.0, 5.0, 5.0, -3.0], np.float32)
ROWS = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "rows of a mask, summed": lambda x, w: tf.reduce_sum(tf.boolean_mask(w, x > 0) * 2.0 + w[:1], 0),
    "how many": lambda x, w: tf.shape(tf.where(x > 0))[0] + tf.shape(tf.boolean_mask(w, x > 2))[1],
    "places, one by one": lambda x, w: tf.reduce_sum(tf.where(w > 0.5) * [[10, 1]]),
    "gather and scatter": lambda x, w: tf.scatter_nd(tf.where(x > 0), tf.gather_nd(w, tf.where(x > 0)), (8, 3)),
    "segments": lambda x, w: tf.math.unsorted_segment_max(tf.boolean_mask(w, x > 0), tf.boolean_mask(X8, x > 0), 3),
    "one row is every row": lambda x, w: tf.reduce_sum(tf.boolean_mask(w, x < 0) + w[1:2], 0),
    "counted against fixed": lambda x, w: (
        tf.reduce_sum(w + tf.boolean_mask(w, x > 4.5)[:, :], 0)
        if False
        else tf.reduce_all(tf.boolean_mask(w, x > 0) > -9.0)
    ),
    "ones and numbers": lambda x, w: (
        tf.reduce_sum(tf.cast(tf.range(1, tf.shape(tf.where(x > 0))[0] + 1), tf.float32) * tf.boolean_mask(x, x > 0))
        + tf.reduce_sum(tf.ones((tf.shape(tf.where(x > 0))[0], 2)))
    ),
    "columns": lambda x, w: tf.reduce_sum(tf.gather(w, tf.where(x > 0)[:, 0])[:, 1:], 0),
    "equal indices, put together": lambda x, w: deduplicated(tf.cast(x, tf.int32) % 4, w),
    "branches": lambda x, w: tf.reduce_sum(
        tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.boolean_mask(w, x > 0), lambda: w[:2]) ** 2, 0
    ),
}


def deduplicated(indices: Any, values: Any) -> Any:
    """As optimizers do it."""
    unique, places, counts = tf.unique_with_counts(indices)
    sums = tf.math.unsorted_segment_sum(values, places, tf.shape(unique)[0])
    rows = tf.tensor_scatter_nd_add(tf.zeros((4, 3)), tf.expand_dims(unique, 1), sums)
    return rows + tf.cast(tf.reduce_sum(counts * (unique + 1)), tf.float32)


X8 = np.asarray([0, 1, 2, 0, 1, 2, 0, 1], np.int32)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_rows_that_are_counted(name: str, backend: str) -> None:
    program = tf.function(PROGRAMS[name])
    compiled = tg.jit(tg.graft(program, onto=backend))
    for x in (X, -X, np.abs(X) + 1, -np.abs(X) - 1):
        want = program(x, ROWS).numpy()
        got = on_host(backend, compiled(native(backend, x), native(backend, ROWS)))
        assert not difference(got, want)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "the program returns": lambda x: tf.boolean_mask(x, x > 0),
    "ConcatV2": lambda x: tf.reduce_sum(tf.concat([tf.boolean_mask(x, x > 0), x], 0)),
    "Reshape": lambda x: tf.reduce_sum(tf.reshape(tf.boolean_mask(x, x > 0), (-1, 1))),
    "MatMul": lambda x: tf.boolean_mask(tf.eye(8), x > 0) @ x[:, None],
    "Mean": lambda x: tf.reduce_mean(tf.boolean_mask(x, x > 0)),
    "Cumsum": lambda x: tf.reduce_sum(tf.cumsum(tf.boolean_mask(x, x > 0))),
    "GatherV2": lambda x: tf.gather(tf.boolean_mask(x, x > 0), [0, 1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_no_counted_rows_says_so(name: str) -> None:
    program = tg.graft(tf.function(REFUSED[name]), onto="jax")
    with pytest.raises(tg.TracedValueError, match=r"depends on values|needs the value") as caught:
        tg.jit(program)(X)
    assert name in str(caught.value)
    assert np.array_equal(np.asarray(program(X)), REFUSED[name](X))


def test_derivatives_of_counted_rows_are_refused() -> None:
    program = tf.function(lambda x, w: tf.reduce_sum(tf.boolean_mask(w, x > 0) ** 2))
    with pytest.raises(tg.TracedValueError, match="computed from values that are being traced"):
        jax.grad(tg.graft(program, onto="jax"), 1)(X, ROWS)


ZEROS = [[1, 3, 4, 7], *(pytest.param(z, marks=pytest.mark.slow) for z in ([], [1], list(range(8))))]


@pytest.mark.parametrize("zeros", ZEROS)
def test_keras_divides_slices(zeros: list[int]) -> None:
    """Where the divisor is 0 or NaN there are more rows than before."""
    divisor = np.ones((8, 3), np.float32) * 2
    divisor[zeros, 1] = 0
    divisor[zeros[:1], 2] = np.nan

    def program(x: Any, w: Any) -> Any:
        slices = keras.ops.divide(tf.IndexedSlices(x, tf.constant([1, 5, 7]), tf.constant([8, 3])), w)
        return tf.math.unsorted_segment_sum(slices.values * 2.0, slices.indices, 8)

    want = tf.function(program)(ROWS[:3], divisor).numpy()
    for backend in ("jax", "torch", "tensorflow"):
        compiled = tg.jit(tg.graft(tf.function(program), onto=backend))
        assert not difference(on_host(backend, compiled(native(backend, ROWS[:3]), native(backend, divisor))), want)


SPARSE = ["RMSprop", "Adagrad", "Adadelta", "Adafactor"]


@pytest.mark.parametrize("name", ["ScheduleFreeAdamW", *(pytest.param(n, marks=pytest.mark.slow) for n in SPARSE)])
def test_steps_on_the_sparse_gradient_of_an_embedding(name: str) -> None:
    def make() -> tuple[Callable[..., Any], list[tf.Variable]]:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Embedding(12, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model(np.zeros((2, 5), np.int32))
        optimizer = getattr(keras.optimizers, name)(0.05)
        optimizer.build(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                out = model(x, training=True)
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, out, from_logits=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return step, [v.value for v in (*model.variables, *optimizer.variables)]

    x = np.asarray([[1, 2, 2, 3, 11], [0, 1, 1, 1, 5]], np.int32)
    agree(make, [x, np.asarray([0, 2], np.int32)], "jax", compiled=True, calls=2)
