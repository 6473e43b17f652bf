"""Derivatives of branches: what a branch keeps for its derivative, which the other one does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.frontends.tensorflow.common import BACKENDS, agree, difference, native
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg

X = numbers((3, 4))


def two(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) * tf.exp(x[:, :2])[0, 0], lambda: x**3)


def three(x: Any) -> Any:
    which = tf.cast(tf.reduce_max(tf.abs(x)) * 10, tf.int32) % 3
    return tf.switch_case(
        which, [lambda: tf.sin(x), lambda: tf.exp(x) * x, lambda: tf.reshape(tf.tanh(x), (3, 4)) ** 2]
    )


def nested(x: Any) -> Any:
    def inner() -> Any:
        y = tf.exp(x)
        return tf.cond(y[0, 0] > 1, lambda: y * tf.sin(y), lambda: tf.tanh(y) ** 2)

    return tf.cond(x[1, 1] > 0, inner, lambda: tf.cos(x) * x)


def looped(x: Any) -> Any:
    for i in tf.range(3):
        x = tf.cond(x[i, 0] > 0, lambda x=x: tf.sin(x) * x, lambda x=x: tf.exp(-x) + x)
    return x


def of_loops(x: Any) -> Any:
    def powers() -> Any:
        y = x
        for _ in tf.range(3):
            y = tf.sin(y) * x
        return y

    return tf.cond(tf.reduce_sum(x) > 0, powers, lambda: tf.tanh(x))


BRANCHES = {f.__name__: f for f in (two, three, nested, looped, of_loops)}


def _made(fn: Callable[[Any], Any]) -> Callable[[], tuple[Callable[..., Any], Sequence[tf.Variable]]]:
    fn = tf.function(fn)

    def program(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        return y, tape.gradient(y, x)

    return lambda: (program, [])


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BRANCHES)
def test_derivative_inside(name: str, backend: str) -> None:
    for x in (X, -X):
        agree(_made(BRANCHES[name]), [x], backend, calls=1)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("nested", "jax"),
        *(
            pytest.param(n, b, marks=pytest.mark.slow)
            for n in BRANCHES
            for b in BACKENDS[1:]
            if (n, b) != ("nested", "jax")
        ),
    ],
)
def test_derivative_compiled(name: str, backend: str) -> None:
    for x in (X, -X):
        agree(_made(BRANCHES[name]), [x], backend, compiled=True, calls=1)


def test_derivatives_of_other_frameworks() -> None:
    fn = tf.function(nested)
    for x in (X, -X):
        with tf.GradientTape() as tape:
            t = tf.constant(x)
            tape.watch(t)
            loss = tf.reduce_sum(fn(t) ** 2)
        want = tape.gradient(loss, t).numpy()
        leaf = torch.tensor(x, requires_grad=True)
        (tg.graft(fn, onto="torch")(leaf) ** 2).sum().backward()
        gradient = jax.jit(jax.grad(lambda a: (tg.graft(fn, onto="jax")(a) ** 2).sum()))(native("jax", x))
        assert not difference(leaf.grad.numpy(), want)
        assert not difference(np.asarray(gradient), want)
