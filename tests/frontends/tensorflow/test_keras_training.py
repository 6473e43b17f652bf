"""Training steps of whole Keras models on every backend: all variables (weights, slots of optimizers, metrics, seeds)
become what they become in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS, difference
from tests.frontends.tensorflow.keras_cases import normal
from tests.frontends.tensorflow.keras_models import MODELS, made
from tests.frontends.tensorflow.traced import ROUNDING, check

import tensorgraft as tg

_QUICK = [("mlp", "jax"), ("several_outputs", "torch"), ("embedded", "numpy"), ("half", "tensorflow")]
_HALF = 2e-3  # sums of float16: TensorFlow rounds between terms


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        *(pytest.param(name, (backend,), id=f"{name}-{backend}") for name, backend in _QUICK),
        *(pytest.param(name, BACKENDS, id=f"{name}-all", marks=pytest.mark.slow) for name in MODELS),
    ],
)
def test_training(name: str, backends: Sequence[str]) -> None:
    program, arguments = made(name)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
    concrete = tf.function(program, autograph=False).get_concrete_function(*specs)
    rounding = _HALF if name == "half" else ROUNDING
    assert not check(concrete, arguments, backends, calls=3, rounding=rounding)


def test_a_method_of_a_model() -> None:
    def model() -> keras.Model:
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        made.compile("adam", "mse")
        return made

    mine, theirs = model(), model()
    data = normal(5, 4), normal(5, 1)
    step, judge = tg.graft(mine.train_step, onto="numpy"), tf.function(theirs.train_step)
    for _ in range(2):
        got, want = step(data), judge(tuple(map(tf.constant, data)))
        assert type(got["loss"]).__module__ == "numpy"
        assert not difference(got["loss"], want["loss"].numpy())
    assert [difference(v.numpy(), w.numpy()) for v, w in zip(mine.variables, theirs.variables, strict=True)] == [""] * 4
