"""What variables hold is kept on the backend between calls: who writes in between, and who still holds what was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tensorgraft as tg

_raw = tf.raw_ops
START = np.arange(1.0, 2049.0, dtype=np.float32).reshape(2, 1024)

WRITES: dict[str, Callable[[tf.Variable], Any]] = {
    "assign": lambda v: v.assign(START * 3),
    "add": lambda v: v.assign_add(START),
    "slice": lambda v: v[0, 1:].assign(START[1, 1:]),
    "scatter": lambda v: v.scatter_nd_add([[1, 2]], [5.0]),
    "function": lambda v: tf.function(lambda: v.assign(v * 2.0))(),
    "its own": lambda v: v.assign(v.read_value()),
    "reshaped": lambda v: v.assign(tf.reshape(v, (1024, 2))),
    "a part": lambda v: v.assign(v[:1]),
    "nothing": lambda v: v.assign(v[:0]),
    "raw": lambda v: _raw.AssignVariableOp(resource=v.handle, value=tf.reshape(v, (4, 512)), validate_shape=False),
}


def _step(v: tf.Variable) -> Callable[..., Any]:
    def step(x: tf.Tensor) -> tf.Tensor:
        before = v.read_value()
        v.assign(v + x)
        return before

    return step


@pytest.mark.parametrize("write", WRITES)
def test_what_tensorflow_writes_between_two_calls_is_seen(write: str) -> None:
    ours, theirs = (tf.Variable(START, shape=tf.TensorShape(None)) for _ in range(2))
    step, judge = tg.jit(tg.graft(tf.function(_step(ours)), onto="jax")), tf.function(_step(theirs))
    for _ in range(2):
        assert np.array_equal(step(np.float32(1)), judge(np.float32(1)))
        WRITES[write](ours), WRITES[write](theirs)
    assert np.array_equal(step(np.float32(1)), judge(np.float32(1)))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "complex64"])
def test_numbers_and_dtypes_that_dlpack_lacks(dtype: str) -> None:
    values = np.asarray([1, 0], getattr(ml_dtypes, dtype, dtype))
    v = [tf.Variable(values[0]), tf.Variable(values)]

    @tf.function
    def swap(x: tf.Tensor) -> list[tf.Tensor]:
        before = [v[0].read_value(), v[1].read_value()]
        v[0].assign(x[0])
        v[1].assign(x)
        return before

    step = tg.jit(tg.graft(swap, onto="jax"))
    seen = [values, values[::-1], values, values[::-1]]
    for now, then in itertools.pairwise(seen):
        number, both = step(then)
        assert np.asarray(number) == now[0] and np.array_equal(both, now)
        assert v[0].numpy() == then[0] and np.array_equal(v[1].numpy(), then)
    v[0].assign(values[0])  # another number, in the same place or not
    assert np.asarray(step(values)[0]) == values[0]


def test_who_holds_a_value_keeps_it() -> None:
    v = tf.Variable(START)
    step = tg.jit(tg.graft(tf.function(_step(v)), onto="jax"))
    results = [step(np.float32(1))]
    tensor, view = v.read_value(), v.numpy()  # in the backend's memory
    results.append(step(np.float32(1)))
    v.assign_add(START)
    results.append(step(np.float32(1)))
    assert np.array_equal(tensor, START + 1) and np.array_equal(view, START + 1)
    assert [np.array_equal(r, w) for r, w in zip(results, [START, START + 1, 2 * START + 2], strict=True)] == [True] * 3


def test_an_array_of_the_user_and_what_a_variable_holds_are_two() -> None:
    import jax

    v = tf.Variable(START)
    give = tg.jit(tg.graft(tf.function(lambda x: v.assign(x).read_value()), onto="jax"))
    x = jax.numpy.asarray(START * 2)
    y = give(x)
    other = jax.jit(lambda x: x * 0, donate_argnums=0)
    other(x), other(y)  # which may take their memory
    assert np.array_equal(v, START * 2)
    v.assign_add(START)
    assert np.array_equal(give(jax.numpy.asarray(START)), START)


def test_a_call_that_fails_leaves_what_variables_held() -> None:
    v, w = tf.Variable(START), tf.Variable(1.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        w.assign_add(1.0)
        v.assign(v + 1.0)
        return tf.boolean_mask(x, x > 0)  # as many as are true

    grafted = tg.graft(step, onto="jax")
    with pytest.raises(tg.TracedValueError, match="shape depends on values"):
        tg.jit(grafted)(START[0])
    assert np.array_equal(v, START) and w.numpy() == 1.0
    assert grafted(START[0]).shape == (1024,)
    assert np.array_equal(v, START + 1) and w.numpy() == 2.0
