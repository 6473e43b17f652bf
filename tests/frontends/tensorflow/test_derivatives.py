"""Derivatives of grafted functions: of any order, over batches, of calls whose shapes depend on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import difference
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

X = numbers((3, 4, 3))
W = tf.Variable(numbers((3, 2)))


@tf.custom_gradient
def odd(x: Any) -> Any:
    return x * x, lambda d: d * 3.0 * x  # which is not the derivative of a square


@tf.function
def smooth(x: Any) -> Any:
    return tf.reduce_sum(odd(tf.sin(x) @ W) ** 2)


@tf.function
def by_values(x: Any) -> Any:
    """How often its loop runs, how many elements it picks, and what is in its lists depends on values."""
    y = x
    while tf.reduce_max(tf.abs(y)) > 0.2:
        y = y * 0.7 * tf.cos(y)
    parts = tf.TensorArray(tf.float32, 2, infer_shape=False).split(x, [1, 3])
    joined = tf.TensorArray(tf.float32, 2, infer_shape=False)
    for i in tf.range(2):
        joined = joined.write(i, tf.sin(parts.read(1 - i)))
    return 10 * tf.reduce_sum(y) + tf.reduce_sum(tf.boolean_mask(x, x > 0) ** 3) + tf.reduce_sum(joined.concat() ** 2)


def judged(f: Callable[[Any], Any], x: np.ndarray, order: int = 1) -> list[np.ndarray]:
    """The value; its derivative; that of the sum of its squares, and so on."""
    t = tf.constant(x)

    def derivatives(k: int) -> list[Any]:
        if not k:
            return [f(t)]
        with tf.GradientTape() as tape:
            tape.watch(t)
            before = derivatives(k - 1)
            y = before[-1] if k == 1 else tf.reduce_sum(before[-1] ** 2)
        return [*before, tape.gradient(y, t)]

    return [y.numpy() for y in derivatives(order)]


def test_orders_on_jax() -> None:
    f = tg.graft(smooth, onto="jax")
    first = jax.grad(f)
    second = jax.grad(lambda x: (first(x) ** 2).sum())
    third = jax.jit(jax.grad(lambda x: (second(x) ** 2).sum()))
    for fn, want in zip((f, first, second, third), judged(smooth, X[0], 3), strict=True):
        assert not difference(np.asarray(fn(X[0])) / np.abs(want).max(), want / np.abs(want).max())
    rows = jax.vmap(second)(X)
    assert not difference(np.asarray(rows[1]), judged(smooth, X[1], 2)[2])


@pytest.mark.parametrize("function", [smooth, by_values], ids=["vectorised", "row by row"])
def test_vmap_of_torch(function: Any) -> None:
    f = tg.graft(function, onto="torch")
    want = [judged(function, x) for x in X]
    batch = torch.tensor(X, requires_grad=True)
    out = torch.func.vmap(f, in_dims=1)(batch.transpose(0, 1))
    assert not difference(out.detach().numpy(), np.stack([y for y, _ in want]))
    out.sum().backward()
    each = torch.func.vmap(torch.func.grad(f))(batch.detach())
    for gradients in (batch.grad, each):
        assert not difference(gradients.numpy(), np.stack([d for _, d in want]))


def test_hessians_of_torch() -> None:
    f, x = tg.graft(smooth, onto="torch"), torch.tensor(X[0])
    twice = torch.func.jacrev(torch.func.jacrev(f))(x)
    assert not difference(torch.func.hessian(f)(x).numpy(), twice.numpy())


def test_derivatives_are_those_of_their_own_call() -> None:
    f = tg.graft(by_values, onto="torch")
    inputs = [torch.tensor(X[0] * scale, requires_grad=True) for scale in (1, 4, -2)]
    outputs = [f(x) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        y.backward()
        assert not difference(x.grad.numpy(), judged(by_values, x.detach().numpy())[1])


def test_shapes_by_values_under_a_tape() -> None:
    f, x = tg.graft(by_values, onto="tensorflow"), tf.constant(X[0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    want = judged(by_values, X[0])
    assert [difference(y.numpy(), want[0]), difference(tape.gradient(y, x).numpy(), want[1])] == ["", ""]
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        squares = tf.reduce_sum(tape.gradient(y, x) ** 2)
    second = judged(by_values, X[0], 2)[2]
    assert not difference(outer.gradient(squares, x).numpy() / np.abs(second).max(), second / np.abs(second).max())


def test_a_derivative_without_a_rule_leaves_the_function() -> None:
    """The call works while PyTorch follows it; asking for the derivative says what is missing."""

    @tf.custom_gradient
    def odd(x: Any) -> Any:
        def gradient(d: Any) -> Any:
            return d * tf.raw_ops.SegmentSumV2(data=x, segment_ids=[0, 1, 2], num_segments=3)

        return x * 2.0, gradient

    x = torch.ones(3, requires_grad=True)
    y = tg.graft(tf.function(odd), onto="torch")(x)
    assert y.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(tg.errors.DerivativeError, match="SegmentSumV2"):
        y.sum().backward()
