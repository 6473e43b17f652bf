"""What the hub's policies do to programs of TensorFlow: autocast, quantised weights; and TensorFlow's own: dtype
policies of Keras, models that Keras has quantised, training for fake quantisation."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import BACKENDS, agree, difference, native, on_host
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg
from tensorgraft.quantization import Scheme

X, W = numbers((5, 16)), numbers((16, 3))


# ---- autocast --------------------------------------------------------------------------------------------------------


def in_bfloat16(x: Any, w: Any) -> Any:
    """What the region makes of `product`, as TensorFlow says it: rounded once. Where the CPU has no instructions for
    bfloat16, TensorFlow's own product adds up in it."""
    narrow = [tf.cast(tf.cast(t, tf.bfloat16), tf.float32) for t in (x, w)]
    return tf.tanh(tf.cast(tf.cast(narrow[0] @ narrow[1], tf.bfloat16), tf.float32))


def product(x: Any, w: Any) -> Any:
    return tf.tanh(x @ w)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_in_a_region(backend: str, compiled: bool) -> None:
    program = tg.graft(tf.function(product), onto=backend)
    program = tg.jit(program) if compiled else program

    def call() -> np.ndarray:
        return on_host(backend, program(native(backend, X), native(backend, W)))

    plain = product(X, W).numpy()
    assert not difference(call(), plain)
    with tg.autocast("bfloat16"):
        low = call()
        with tg.autocast(enabled=False):
            assert not difference(call(), plain)
    assert not difference(low, in_bfloat16(X, W).numpy())
    assert difference(low, plain)
    assert not difference(call(), plain)


def test_derivatives_have_the_casts_of_their_region() -> None:
    def loss(x: Any, w: Any) -> Any:
        for _ in tf.range(2):
            x = product(x, w)
        return tf.reduce_sum(x**2)

    def low(x: Any, w: Any) -> Any:
        for _ in range(2):
            x = in_bfloat16(x, w)
        return tf.reduce_sum(x**2)

    square = numbers((16, 16)) / 8
    w = torch.tensor(square, requires_grad=True)
    with tg.autocast("bfloat16"):
        value = tg.graft(tf.function(loss), onto="torch")(torch.tensor(X), w)
    value.backward()  # outside of the region
    judged = tf.constant(square)
    with tf.GradientTape() as tape:
        tape.watch(judged)
        want = low(tf.constant(X), judged)
    np.testing.assert_allclose(value.item(), want.numpy(), rtol=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), tape.gradient(want, judged).numpy(), rtol=2e-2, atol=2e-2)
    assert w.grad.dtype == torch.float32


def dense() -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Input((4, 4, 1)),
        keras.layers.Conv2D(8, 2, name="conv"),
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="relu", name="one"),
        keras.layers.Dense(2, name="two"),
    ]
    return keras.Sequential(layers)


IMAGES = X.reshape(5, 4, 4, 1)


def test_models_in_a_region() -> None:
    model = dense()
    recorded = tg.graft(model, onto="numpy")
    apply, params, buffers = tg.graft(model, onto="jax")
    plain = recorded(IMAGES)
    with tg.autocast("bfloat16"):
        first, second = recorded(IMAGES), recorded(IMAGES)
        of_jax = jax.jit(apply)(params, buffers, IMAGES)[0]
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, of_jax, rtol=1e-4, atol=1e-4)
    assert difference(first, plain) and not difference(recorded(IMAGES), plain)
    assert len(recorded.programs) == 1  # what is saved knows of no region


# ---- quantised weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["int8_per_channel", "int4_per_group_4"])
def test_quantised_kernels_of_keras(scheme: str) -> None:
    model = dense()
    module = tg.quantize_(tg.graft(model, onto="torch"), scheme)
    assert [n for n, p in module.named_parameters() if tg.quantization.is_quantized(p)] == ["one.kernel", "two.kernel"]
    with tg.quantization.on_missing("error"):
        y = module(torch.tensor(IMAGES))
    y.sum().backward()
    assert module.one.bias.grad is not None and module.conv.kernel.grad is not None
    rounded = tg.dequantize(module.one.kernel).detach().numpy()
    if scheme == "int8_per_channel":  # a channel is what comes out
        steps = np.abs(model.layers[2].kernel.numpy()).max(0) / 127
        assert (np.abs(rounded - model.layers[2].kernel.numpy()) <= steps * 0.51).all()
    for layer, kernel in ((model.layers[2], module.one.kernel), (model.layers[3], module.two.kernel)):
        layer.kernel.assign(tg.dequantize(kernel).detach().numpy())
    np.testing.assert_allclose(y.detach().numpy(), model(IMAGES).numpy(), rtol=1e-4, atol=1e-4)


