"""What `tensorgraft run` does to TensorFlow's functions: the same numbers, nothing stale, all that is left said."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits
from tests.frontends.tensorflow.samples import numbers

from tensorgraft.errors import FallbackError
from tensorgraft.frontends.tensorflow.function_override.switch import FunctionSwitch
from tensorgraft.frontends.tensorflow.variable_cache import held_on
from tensorgraft.hub import registry

X = tf.constant(numbers((4, 3)))


def switched(backend: str, program: Callable[[], Any], strict: bool = False) -> tuple[Any, FunctionSwitch]:
    switch = FunctionSwitch(backend, strict)
    undo = switch.install()
    try:
        return program(), switch
    finally:
        undo()


@pytest.fixture(params=["numpy", "jax"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def fit(steps: int) -> dict[str, list[float]]:
    x, y = load_digits(return_X_y=True)
    x, y = (x[:200] / 16).astype("float32"), y[:200]
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(16, "relu"), layers.Dropout(0.2), layers.BatchNormalization(), layers.Dense(10, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=steps)
    history = model.fit(x, y, epochs=2, batch_size=50, validation_split=0.2, verbose=0).history
    history["test"] = model.evaluate(x, y, batch_size=100, verbose=0)
    history["predicted"] = list(model.predict(x[:20], verbose=0).sum(1))
    return history


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_fit(steps: int) -> None:
    """Iterators, optionals and the loop over several steps are TensorFlow's; what they call is the backend's."""
    want = fit(steps)
    got, switch = switched("jax", lambda: fit(steps))
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-5)
    assert switch.calls["multi_step_on_iterator"] and not switch.left


def loop() -> list[Any]:
    w, b = tf.Variable(numbers((3, 2))), tf.Variable(tf.zeros(2))
    count = tf.Variable(0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b))
        for v, d in zip([w, b], tape.gradient(loss, [w, b]), strict=True):
            v.assign_sub(0.5 * d)
        count.assign_add(1)
        return loss

    seen = [step(X, tf.constant([0, 1, 1, 0])) for _ in range(3)]
    kept = w.read_value()
    w[0].assign([1.0, 2.0])  # TensorFlow writes between the calls, in every way that it has
    b.scatter_update(tf.IndexedSlices(tf.constant([3.0]), tf.constant([1])))
    tf.raw_ops.AssignAddVariableOp(resource=w.handle, value=tf.ones((3, 2)))
    seen += [step(X, tf.constant([0, 1, 1, 0])), w + 0.0, b + 0.0, count + 0]
    b.scatter_add(tf.IndexedSlices(tf.constant([3.0]), tf.constant([0])))
    return [*seen, step(X, tf.constant([1, 1, 1, 0])), w + 0.0, b + 0.0, kept]


def derivatives() -> list[Any]:
    w = tf.Variable(numbers((3, 2)))

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.tanh(x @ w) ** 2)

    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> Any:
        return x * 1.0, lambda d: d * 2.0

    @tf.function
    def branching(x: tf.Tensor) -> tf.Tensor:  # whose derivative keeps optionals
        with tf.GradientTape() as tape:
            y = tf.sin(x @ w) if tf.reduce_sum(x) > 0.0 else tf.cos(x @ w)
        return tape.gradient(y, w)

    with tf.GradientTape(persistent=True) as outer:
        outer.watch(X)
        with tf.GradientTape() as tape:
            y = f(doubled(X)) * 2.0
        d = tape.gradient(y, w)
        size = tf.reduce_sum(d * d)
    return [y, d, *outer.gradient(y, [X, w]), outer.gradient(size, w), branching(X), branching(-X)]


def checks() -> list[Any]:
    v = tf.Variable(1.0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        v.assign_add(1.0)
        tf.debugging.assert_less(tf.reduce_sum(x), 0.0)
        v.assign(100.0)
        return x

    with pytest.raises(tf.errors.InvalidArgumentError):
        f(X + 9.0)
    return [v + 0.0, f(X - 9.0), v + 0.0]


@pytest.mark.parametrize("program", [loop, derivatives, checks], ids=lambda f: f.__name__)
def test_program(program: Callable[[], list[Any]], backend: str) -> None:
    want = program()
    got, switch = switched(backend, program)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)
    assert switch.calls and not switch.left


def test_a_variable_that_becomes_longer_where_it_lies() -> None:
    rows = tf.constant(numbers((512, 3)))
    v = tf.Variable(rows[:256], shape=tf.TensorShape([None, 3]))
    f = tf.function(lambda: tf.reduce_sum(v.read_value(), 0))

    def program() -> list[tf.Tensor]:
        sums = []
        for part in (slice(0, 256), slice(0, 512), slice(128, 384)):
            v.assign(rows[part])
            sums.append(f())
        return sums

    want = program()
    got, switch = switched("jax", program)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert switch.calls.total() == 3


def odd() -> list[Any]:
    v = tf.Variable(2.0)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5, 7]), -1)

    @tf.function
    def f(x: tf.Tensor, keys: tf.Tensor) -> list[tf.Tensor]:
        y = tf.reduce_sum(x * v)
        twice = tf.py_function(lambda a: a.numpy() * 2, [y], tf.float32)
        v.assign(y)
        found = table.lookup(keys)
        for i in tf.range(2):
            v.assign_add(tf.cast(tf.strings.to_number(tf.strings.as_string(i)), tf.float32))
        return [twice * v, tf.cast(found, tf.float32) * v, tf.strings.join([tf.strings.as_string(keys), "!"])]

    return [*f(X, tf.constant([1, 0])), v + 0.0]


def test_what_tensorflow_computes_is_counted(backend: str) -> None:
    want = odd()
    got, switch = switched(backend, odd)
    for g, w in zip(got, want, strict=True):
        if w.dtype == tf.string:
            assert g.numpy().tolist() == w.numpy().tolist()
        else:
            np.testing.assert_allclose(g, w, rtol=2e-5)
    assert {name for name, _ in switch.left} >= {"EagerPyFunc", "AsString", "StringJoin"}
    with pytest.raises(FallbackError, match="would have to compute"):
        switched(backend, odd, strict=True)


def test_a_list_of_tensors_that_a_tape_keeps_leaves_the_function_to_tensorflow() -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.sin(x)
        return x

    def program() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        return tape.gradient(y, X)

    got, switch = switched("numpy", program)
    np.testing.assert_allclose(got, program(), rtol=1e-5)
    assert {name for name, _ in switch.left} == {"f", "f (derivative)"}


def test_a_list_that_goes_over_inside_of_a_loop_leaves_the_function_to_tensorflow() -> None:
    v = tf.Variable(0.0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        v.assign_add(1.0)
        total = tf.constant(0.0)
        for i in tf.range(2):
            rows = tf.TensorArray(tf.float32, 2).write(0, x[i])
            texts = tf.strings.as_string(rows.read(0))
            total += tf.reduce_sum(rows.write(1, tf.strings.to_number(texts)).stack())
        return total * v

    got, switch = switched("numpy", lambda: f(X))
    np.testing.assert_allclose(got, 2 * tf.reduce_sum(X[:2]), rtol=1e-4)
    assert v.numpy() == 1.0 and {name for name, _ in switch.left} == {"f"}


def test_variables_that_are_gone_are_not_kept() -> None:
    held = held_on(registry.get("numpy"))
    before = len(held)

    def program() -> int:
        v = tf.Variable(numbers((64,)))
        tf.function(lambda: v.assign_add(v))()
        return len(held)

    assert switched("numpy", program)[0] > before
    gc.collect()
    assert len(held) <= before


def test_a_shape_that_depends_on_values_is_not_compiled() -> None:
    v = tf.Variable(tf.zeros(3))

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        v.assign_add(tf.reduce_sum(x, 0))
        return tf.boolean_mask(x, x[:, 0] > 0.0) * v

    got, switch = switched("jax", lambda: f(X))
    np.testing.assert_allclose(got, X.numpy()[X[:, 0] > 0.0] * X.numpy().sum(0), rtol=2e-5)
    assert not switch.left
    [(name, why)] = switch.run.uncompiled
    assert name == "f" and "'mul'" in why and "depends on values" in why
