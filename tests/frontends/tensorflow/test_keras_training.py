"""Training steps of whole Keras models on every backend: all variables (weights, slots of optimizers, metrics, seeds)
become what they become in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS
from tests.frontends.tensorflow.keras_models import MODELS, made
from tests.frontends.tensorflow.traced import ROUNDING, check

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