def test_other_quantised_weights() -> None:
    module = tg.graft(dense(), onto="torch")
    plain = module(torch.tensor(IMAGES))
    with pytest.raises(ValueError, match="neither measured nor quantised"):
        tg.quantize_(module, "int8_static", calibrate=[torch.tensor(IMAGES)])
    tg.quantize_(module, {"two": "int8_dynamic", "*": "int8_per_channel"}, filter=lambda name, part: True)
    with tg.quantization.on_missing("error"):
        y = module(torch.tensor(IMAGES))
    np.testing.assert_allclose(y.detach(), plain.detach(), atol=0.1)
    assert tg.quantization.is_quantized(module.conv.kernel)


def test_quantised_parameters_of_jax_are_dense_and_counted() -> None:
    apply, params, buffers = tg.graft(dense(), onto="jax")
    small = tg.quantize_(params, Scheme("int8", axis=1))
    want = apply(jax.tree.map(tg.dequantize, small, is_leaf=tg.quantization.is_quantized), buffers, IMAGES)[0]
    assert not difference(np.asarray(apply(small, buffers, IMAGES)[0]), np.asarray(want))
    with tg.quantization.on_missing("error"), pytest.raises(NotImplementedError, match="dense"):
        apply(small, buffers, IMAGES)


# ---- policies of Keras -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_dtype_policies_of_keras(backend: str) -> None:
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(8, activation="gelu"), keras.layers.LayerNormalization(), keras.layers.Dense(2)]
        for layer in layers:
            layer.dtype_policy = policy
        model = keras.Sequential([keras.layers.Input((16,)), *layers])
        assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
        got = tg.graft(tf.function(lambda x, model=model: model(x, training=False)), onto=backend)(native(backend, X))
        assert not difference(on_host(backend, got), model(X, training=False).numpy())


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_step_under_a_dtype_policy(policy: str) -> None:
    """With loss scaling. Derivatives in low precision differ by the order in which they are added up."""
    if policy == "mixed_bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("on this CPU TensorFlow adds up in bfloat16")

    def make() -> tuple[Any, list[tf.Variable]]:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(8, activation="relu", dtype=policy), keras.layers.Dense(2, dtype=policy)]
        model = keras.Sequential([keras.layers.Input((16,)), *layers])
        optimizer: Any = keras.optimizers.SGD(0.1)
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.cast(model(x, training=True), tf.float32) ** 2)
                scaled = optimizer.scale_loss(loss)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(scaled, [v.value for v in variables]), variables)
            return loss

        return step, [v.value for v in (*model.variables, *optimizer.variables)]

    want, theirs = make()
    for backend in BACKENDS:
        step, ours = make()
        loss = tg.graft(tf.function(step), onto=backend)(native(backend, X))
        if backend == BACKENDS[0]:
            judged = tf.function(want)(X).numpy()
        np.testing.assert_allclose(on_host(backend, loss), judged, rtol=1e-2)
        for mine, v in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine.numpy(), v.numpy(), atol=5e-3)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # Keras' own
@pytest.mark.parametrize("backend", BACKENDS)
def test_models_that_keras_has_quantised(backend: str) -> None:
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
    model(X)
    for layer in model.layers:
        layer.quantize("int8")
    got = tg.graft(tf.function(lambda x: model(x, training=False)), onto=backend)(native(backend, X))
    assert not difference(on_host(backend, got), model(X, training=False).numpy())


# ---- training for integers -------------------------------------------------------------------------------------------


def trained_for_four_bits() -> tuple[Any, list[tf.Variable]]:
    w, low, high = tf.Variable(W), tf.Variable(-2.0), tf.Variable(2.0)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            rounded = tf.quantization.fake_quant_with_min_max_vars(w, low, high, num_bits=4, narrow_range=True)
            out = tf.quantization.fake_quant_with_min_max_args(x @ rounded, -6, 6)
            loss = tf.reduce_mean((out - y) ** 2)
        gradients = tape.gradient(loss, [w, low, high])
        for v, g in zip((w, low, high), gradients, strict=True):
            v.assign_sub(0.1 * g)
        return loss, gradients

    return step, [w, low, high]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_training_for_four_bits(backend: str, compiled: bool) -> None:
    agree(trained_for_four_bits, [X, numbers((5, 3))], backend, compiled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_of_quantised_dtypes(backend: str) -> None:
    """They are integers, whatever the signature calls them."""

    @tf.function(input_signature=[tf.TensorSpec((4,), tf.quint8)])
    def numbers_of(codes: Any) -> Any:
        return tf.quantization.dequantize(codes, -1.0, 2.0, mode="MIN_FIRST")

    codes = np.asarray([0, 1, 128, 255], np.uint8)
    want = numbers_of(tf.bitcast(codes, tf.quint8)).numpy()
    got = tg.graft(numbers_of, onto=backend)(native(backend, codes))
    assert not difference(on_host(backend, got), want)
