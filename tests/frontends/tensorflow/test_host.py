"""What the host does in a program: prints, checks, strings, functions of Python, as TensorFlow does it."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import BACKENDS, difference, native, on_host

import tensorgraft as tg
from tensorgraft.errors import TracedValueError

X = np.asarray([1, 2, -3], np.float32)
RUNS = [(b, False) for b in BACKENDS] + [("jax", True), ("tensorflow", True)]


def talking(x: tf.Tensor) -> tf.Tensor:
    tf.print("begins", x, tf.strings.join([tf.strings.as_string(x[0], precision=2), "!"]), summarize=2)
    for i in tf.range(2):
        tf.print("step", i, x)
        x = x + 1
    if tf.reduce_sum(x) > 0:
        tf.print("more")
    return x


@pytest.mark.parametrize("backend, compiled", RUNS)
def test_prints_what_tensorflow_prints(backend: str, compiled: bool, capfd: pytest.CaptureFixture[str]) -> None:
    grafted = tg.graft(tf.function(talking), onto=backend)
    grafted = tg.jit(grafted) if compiled else grafted
    grafted(native(backend, X))  # what tracing has to say is not asked for
    jax.effects_barrier()
    capfd.readouterr()
    want = tf.function(talking)(X)
    said = capfd.readouterr().err
    got = grafted(native(backend, X))
    jax.effects_barrier()
    assert "begins" in said and capfd.readouterr().err == said
    assert not difference(on_host(backend, got), want.numpy())


def test_wide_numbers_reach_the_host_whole(capfd: pytest.CaptureFixture[str]) -> None:
    @tf.function
    def program(x: tf.Tensor, z: tf.Tensor) -> Any:
        tf.print(x * 2, tf.math.real(z))
        y = tf.numpy_function(lambda a: a + 1, [x], tf.int64)
        w = tf.numpy_function(np.conj, [z], tf.complex128)
        y.set_shape([2])
        w.set_shape([2])
        return y, w

    x, z = np.asarray([2**40, -5]), np.asarray([1e-17 + 3j, 1 + 1e-17j])
    y, w = tg.jit(tg.graft(program, onto="jax"))(x, z)
    jax.effects_barrier()
    assert capfd.readouterr().err == "[2199023255552 -10] [1e-17 1]\n"
    assert (on_host("jax", y) == x + 1).all() and (on_host("jax", w) == z.conj()).all()


def test_a_compiled_program_that_calls_nobody_refuses() -> None:
    with pytest.raises(TracedValueError, match="PrintV2 is computed on the host, which a compiled program on torch"):
        tg.jit(tg.graft(tf.function(talking), onto="torch"))(torch.tensor(X))


def test_prints_once_where_it_is_differentiated_or_batched(capfd: pytest.CaptureFixture[str]) -> None:
    @tf.function
    def squared(x: tf.Tensor) -> tf.Tensor:
        tf.print("squared", x)
        return x * x

    grafted = tg.graft(squared, onto="jax")
    capfd.readouterr()
    gradient = jax.jit(jax.grad(lambda x: grafted(x).sum()))(jnp.ones(3))
    jax.effects_barrier()
    assert capfd.readouterr().err == "squared [1 1 1]\n"
    assert gradient.tolist() == [2, 2, 2]
    assert jax.vmap(grafted)(jnp.ones((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_fails_as_tensorflow_says(backend: str) -> None:
    @tf.function
    def checked(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(x, message="all of them")
        return x

    with pytest.raises(tf.errors.InvalidArgumentError) as judge:
        checked(X)
    with pytest.raises(tf.errors.InvalidArgumentError) as mine:
        tg.graft(checked, onto=backend)(native(backend, X))
    said = mine.value.message
    assert said.startswith("assertion failed: [all of them") and said.rpartition("] ")[2] in judge.value.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_strings_on_the_way(backend: str) -> None:
    def program(x: tf.Tensor) -> Any:
        texts = tf.strings.as_string(tf.cast(x, tf.int32))
        both = tf.strings.join([texts, tf.constant(["a", "bc", "d"])], "-")
        return tf.strings.length(both), tf.strings.to_number(texts), tf.strings.to_hash_bucket_fast(both, 1000)

    want = tf.function(program)(X)
    got = tg.graft(tf.function(program), onto=backend)(native(backend, X))
    assert not any(difference(on_host(backend, g), w.numpy()) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("backend, compiled", RUNS)
def test_functions_of_python(backend: str, compiled: bool) -> None:
    def program(x: tf.Tensor) -> Any:
        y = tf.numpy_function(np.sort, [x], tf.float32)
        z = tf.py_function(lambda a: a * 3, [x], tf.float32)
        return tf.ensure_shape(y, [3]) if backend == "numpy" else y + tf.zeros(3), z * 2

    def fixed(x: tf.Tensor) -> Any:
        y = tf.numpy_function(np.sort, [x], tf.float32)
        y.set_shape([3])
        return y

    fn = fixed if compiled else program
    want = tf.nest.flatten(tf.function(fn)(X))
    grafted = tg.graft(tf.function(fn), onto=backend)
    got = tf.nest.flatten((tg.jit(grafted) if compiled else grafted)(native(backend, X)))
    assert not any(difference(on_host(backend, g), w.numpy()) for g, w in zip(got, want, strict=True))


def test_the_derivative_of_a_function_of_python() -> None:
    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda a: a**3, [x], tf.float32)

    x = torch.tensor(X, requires_grad=True)
    tg.graft(program, onto="torch")(x).sum().backward()
    gc.collect()
    assert torch.allclose(x.grad, 3 * torch.tensor(X) ** 2)
