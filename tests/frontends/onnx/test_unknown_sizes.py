"""ONNX models where a framework does not know the extents: compiled functions of PyTorch take them, JAX and TensorFlow
refuse them in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from jax import export
from onnx import ModelProto
from tests.frontends.onnx.models import flattened, perceptron

import tensorgraft as tg
from tensorgraft.errors import ShapeError

MODELS: dict[str, tuple[Callable[[], ModelProto], tuple[int, ...]]] = {
    "perceptron": (perceptron, (3,)),
    "arithmetic on shapes": (flattened, (5, 2)),
}


@pytest.fixture(params=[*MODELS])
def case(request: Any) -> Any:
    make, rest = MODELS[request.param]
    return make(), rest


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of arrays between the parts that Dynamo compiles
def test_compiled_functions_of_pytorch(case: Any) -> None:
    model, rest = case
    net = tg.graft(model, onto="torch")
    compiled = torch.compile(lambda x: net(x * 2) + 1, backend="eager", dynamic=True)
    for n in (4, 9):
        x = torch.randn(n, *rest)
        out, expected = compiled(x), net(x * 2) + 1
        torch.testing.assert_close(out, expected)
        for w in net.parameters():
            slopes = [torch.autograd.grad(y.sum(), w, retain_graph=True) for y in (out, expected)]
            torch.testing.assert_close(*slopes)


def test_tensorflow_refuses_them(case: Any) -> None:
    model, rest = case
    net = tg.graft(model, onto="tensorflow")
    for shape in ((None, *rest), None):
        with pytest.raises(ShapeError, match=r"the input 'x' of net\(.*extents that are not known.*tf\.TensorSpec"):
            tf.function(net).get_concrete_function(tf.TensorSpec(shape, tf.float32))
    with pytest.raises(ShapeError, match=r"extents that are not known.*batch_size=32.*tg\.export"):
        net(keras.Input(rest))
    inputs = keras.Input(rest, batch_size=4)
    x = np.ones((4, *rest), np.float32)
    np.testing.assert_allclose(keras.Model(inputs, net(inputs))(x), net(x), rtol=1e-6)


def test_exported_programs_of_jax_refuse_them(case: Any) -> None:
    model, rest = case
    apply, params, buffers = tg.graft(model, onto="jax")
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(["n", *map(str, rest)])), jnp.float32)
    with pytest.raises(ShapeError, match=r"the input 'x' of net\(.*has shape \(n, .*tg\.export"):
        export.export(jax.jit(lambda x: apply(params, buffers, x)[0]))(spec)
