"""Models of Keras and `tf.Module`s as modules of other frameworks: results, derivatives, state, files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import difference
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

X = numbers((4, 3))


class Affine(tf.Module):
    def __init__(self) -> None:
        self.w = tf.Variable(numbers((3, 2)))
        self.calls = tf.Variable(0, trainable=False)

    def __call__(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return tf.tanh(x @ self.w)


def network() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="gelu", name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(2, name="last"),
        ]
    )


def judged(model: Any, training: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """(what a model gives, derivatives of the sum of its squares)."""
    with tf.GradientTape() as tape:
        y = model(tf.constant(X), training=training)
        loss = tf.reduce_sum(y**2)
    variables = model.trainable_variables
    return y.numpy(), [g.numpy() for g in tape.gradient(loss, [v.value for v in variables])]


@pytest.mark.parametrize("training", [False, True])
def test_keras_as_a_module_of_torch(training: bool) -> None:
    model = network()
    module = tg.graft(model, onto="torch")
    want, gradients = judged(model, training)
    assert isinstance(module, torch.nn.Module)
    assert list(dict(module.named_parameters())) == [
        "first.kernel", "first.bias", "norm.gamma", "norm.beta", "last.kernel", "last.bias"
    ]  # fmt: skip
    assert not module.training
    module.train(training)
    y = module(torch.tensor(X))
    assert not difference(y.detach().numpy(), want)
    y.square().sum().backward()
    for p, g in zip(module.parameters(), gradients, strict=True):
        assert not difference(p.grad.numpy(), g)
    mean = dict(module.named_buffers())["norm.moving_mean"].numpy()
    theirs = next(v for v in model.variables if v.path.endswith("norm/moving_mean"))
    assert not difference(mean, theirs.numpy())


def test_keras_as_a_function_of_jax() -> None:
    model = network()
    apply, params, buffers = tg.graft(model, onto="jax")
    out, written = jax.jit(apply, static_argnames="training")(params, buffers, X, training=True)
    gradients = jax.grad(lambda p: (apply(p, buffers, X, training=True)[0] ** 2).sum())(params)
    want, theirs = judged(model, True)
    assert not difference(np.asarray(out), want)
    ordered = [np.asarray(gradients[name]) for name in params]
    assert [difference(g, t) for g, t in zip(ordered, theirs, strict=True)] == [""] * 6
    assert written["norm.moving_mean"].tolist() != buffers["norm.moving_mean"].tolist()


def test_a_module_with_state() -> None:
    affine = Affine()
    module = tg.graft(affine, onto="torch")
    first = module(torch.tensor(X))
    assert not difference(first.detach().numpy(), affine(tf.constant(X)).numpy())
    assert (dict(module.named_buffers())["calls"].item(), affine.calls.numpy()) == (1, 1)
    assert list(dict(module.named_parameters())) == ["w"]


def test_saved_and_loaded_without_tensorflow(tmp_path: Path) -> None:
    model = network()
    f = tg.graft(model, onto="numpy")
    want = f(X, training=False)
    assert not difference(want, model(X, training=False).numpy())
    f.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    program = f"""
import sys, numpy as np, tensorgraft as tg
sys.modules["tensorflow"] = sys.modules["keras"] = None
f = tg.load({str(tmp_path / "model")!r})
np.save({str(tmp_path / "y.npy")!r}, f(np.load({str(tmp_path / "x.npy")!r}), training=False))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not difference(np.load(tmp_path / "y.npy"), want)


def test_a_function_that_writes_is_not_recorded() -> None:
    with pytest.raises(ValueError, match="writes its variables"):
        tg.graft(Affine(), onto="numpy")(X)


def test_a_saved_model(tmp_path: Path) -> None:
    affine = Affine()
    serve = tf.function(lambda x: {"y": affine(x)}, input_signature=[tf.TensorSpec((None, 3), name="x")])
    other = tf.function(lambda a, b: a @ b, input_signature=[tf.TensorSpec((2, 3)), tf.TensorSpec((3, 2))])
    where = str(tmp_path / "model")
    tf.saved_model.save(affine, where, {"serve": serve, "other": other})
    model = tg.graft(where, onto="torch")
    assert sorted(model) == ["other", "serve"]
    y = model["serve"](x=torch.tensor(X))["y"]
    assert not difference(y.detach().numpy(), affine(tf.constant(X)).numpy())
    a, b = numbers((2, 3)), numbers((3, 2))
    (product,) = model["other"](b=torch.tensor(b), a=torch.tensor(a)).values()
    assert not difference(product.numpy(), a @ b)
    with pytest.raises(KeyError, match="no signature"):
        model["train"]
    with pytest.raises(TypeError, match="2 signatures"):
        model(x=torch.tensor(X))
